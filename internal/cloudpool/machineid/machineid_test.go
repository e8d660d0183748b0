package machineid

import (
	"encoding/json"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

const server = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

func TestAMachineAndItsNodeHaveOneIdentity(t *testing.T) {
	for name, tt := range map[string]struct {
		machine    api.Machine
		providerID string
		want       string
		computer   string
	}{
		"EC2": {
			api.Machine{ID: "i-0123456789abcdef0", Region: "eu-west-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///eu-west-1a/i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "ip-10-0-1-2.eu-west-1.compute.internal",
		},
		"EC2 without a zone": {
			api.Machine{ID: "i-0123456789abcdef0", Metadata: json.RawMessage(`{"privateDnsName":"a.b"}`)},
			"aws:///i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "a.b",
		},
		"EC2 in a local zone, of the first region": {
			api.Machine{ID: "i-01234567", Region: "us-east-1", PrivateIPs: []string{"10.0.1.2"}},
			"aws:///us-east-1-bos-1a/i-01234567", "aws:///i-01234567", "ip-10-0-1-2.ec2.internal",
		},
		"a spot request that was met": {
			api.Machine{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":"i-01234567"}`)},
			"aws:///eu-west-1a/i-01234567", "aws:///i-01234567", "",
		},
		"GCE": {
			api.Machine{ID: "https://www.googleapis.com/compute/v1/projects/p/zones/z-b/instances/node-1"},
			"gce://p/z-b/node-1", "gce://p/z-b/node-1", "node-1",
		},
		"Azure, in two letter cases": {
			api.Machine{ID: "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/Node-1"},
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1",
			"azure:///subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/node-1", "Node-1",
		},
		"OpenStack": {
			api.Machine{ID: server, Metadata: json.RawMessage(`{"name":"node-1"}`)}, "openstack:///" + server, "openstack:///" + server, "node-1",
		},
		"OpenStack with a region": {
			api.Machine{ID: server, Region: "R"}, "openstack://R/" + server, "openstack:///" + server, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			of, ok := Of(&tt.machine)
			if !ok || of.String() != tt.want {
				t.Errorf("the machine is %s, %t; want %s", of, ok, tt.want)
			}
			is, err := Parse(tt.providerID)
			if err != nil || is.String() != tt.want {
				t.Errorf("the node is %s, %v; want %s", is, err, tt.want)
			}
			if again, err := Parse(is.String()); err != nil || again.String() != tt.want {
				t.Errorf("%s is read as %s, %v", is, again, err)
			}
			if got := ComputerName(&tt.machine, ""); got != tt.computer {
				t.Errorf("the computer's name is %q, want %q", got, tt.computer)
			}
		})
	}
}

func TestI10WhatNamesNoMachineIsRefusedAndNeverGuessed(t *testing.T) {
	for _, id := range []string{
		"", "x", "kwok://node-1", "aws://i-01234567", "aws:///somewhere/i-01234567", "aws:///eu-west-1a/01234567", "gce://p/z",
		"gce://p/z/N_1", "openstack:///", "openstack:///node-1", "openstack://" + server, "azure:///subscriptions/s", server,
	} {
		if got, err := Parse(id); err == nil {
			t.Errorf("%q is read as %s", id, got)
		}
	}
	for _, m := range []api.Machine{
		{ID: "i-requested1"},
		{ID: "sir-abcd"},
		{ID: "sir-abcd", Metadata: json.RawMessage(`{"instanceId":""}`)},
		{ID: "pod-1"},
		{ID: "https://example.com/x"},
		{ID: "/subscriptions/s/x"},
	} {
		if got, ok := Of(&m); ok {
			t.Errorf("%s is taken for %s", m.ID, got)
		}
	}
}

func TestTheComputersNameIsWhereTheConfigurationSays(t *testing.T) {
	m := api.Machine{ID: server, Metadata: json.RawMessage(`{"name":"a","os":{"host":"b","n":1}}`)}
	for path, want := range map[string]string{"": "a", "os.host": "b", "os.n": "", "os": "", "x.y": ""} {
		if got := ComputerName(&m, path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, id := range []string{"aws:///eu-west-1a/i-01234567", "gce://p/z/n", "openstack:///" + server, "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(id.String()); err != nil || again.String() != id.String() {
			t.Errorf("%q is %s, and that %s, %v", text, id, again, err)
		}
	})
}
