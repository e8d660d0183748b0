package cloudpool

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
)

// spotMetadata holds the fields of a spot request that this package reads.
type spotMetadata struct{ InstanceID string }

// isSpotRequest reports whether the machine's ID is the ID of an Amazon Spot request. The instance gets its own ID when
// Amazon fulfills the request.
func isSpotRequest(m *wire.Machine) bool { return strings.HasPrefix(m.ID, "sir-") }

// ParseMachineID returns a machine's ID in its cloud. It returns false if the cloud is unknown, or if the machine has
// no ID yet. An example is an open Spot request. Such a machine cannot be matched with a Node by ID.
func ParseMachineID(m *wire.Machine) (id providerid.ID, ok bool) {
	id, err := providerid.Parse(nodeProviderID(m))
	if err == nil && (id.Scheme == providerid.AWS || id.Scheme == providerid.OpenStack) {
		id.Scope = m.Region // the ID does not contain it
	}
	return id, err == nil
}

// gceInstancePath matches the path of a GCE instance.
var gceInstancePath = regexp.MustCompile(`/projects/([^/]+)/zones/([^/]+)/instances/([^/]+)$`)

// nodeProviderID returns the provider ID that the machine's Node would have. It returns "" if the cloud is unknown.
func nodeProviderID(m *wire.Machine) string {
	switch {
	case isSpotRequest(m):
		var spot spotMetadata
		if json.Unmarshal(m.Metadata, &spot) != nil {
			return ""
		}
		return providerid.AWS + ":///" + spot.InstanceID
	case strings.HasPrefix(m.ID, "https://") || strings.HasPrefix(m.ID, "http://"):
		u, err := url.Parse(m.ID)
		if err != nil {
			return ""
		}
		return gceInstancePath.ReplaceAllString(gceInstancePath.FindString(u.Path), providerid.GCE+"://$1/$2/$3")
	case strings.HasPrefix(strings.ToLower(m.ID), "/subscriptions/"):
		return providerid.Azure + "://" + m.ID
	case strings.HasPrefix(m.ID, "i-"):
		return providerid.AWS + ":///" + m.ID
	}
	return providerid.OpenStack + ":///" + m.ID
}

// MachineName returns the name of a machine, which is the last part of its ID.
func MachineName(m *wire.Machine) string {
	return m.ID[strings.LastIndexAny(strings.TrimRight(m.ID, "/"), "/")+1:]
}

// ComputerName returns the host name of a machine, or "" if it is unknown. In most clusters the Node has the same name.
// The name is read from the metadata at path, which is a list of keys separated by dots. For an empty path the
// machine's cloud decides.
func ComputerName(m *wire.Machine, path string) string {
	if path != "" {
		return lookUpString(m.Metadata, path)
	}
	id, ok := ParseMachineID(m)
	if !ok {
		return firstString(m.Metadata, "name", "hostname")
	}
	switch id.Scheme {
	case providerid.AWS:
		if name := lookUpString(m.Metadata, "privateDnsName"); name != "" {
			return name
		}
		return privateDNSName(m)
	case providerid.Azure:
		if name := firstString(m.Metadata, "osProfile.computerName", "computerName"); name != "" {
			return name
		}
		return MachineName(m)
	case providerid.GCE:
		return MachineName(m)
	}
	return firstString(m.Metadata, "name", "hostname")
}

// privateDNSName returns the default private DNS name of an EC2 instance, see
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html. It returns "" if the address or the
// region is unknown.
func privateDNSName(m *wire.Machine) string {
	if len(m.PrivateIPs) != 1 {
		return ""
	}
	ip, err := netip.ParseAddr(m.PrivateIPs[0])
	if err != nil || !ip.Is4() || m.Region == "" {
		return ""
	}
	host := "ip-" + strings.ReplaceAll(ip.String(), ".", "-")
	if m.Region == "us-east-1" {
		return host + ".ec2.internal"
	}
	return host + "." + m.Region + ".compute.internal"
}

func firstString(metadata json.RawMessage, paths ...string) string {
	for _, path := range paths {
		if name := lookUpString(metadata, path); name != "" {
			return name
		}
	}
	return ""
}

// lookUpString returns the string at a path of keys in a JSON object, or "" if there is none.
func lookUpString(metadata json.RawMessage, path string) string {
	for key := range strings.SplitSeq(path, ".") {
		var object map[string]json.RawMessage
		if json.Unmarshal(metadata, &object) != nil {
			return ""
		}
		metadata = object[key]
	}
	var text string
	if json.Unmarshal(metadata, &text) != nil {
		return ""
	}
	return text
}
