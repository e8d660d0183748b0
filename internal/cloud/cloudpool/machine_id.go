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

// spotMetadata has the used fields of a spot request.
type spotMetadata struct{ InstanceID string }

// isSpotRequest reports whether the machine's ID is an Amazon Spot request. The instance gets an ID when the request is
// fulfilled.
func isSpotRequest(m *wire.Machine) bool { return strings.HasPrefix(m.ID, "sir-") }

// ParseMachineID returns a machine's ID in its cloud. It returns false if the machine has none yet, for example an open Spot
// request, or if the cloud is unknown. Such a machine cannot be matched with a Node by ID.
func ParseMachineID(m *wire.Machine) (id providerid.ID, ok bool) {
	id, err := providerid.Parse(nodeProviderID(m))
	if err == nil && (id.Scheme == providerid.AWS || id.Scheme == providerid.OpenStack) {
		id.Scope = m.Region // the ID does not contain it
	}
	return id, err == nil
}

// gceInstancePath matches the path of a GCE instance.
var gceInstancePath = regexp.MustCompile(`/projects/([^/]+)/zones/([^/]+)/instances/([^/]+)$`)

// nodeProviderID returns the provider ID that a Node would have; empty if the cloud is unknown.
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

// MachineName returns the last part of a machine's ID.
func MachineName(m *wire.Machine) string {
	return m.ID[strings.LastIndexAny(strings.TrimRight(m.ID, "/"), "/")+1:]
}

// ComputerNamePath returns the host name of a machine, which is its Node's name in most clusters; empty if unknown. It is
// read from the metadata at path, keys separated by dots. The default path depends on the cloud.
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
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html.
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

// lookUpString returns the string at a path of a JSON object.
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
