package cloudpool

import (
	"encoding/json"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

const serverID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

func TestMachineAndNodeHaveTheSameID(t *testing.T) {
	for name, tt := range map[string]struct {
		machine    wire.Machine
		providerID string
		want       string
		computer   string
	}{
		"EC2": {
			wire.Machine{ID: "i-0123456789abcdef0", Region: "eu-west-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///eu-west-1a/i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "ip-10-0-1-2.eu-west-1.compute.internal",
		},
		"EC2 without a zone": {
			wire.Machine{ID: "i-0123456789abcdef0", Metadata: json.RawMessage(`{"privateDnsName":"a.b"}`)},
			"aws:///i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "a.b",
		},
		"EC2 in a local zone, of the first region": {
			wire.Machine{ID: "i-01234567", Region: "us-east-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///us-east-1-bos-1a/i-01234567", "aws:///i-01234567", "ip-10-0-1-2.ec2.internal",
		},
		"a fulfilled Spot request": {
			wire.Machine{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":"i-01234567"}`)},
			"aws:///eu-west-1a/i-01234567", "aws:///i-01234567", "",
		},
		"GCE": {
			wire.Machine{ID: "https://www.googleapis.com/compute/v1/projects/p/zones/z-b/instances/node-1"},
			"gce://p/z-b/node-1", "gce://p/z-b/node-1", "node-1",
		},
		"Azure, in two letter cases": {
			wire.Machine{ID: "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/Node-1"},
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1",
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1", "Node-1",
		},
		"OpenStack": {
			wire.Machine{ID: serverID, Metadata: json.RawMessage(`{"name":"node-1"}`)}, "openstack:///" + serverID, "openstack:///" + serverID, "node-1",
		},
		"OpenStack with a region": {
			wire.Machine{ID: serverID, Region: "R"}, "openstack://R/" + serverID, "openstack:///" + serverID, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			of, ok := ParseMachineID(&tt.machine)
			if !ok || of.String() != tt.want {
				t.Errorf("machine ID %s, %t; want %s", of, ok, tt.want)
			}
			is, err := providerid.Parse(tt.providerID)
			if err != nil || is.String() != tt.want {
				t.Errorf("node ID %s, %v; want %s", is, err, tt.want)
			}
			if again, err := providerid.Parse(is.String()); err != nil || again.String() != tt.want {
				t.Errorf("%s parses as %s, %v", is, again, err)
			}
			check.Is(t, tt.computer, ComputerName(&tt.machine, ""))
		})
	}
}

func TestI10InvalidInstanceIDIsRefused(t *testing.T) {
	for _, id := range []string{
		"", "x", "kwok://node-1", "aws://i-01234567", "aws:///somewhere/i-01234567", "aws:///eu-west-1a/01234567", "gce://p/z",
		"gce://p/z/N_1", "openstack:///", "openstack:///node-1", "openstack://" + serverID, "azure:///subscriptions/s", serverID,
	} {
		if got, err := providerid.Parse(id); err == nil {
			t.Errorf("%q parses as %s", id, got)
		}
	}
	for _, m := range []wire.Machine{
		{ID: "i-requested1"},
		{ID: "sir-abcd"},
		{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":""}`)},
		{ID: "pod-1"},
		{ID: "https://example.com/x"},
		{ID: "/subscriptions/s/x"},
	} {
		if got, ok := ParseMachineID(&m); ok {
			t.Errorf("%s has the ID %s", m.ID, got)
		}
	}
}

func TestComputerNameIsReadFromConfiguredPath(t *testing.T) {
	m := wire.Machine{ID: serverID, Metadata: json.RawMessage(`{"name":"a","os":{"host":"b","n":1}}`)}
	for path, want := range map[string]string{"": "a", "os.host": "b", "os.n": "", "os": "", "x.y": ""} {
		if got := ComputerName(&m, path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
