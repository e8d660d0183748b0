// Package providerid parses a Node's spec.providerID into an ID that can be compared. It supports the formats of the
// Kubernetes cloud providers.
package providerid

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	azure "github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// ID names an instance in its cloud. Two IDs with the same String name the same instance.
type ID struct {
	// Scheme is the scheme of the provider ID: aws, gce, azure or openstack.
	Scheme string
	// Scope is the region, project or subscription, if the ID contains it.
	Scope string
	key   string
}

// String returns the canonical form of the ID. It has no region, because only some provider IDs contain a region.
func (id ID) String() string {
	switch id.Scheme {
	case GCE:
		return GCE + "://" + id.Scope + "/" + id.key
	case Azure:
		return Azure + "://" + id.key
	}
	return id.Scheme + ":///" + id.key
}

// The supported schemes.
const (
	AWS       = "aws"
	GCE       = "gce"
	Azure     = "azure"
	OpenStack = "openstack"
)

func supportedSchemes() []string { return []string{AWS, GCE, Azure, OpenStack} }

var (
	ec2InstancePattern = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	uuidPattern        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// ec2ZonePattern matches an availability zone or local zone. The region is the text before the last letter.
	ec2ZonePattern = regexp.MustCompile(`^([a-z]{2}(?:-[a-z]+)+-[0-9]+)(?:-[a-z]+-[0-9]+)?[a-z]$`)
	gceNamePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
)

// Parse parses a Node's spec.providerID in the formats of the Kubernetes cloud providers:
//
//	aws:///ZONE/i-0123456789abcdef0
//	gce://PROJECT/ZONE/NAME
//	azure:///subscriptions/…/virtualMachines/NAME, in any letter case
//	openstack:///UUID or openstack://REGION/UUID
//	ANY-OTHER://UUID, which identifies an instance by UUID in any cloud
//
// It returns an error for any other ID.
func Parse(providerID string) (ID, error) {
	scheme, rest, found := strings.Cut(providerID, "://")
	wrong := func(want string) (ID, error) {
		return ID{}, fmt.Errorf("provider ID %.200q: want %s", providerID, want)
	}
	if !found {
		return wrong("one of " + strings.Join(supportedSchemes(), ", ") + ", such as openstack:///UUID")
	}
	switch scheme {
	case AWS:
		path, absolute := strings.CutPrefix(rest, "/")
		zone, instance, _ := strings.Cut(path, "/")
		if ec2InstancePattern.MatchString(zone) && instance == "" {
			zone, instance = "", zone
		}
		region := ec2ZonePattern.FindStringSubmatch(zone)
		if !absolute || !ec2InstancePattern.MatchString(instance) || zone != "" && region == nil {
			return wrong("aws:///ZONE/i-…")
		}
		id := ID{Scheme: AWS, key: instance}
		if region != nil {
			id.Scope = region[1]
		}
		return id, nil
	case GCE:
		return parseGCE(rest, wrong)
	case Azure:
		id, err := azure.Parse(providerID)
		if err != nil {
			return ID{}, err
		}
		return fromAzureID(id), nil
	case OpenStack:
		region, server, found := strings.Cut(rest, "/")
		server = strings.ToLower(server)
		if !found || !uuidPattern.MatchString(server) {
			return wrong("openstack:///UUID or openstack://REGION/UUID")
		}
		return ID{Scheme: OpenStack, Scope: region, key: server}, nil
	}
	if server := strings.ToLower(strings.TrimLeft(rest, "/")); scheme != "" && uuidPattern.MatchString(server) {
		return ID{Scheme: OpenStack, key: server}, nil
	}
	return wrong("one of " + strings.Join(supportedSchemes(), ", ") + ", such as openstack:///UUID")
}

func parseGCE(path string, wrong func(string) (ID, error)) (ID, error) {
	segments := strings.Split(path, "/")
	if len(segments) != 3 || segments[0] == "" || segments[1] == "" || !gceNamePattern.MatchString(segments[2]) {
		return wrong("gce://PROJECT/ZONE/NAME")
	}
	return ID{Scheme: GCE, Scope: segments[0], key: segments[1] + "/" + segments[2]}, nil
}

func fromAzureID(id azure.ID) ID {
	path, _ := strings.CutPrefix(id.String(), Azure+"://")
	return ID{Scheme: Azure, Scope: strings.ToLower(id.Subscription), key: path}
}

// HasOtherScheme reports whether two IDs have different supported schemes. Then they never name the same instance, even
// if the rest of providerID cannot be parsed.
func HasOtherScheme(identity, providerID string) bool {
	mine, _, _ := strings.Cut(identity, "://")
	theirs, _, found := strings.Cut(providerID, "://")
	return found && theirs != mine && slices.Contains(supportedSchemes(), theirs)
}
