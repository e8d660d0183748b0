// Package machineid tells which machine of a cloudpool is which machine of its cloud, and so which Node. The clouds of
// the reference server name machines in one way, and the cloud providers of Kubernetes in another.
package machineid

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// ID is a machine's identity in its cloud, from whichever side it was read. Two are one machine when their String is the
// same.
type ID struct {
	// Scheme is that of the provider ID: aws, gce, azure or openstack.
	Scheme string
	// Scope is the account that the ID names, as far as it does: a region, a project, a subscription.
	Scope string
	key   string
}

// String is the ID in its one spelling. It has no region, which one side says and the other does not.
func (id ID) String() string {
	switch id.Scheme {
	case schemeGCE:
		return schemeGCE + "://" + id.Scope + "/" + id.key
	case schemeAzure:
		return schemeAzure + "://" + id.key
	}
	return id.Scheme + ":///" + id.key
}

// The schemes of provider IDs that are understood.
const (
	schemeAWS       = "aws"
	schemeGCE       = "gce"
	schemeAzure     = "azure"
	schemeOpenStack = "openstack"
)

func schemes() []string { return []string{schemeAWS, schemeGCE, schemeAzure, schemeOpenStack} }

var (
	ec2Instance = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	uuid        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// ec2Zone is an availability or local zone; its region is what is before the last letter.
	ec2Zone = regexp.MustCompile(`^([a-z]{2}(?:-[a-z]+)+-[0-9]+)(?:-[a-z]+-[0-9]+)?[a-z]$`)
	gceName = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
)

// Parse reads a node's spec.providerID, as the cloud providers of Kubernetes write it:
//
//	aws:///ZONE/i-0123456789abcdef0
//	gce://PROJECT/ZONE/NAME
//	azure:///subscriptions/…/virtualMachines/NAME, in any letter case
//	openstack:///UUID or openstack://REGION/UUID
//
// Any other ID is an error that says what is wanted, and never a guess.
func Parse(providerID string) (ID, error) {
	scheme, rest, found := strings.Cut(providerID, "://")
	wrong := func(want string) (ID, error) {
		return ID{}, fmt.Errorf("provider ID %.200q: want %s", providerID, want)
	}
	if !found {
		return wrong("one of " + strings.Join(schemes(), ", ") + ", such as openstack:///UUID")
	}
	switch scheme {
	case schemeAWS:
		path, absolute := strings.CutPrefix(rest, "/")
		zone, instance, _ := strings.Cut(path, "/")
		if ec2Instance.MatchString(zone) && instance == "" {
			zone, instance = "", zone
		}
		region := ec2Zone.FindStringSubmatch(zone)
		if !absolute || !ec2Instance.MatchString(instance) || zone != "" && region == nil {
			return wrong("aws:///ZONE/i-…")
		}
		id := ID{Scheme: schemeAWS, key: instance}
		if region != nil {
			id.Scope = region[1]
		}
		return id, nil
	case schemeGCE:
		return gceID(rest, wrong)
	case schemeAzure:
		id, err := providerid.Parse(providerID)
		if err != nil {
			return ID{}, err
		}
		return azureID(id), nil
	case schemeOpenStack:
		region, server, found := strings.Cut(rest, "/")
		server = strings.ToLower(server)
		if !found || !uuid.MatchString(server) {
			return wrong("openstack:///UUID or openstack://REGION/UUID")
		}
		return ID{Scheme: schemeOpenStack, Scope: region, key: server}, nil
	}
	return wrong("one of " + strings.Join(schemes(), ", ") + ", such as openstack:///UUID")
}

func gceID(path string, wrong func(string) (ID, error)) (ID, error) {
	segments := strings.Split(path, "/")
	if len(segments) != 3 || segments[0] == "" || segments[1] == "" || !gceName.MatchString(segments[2]) {
		return wrong("gce://PROJECT/ZONE/NAME")
	}
	return ID{Scheme: schemeGCE, Scope: segments[0], key: segments[1] + "/" + segments[2]}, nil
}

func azureID(id providerid.ID) ID {
	path, _ := strings.CutPrefix(id.String(), schemeAzure+"://")
	return ID{Scheme: schemeAzure, Scope: strings.ToLower(id.Subscription), key: path}
}

// Elsewhere reports a provider ID whose scheme is that of one of the clouds above, and another one than an identity's. No machine
// of the one is a Node of the other, even where the rest of the ID cannot be read.
func Elsewhere(identity, providerID string) bool {
	mine, _, _ := strings.Cut(identity, "://")
	theirs, _, found := strings.Cut(providerID, "://")
	return found && theirs != mine && slices.Contains(schemes(), theirs)
}

// spotMetadata is what is read of a spot request's description.
type spotMetadata struct{ InstanceID string }

// IsRequest reports that a pool knows a machine by the request for it, an Amazon spot request, which has an ID in its cloud only
// once it was met.
func IsRequest(m *api.Machine) bool { return strings.HasPrefix(m.ID, "sir-") }

// Of reads a machine's ID in its cloud. It reports false for a machine that has none yet, such as a request that the
// cloud has not met, and for one of a cloud that is not understood: no Node can be said to be such a machine by its ID.
func Of(m *api.Machine) (ID, bool) {
	switch {
	case ec2Instance.MatchString(m.ID):
		return ID{Scheme: schemeAWS, Scope: m.Region, key: m.ID}, true
	case IsRequest(m):
		var spot spotMetadata
		if json.Unmarshal(m.Metadata, &spot) == nil && ec2Instance.MatchString(spot.InstanceID) {
			return ID{Scheme: schemeAWS, Scope: m.Region, key: spot.InstanceID}, true
		}
		return ID{}, false
	case strings.HasPrefix(m.ID, "https://") || strings.HasPrefix(m.ID, "http://"):
		return ofSelfLink(m.ID)
	case strings.HasPrefix(strings.ToLower(m.ID), "/subscriptions/"):
		id, err := providerid.ParseResource(m.ID)
		return azureID(id), err == nil
	case uuid.MatchString(strings.ToLower(m.ID)):
		return ID{Scheme: schemeOpenStack, Scope: m.Region, key: strings.ToLower(m.ID)}, true
	}
	return ID{}, false
}

// selfLink is the path of a GCE instance.
var selfLink = regexp.MustCompile(`/projects/([^/]+)/zones/([^/]+)/instances/([^/]+)$`)

func ofSelfLink(link string) (ID, bool) {
	u, err := url.Parse(link)
	if err != nil {
		return ID{}, false
	}
	found := selfLink.FindStringSubmatch(u.Path)
	if found == nil || !gceName.MatchString(found[3]) {
		return ID{}, false
	}
	return ID{Scheme: schemeGCE, Scope: found[1], key: found[2] + "/" + found[3]}, true
}
