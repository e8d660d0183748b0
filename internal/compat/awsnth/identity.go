package awsnth

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

// NodeMetadata describes the instance. Webhook templates use its fields, so they keep the tool's names. The keys are those
// of the instance identity document.
type NodeMetadata struct {
	AccountId         string `json:"accountId"` // the name is the tool's
	InstanceID        string `json:"instanceId"`
	InstanceLifeCycle string `json:"-"`
	InstanceType      string `json:"instanceType"`
	PublicHostname    string `json:"-"`
	PublicIP          string `json:"-"`
	LocalHostname     string `json:"-"`
	LocalIP           string `json:"privateIp"`
	AvailabilityZone  string `json:"availabilityZone"`
	Region            string `json:"region"`
}

// identityPath is the path of the instance identity document.
const identityPath = "/latest/dynamic/instance-identity/document"

// identityRetryInterval is the pause after a failed read of the instance's description.
const identityRetryInterval = 5 * time.Second

// MetadataReader reads a path of the instance metadata service. *aws.Client implements it.
type MetadataReader interface {
	Get(ctx context.Context, path string) (body []byte, found bool, err error)
}

// Identity holds the description of the instance once it was read. It is safe for concurrent use.
type Identity struct{ read atomic.Pointer[NodeMetadata] }

// Get returns the description of the instance; it is empty before it was read.
func (i *Identity) Get() NodeMetadata {
	if m := i.read.Load(); m != nil {
		return *m
	}
	return NodeMetadata{}
}

// Read reads the description of the instance. It retries until it succeeds or ctx ends. Nothing waits for it: messages
// that are sent before have what the Node says about the instance.
func (i *Identity) Read(ctx context.Context, from MetadataReader) {
	for {
		m, err := readNodeMetadata(ctx, from)
		if err == nil {
			i.read.Store(&m)
			return
		}
		if !elapsed.Sleep(ctx, identityRetryInterval) {
			return
		}
	}
}

func readNodeMetadata(ctx context.Context, from MetadataReader) (NodeMetadata, error) {
	var m NodeMetadata
	var failed error
	get := func(path string) string {
		body, _, err := from.Get(ctx, path)
		if failed == nil {
			failed = err
		}
		return strings.TrimSpace(string(body))
	}
	// An unreadable document leaves its fields empty. The paths below have the most important ones too.
	_ = json.Unmarshal([]byte(get(identityPath)), &m)
	for path, field := range map[string]*string{
		"instance-id": &m.InstanceID, "instance-type": &m.InstanceType, "instance-life-cycle": &m.InstanceLifeCycle, "local-ipv4": &m.LocalIP,
		"local-hostname": &m.LocalHostname, "public-hostname": &m.PublicHostname, "public-ipv4": &m.PublicIP,
		"placement/availability-zone": &m.AvailabilityZone, "placement/region": &m.Region,
	} {
		if *field == "" {
			*field = get("/latest/meta-data/" + path)
		}
	}
	return m, failed
}

// complete returns the description with the fields that only the Node knows.
func (m NodeMetadata) complete(providerID string, labels map[string]string) NodeMetadata {
	for field, value := range map[*string]string{
		&m.InstanceID: providerID[strings.LastIndex(providerID, "/")+1:], &m.InstanceType: labels["node.kubernetes.io/instance-type"],
		&m.AvailabilityZone: labels["topology.kubernetes.io/zone"], &m.Region: labels["topology.kubernetes.io/region"],
	} {
		if *field == "" {
			*field = value
		}
	}
	return m
}
