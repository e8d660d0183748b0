package machineid

import (
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// Name is a machine's own name: the last part of its ID.
func Name(m *api.Machine) string {
	return m.ID[strings.LastIndexAny(strings.TrimRight(m.ID, "/"), "/")+1:]
}

// ComputerName is the host name that the cloud gave a machine, which is its Node's name in most clusters; empty when
// nothing says. It is looked for in the machine's metadata at path, a list of keys with dots between; without a path
// where the machine's cloud has it.
func ComputerName(m *api.Machine, path string) string {
	if path != "" {
		return lookUp(m.Metadata, path)
	}
	id, ok := Of(m)
	if !ok {
		return firstOf(m.Metadata, "name", "hostname")
	}
	switch id.Scheme {
	case schemeAWS:
		if name := lookUp(m.Metadata, "privateDnsName"); name != "" {
			return name
		}
		return privateDNSName(m)
	case schemeAzure:
		if name := firstOf(m.Metadata, "osProfile.computerName", "computerName"); name != "" {
			return name
		}
		return Name(m)
	case schemeGCE:
		return Name(m)
	}
	return firstOf(m.Metadata, "name", "hostname")
}

// privateDNSName is what EC2 calls an instance unless its network says otherwise, see
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html.
func privateDNSName(m *api.Machine) string {
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

func firstOf(metadata json.RawMessage, paths ...string) string {
	for _, path := range paths {
		if name := lookUp(metadata, path); name != "" {
			return name
		}
	}
	return ""
}

// lookUp finds a text in a JSON object.
func lookUp(metadata json.RawMessage, path string) string {
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
