package matching

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/pooltest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var newUUID, newMachine, newNode = pooltest.NewUUID, pooltest.NewMachine, pooltest.NewNode

// newRequestedMachine returns a machine that was only requested.
func newRequestedMachine(at time.Time) api.Machine {
	return api.Machine{ID: "sir-1", State: api.Requested, RequestTime: &at}
}

// newYoungNode returns a node that was created just now.
func newYoungNode(name, providerID string) *corev1.Node {
	n := newNode(name, providerID, "")
	n.CreationTimestamp = metav1.Now()
	return n
}

func TestPairingIsUnambiguousOrMissing(t *testing.T) {
	one := func(ip string) api.Machine { return newMachine(1, api.Running, ip) }
	for name, tt := range map[string]struct {
		machines []api.Machine
		nodes    []*corev1.Node
		pairs    string // of machine 1
		unclear  string
		doubt    string
	}{
		"by provider ID": {[]api.Machine{one("")}, []*corev1.Node{newNode("a", "openstack:///"+newUUID(1), "")}, "a/provider ID", "", ""},
		"by provider ID despite other address": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{newNode("a", "openstack://R/"+newUUID(1), "10.9.9.9")}, "a/provider ID", "", "",
		},
		"by address, node without ID":       {[]api.Machine{one("10.0.0.1")}, []*corev1.Node{newNode("a", "", "10.0.0.1")}, "a/address", "", ""},
		"by IPv6 address in other spelling": {[]api.Machine{one("2001:db8::1")}, []*corev1.Node{newNode("a", "", "2001:0db8:0::1")}, "a/address", "", ""},
		"by name": {
			[]api.Machine{{ID: "pod-1", State: api.Running}}, []*corev1.Node{newNode("pod-1", "kind://x", "")}, "pod-1/name", "", "",
		},
		"by external ID of Kubernetes before 1.11": {
			[]api.Machine{one("")}, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{DoNotUseExternalID: newUUID(1)}}}, "a/external ID", "", "",
		},
		"two nodes of one machine": {
			[]api.Machine{one("")},
			[]*corev1.Node{newNode("a", "openstack:///"+newUUID(1), ""), newNode("b", "openstack:///"+newUUID(1), "")},
			"a/provider ID", "both claim to be machine", "",
		},
		"node with address of other machine": {
			[]api.Machine{one("10.0.0.1"), newMachine(2, api.Running, "10.0.0.2")},
			[]*corev1.Node{newNode("a", "openstack:///"+newUUID(1), "10.0.0.2")},
			"a/provider ID", "has the address 10.0.0.2 of machine " + newUUID(2), "",
		},
		"node of other identity with address of machine": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{newNode("a", "openstack:///"+newUUID(9), "10.0.0.1")}, "", "has the address 10.0.0.1", "",
		},
		"address of two nodes": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{newNode("a", "", "10.0.0.1"), newNode("b", "", "10.0.0.1")}, "", "is node a or node b", "may belong to it",
		},
		"address of two machines": {
			[]api.Machine{one("10.0.0.1"), newMachine(2, api.Running, "10.0.0.1")}, []*corev1.Node{newNode("a", "", "10.0.0.1")}, "", "is machine", "may belong to it",
		},
		"loopback address":                   {[]api.Machine{one("127.0.0.1")}, []*corev1.Node{newNode("a", "", "127.0.0.1")}, "", "", "may belong to it"},
		"machine listed twice":               {[]api.Machine{one(""), one("")}, nil, "", "which are the same machine", ""},
		"no node, other node is identified":  {[]api.Machine{one("")}, []*corev1.Node{newNode("a", "openstack:///"+newUUID(9), "")}, "", "", ""},
		"no node, other node of other cloud": {[]api.Machine{one("")}, []*corev1.Node{newNode("a", "gce://p/z/n", "")}, "", "", ""},
		"no node, other node without ID":     {[]api.Machine{one("")}, []*corev1.Node{newNode("a", "", "")}, "", "", "node a, which has no provider ID, may belong to it"},
		"no node, other node without ID in other network": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{newNode("a", "", "10.0.0.9")}, "", "", "node a, which has no provider ID, may belong to it",
		},
		"no node, other node without ID with IPv6": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{newNode("a", "", "2001:db8::1")}, "", "", "node a, which has no provider ID, may belong to it",
		},
		"no node, other node of k3s": {
			[]api.Machine{one("")}, []*corev1.Node{newNode("a", "k3s://a", "10.0.0.1")}, "", "", `node a, which has the provider ID "k3s://a"`,
		},
		"no node, other node of k3s with address": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{newNode("a", "k3s://a", "10.0.0.1")}, "", "", `node a, which has the provider ID "k3s://a"`,
		},
		"no node, other node of kind": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{newNode("a", "kind://docker/kind/a", "172.18.0.2")}, "", "", "node a, which has the provider ID",
		},
		"no node, other node with unreadable ID of same cloud": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{newNode("a", "openstack:///a", "10.0.0.1")}, "", "", "node a, which has the provider ID",
		},
		"no node, other node with unreadable ID of other cloud": {
			[]api.Machine{one("")}, []*corev1.Node{newNode("a", "aws:///eu-west-1a/fargate-ip-10-0-0-1", "")}, "", "", "",
		},
		"no node, other node unidentified, other machine paired": {
			[]api.Machine{newMachine(2, api.Running, ""), one("")},
			[]*corev1.Node{newNode("a", "k3s://a", ""), newNode("b", "openstack:///"+newUUID(1), "")},
			"", "", "node a, which has the provider ID",
		},
		"machine of unknown cloud, node of known cloud": {
			[]api.Machine{{ID: "pod-1", State: api.Running}},
			[]*corev1.Node{newNode("a", "openstack:///"+newUUID(9), "")},
			"", "", "node a, which claims to be openstack:///" + newUUID(9) + ", may belong to it",
		},
		"requested": {[]api.Machine{newRequestedMachine(time.Now())}, []*corev1.Node{newNode("a", "", "")}, "", "", ""},
		"requested, newer node of any cloud": {
			[]api.Machine{newRequestedMachine(time.Now().Add(-time.Hour))}, []*corev1.Node{newYoungNode("a", "aws:///eu-west-1a/i-0123456789abcdef0")}, "", "", "node a, which was created after",
		},
		"requested at unknown time": {[]api.Machine{{ID: "sir-1", State: api.Requested}}, []*corev1.Node{newYoungNode("a", "")}, "", "", "node a, which was created after"},
	} {
		t.Run(name, func(t *testing.T) {
			p := PairMachines(tt.machines, tt.nodes, ServerIdentities{})
			m := p.FindMember(tt.machines[0].ID)
			got := ""
			if m.Node != nil {
				got = m.Node.Name + "/" + string(m.PairedBy)
			}
			check.Not(t, got != tt.pairs, "paired with %q, want %q", got, tt.pairs)
			unclear := strings.Join(p.Unclear, "; ")
			check.Not(t, (unclear == "") != (tt.unclear == "") || !strings.Contains(unclear, tt.unclear), "unclear: %q, want %q", unclear, tt.unclear)
			check.Not(t, m.Doubt != tt.doubt && (tt.doubt == "" || !strings.Contains(m.Doubt, tt.doubt)), "doubt: %q, want %q", m.Doubt, tt.doubt)
		})
	}
}

// TestNodeIsNeverPairedTwice pairs random machines and nodes.
func TestNodeIsNeverPairedTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.IntRange(1, 4)
		ip := rapid.SampledFrom([]string{"", "10.0.0.1", "10.0.0.2", "10.0.0.3", "x"})
		var machines []api.Machine
		for range rapid.IntRange(0, 5).Draw(t, "machines") {
			m := newMachine(id.Draw(t, "id"), rapid.SampledFrom([]api.MachineState{api.Requested, api.Pending, api.Running, api.Terminating}).Draw(t, "state"), ip.Draw(t, "ip"))
			machines = append(machines, m)
		}
		var nodes []*corev1.Node
		for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
			providerID := rapid.SampledFrom([]string{"", "openstack:///" + newUUID(1), "openstack:///" + newUUID(2), "openstack://R/" + newUUID(3), "gce://p/z/n", "?"}).Draw(t, "provider ID")
			nodes = append(nodes, newNode(fmt.Sprint("n", i), providerID, ip.Draw(t, "ip")))
		}
		p := PairMachines(machines, nodes, ServerIdentities{})
		taken := map[string]bool{}
		for _, m := range p.Members {
			if m.Node == nil {
				continue
			}
			must.Not(t, taken[m.Node.Name], "node %s is paired twice", m.Node.Name)
			taken[m.Node.Name] = true
			if nodeID, err := (ServerIdentities{}).NodeIdentity(m.Node.Spec.ProviderID); err == nil {
				if is, ok := (ServerIdentities{}).Identity(m.Machine); ok && is != nodeID {
					t.Fatalf("machine %s is paired with a node that claims to be %s", is, nodeID)
				}
			}
		}
		// A node with the identity of a machine of the pool is paired, or something is unclear.
		for _, n := range nodes {
			nodeID, err := (ServerIdentities{}).NodeIdentity(n.Spec.ProviderID)
			of := slices.ContainsFunc(p.Members, func(m Member) bool {
				is, ok := (ServerIdentities{}).Identity(m.Machine)
				return ok && err == nil && is == nodeID
			})
			if of && !taken[n.Name] && len(p.Unclear) == 0 {
				t.Fatalf("node %s (%s) is not paired, and nothing is unclear", n.Name, n.Spec.ProviderID)
			}
		}
	})
}

// newQuestion returns a Question that chooses nodes in order.
func newQuestion(desired int, machines []api.Machine, nodes []*corev1.Node) DecisionInput {
	p := PairMachines(machines, nodes, ServerIdentities{})
	return DecisionInput{
		Desired: desired, Pairing: &p, Leaving: map[string]bool{}, Refused: map[string]string{}, NodeRegistrationTimeout: 15 * time.Minute, Now: time.Now(), Nodes: nodes,
		ChooseNodes: func(k int, _ planner.Policy, rules planner.Options) (*planner.VictimSelection, error) {
			s := &planner.VictimSelection{}
			for _, n := range nodes {
				if rules.ExcludedNodes[n.Name] == "" && len(s.Victims) < k {
					s.Victims = append(s.Victims, planner.Evacuation{Node: n.Name})
				}
			}
			return s, nil
		},
	}
}

func victimNumbers(d *Decision) string {
	var all []string
	for _, v := range d.Victims {
		all = append(all, v.Machine[max(0, len(v.Machine)-1):])
	}
	return strings.Join(all, " ")
}

func TestEarliestMachinesAreRemovedFirst(t *testing.T) {
	asked := api.Machine{ID: "i-requested9", State: api.Requested, Membership: &api.MembershipStatus{Active: true, Evictable: true}}
	young := newMachine(4, api.Running, "10.0.0.4")
	now := time.Now()
	young.LaunchTime = &now
	old := newMachine(5, api.Running, "10.0.0.5")
	machines := []api.Machine{newMachine(1, api.Running, "10.0.0.1"), newMachine(2, api.Running, "10.0.0.2"), newMachine(3, api.Pending, "10.0.0.3"), young, old, asked}
	nodes := []*corev1.Node{newNode("n1", "openstack:///"+newUUID(1), "10.0.0.1"), newNode("n2", "openstack:///"+newUUID(2), "10.0.0.2")}
	for desired, want := range map[int]string{6: "", 7: "", 5: "9", 4: "9 3", 3: "9 3 5", 2: "9 3 5 1", 1: "9 3 5 1 2", 0: "9 3 5 1 2"} {
		d, err := ChooseMachinesToRemove(newQuestion(desired, machines, nodes))
		if err != nil || victimNumbers(d) != want || d.Active != 6 {
			t.Errorf("size %d: %q, %v; want %q", desired, victimNumbers(d), err, want)
		}
		if desired == 0 && !strings.Contains(d.ExplainShortfall(), "may be about to register") {
			t.Errorf("%s", d.ExplainShortfall())
		}
	}
}

// TestI7UnidentifiedNodesProtectMachinesWithoutNode: a machine without a node is removed only if every node is known to be
// another machine. Otherwise its pods would be lost without a drain.
func TestI7UnidentifiedNodesProtectMachinesWithoutNode(t *testing.T) {
	for name, tt := range map[string]struct{ machineIP, providerID, nodeIP string }{
		"k3s, no address of the machine":             {"", "k3s://worker-%d", "10.0.0.%d"},
		"k3s, addresses of another network":          {"192.168.7.%d", "k3s://worker-%d", "10.0.0.%d"},
		"kind":                                       {"192.168.7.%d", "kind://docker/kind/worker-%d", "172.18.0.%d"},
		"no provider ID, addresses of other network": {"192.168.7.%d", "", "10.0.0.%d"},
		"no provider ID, IPv6 node":                  {"192.168.7.%d", "", "fd00::%d"},
		"no provider ID, no address of the machine":  {"", "", "10.0.0.%d"},
	} {
		t.Run(name, func(t *testing.T) {
			number := func(format string, i int) string {
				if strings.Contains(format, "%d") {
					return fmt.Sprintf(format, i)
				}
				return format
			}
			var machines []api.Machine
			var nodes []*corev1.Node
			for i := 1; i <= 3; i++ {
				machines = append(machines, newMachine(i, api.Running, number(tt.machineIP, i)))
				nodes = append(nodes, newNode(fmt.Sprint("worker-", i), number(tt.providerID, i), number(tt.nodeIP, i)))
			}
			d, err := ChooseMachinesToRemove(newQuestion(1, machines, nodes))
			if err != nil || len(d.Victims) > 0 || len(d.Skipped) != 3 || d.Skipped[0].Rule != ruleMayBeNode {
				t.Errorf("victims %q, skipped %+v, %v; want no victims", victimNumbers(d), d.Skipped, err)
			}
		})
	}
}

// TestI7PoolOfOtherClusterIsNotTerminated has nodes that are known to be other machines, as in another cluster. The pool's
// machines may then run pods in their own cluster.
func TestI7PoolOfOtherClusterIsNotTerminated(t *testing.T) {
	pending := newMachine(3, api.Pending, "")
	machines := []api.Machine{newMachine(1, api.Running, ""), newMachine(2, api.Running, ""), pending}
	other := newNode("other", "openstack:///"+newUUID(9), "")
	for name, nodes := range map[string][]*corev1.Node{"other nodes": {other}, "no nodes": nil} {
		d, err := ChooseMachinesToRemove(newQuestion(1, machines, nodes))
		check.Not(t, err != nil || len(d.Victims) > 0, "%s: victims %q, %v; want none", name, victimNumbers(d), err)
		check.Contains(t, d.ExplainShortfall(), newUUID(1), "check that the kubeconfig names the pool's cluster", "terminate the machines that register no node")
	}
	d, err := ChooseMachinesToRemove(newQuestion(1, machines, []*corev1.Node{other, newNode("n2", "openstack:///"+newUUID(2), "")}))
	check.Not(t, err != nil || victimNumbers(d) != "3 1", "one machine has a node: victims %q, %v", victimNumbers(d), err)
	d, err = ChooseMachinesToRemove(newQuestion(0, []api.Machine{pending}, []*corev1.Node{other}))
	check.Not(t, err != nil || victimNumbers(d) != "3", "a machine that never ran: victims %q, %v", victimNumbers(d), err)
	d, err = ChooseMachinesToRemove(newQuestion(3, machines, []*corev1.Node{other}))
	check.Not(t, err != nil || len(d.Unclear) > 0, "the pool has the size already: unclear %q, %v", d.Unclear, err)
}

func TestI5MachinesWithoutNodeKeepGroupMinimum(t *testing.T) {
	machines := []api.Machine{newMachine(1, api.Running, ""), newMachine(2, api.Running, ""), newMachine(3, api.Pending, ""), newMachine(4, api.Pending, "")}
	nodes := []*corev1.Node{newNode("n1", "openstack:///"+newUUID(1), ""), newNode("n2", "openstack:///"+newUUID(2), "")}
	q := newQuestion(2, machines, nodes)
	q.Rules.Groups = []planner.Group{{Name: "g", Nodes: []string{"n1", "n2"}, MinSize: 3}}
	q.ChooseNodes = func(int, planner.Policy, planner.Options) (*planner.VictimSelection, error) {
		return &planner.VictimSelection{}, nil
	}
	d, err := ChooseMachinesToRemove(q)
	if err != nil || victimNumbers(d) != "3" || !strings.Contains(d.ExplainShortfall(), "group g would have 2 machines left and has a minimum of 3") {
		t.Errorf("victims %q, %v, %s", victimNumbers(d), err, d.ExplainShortfall())
	}
}

func TestProtectedMachinesStayAndCount(t *testing.T) {
	blessed, silent, idle, ending := newMachine(1, api.Running, ""), newMachine(2, api.Running, ""), newMachine(3, api.Running, ""), newMachine(4, api.Terminating, "")
	blessed.Membership = &api.MembershipStatus{Active: true}
	silent.Membership = nil
	idle.Membership = &api.MembershipStatus{Active: false}
	strange := newMachine(5, "MOLTEN", "")
	machines := []api.Machine{blessed, silent, idle, ending, strange, newMachine(6, api.Running, "")}
	var nodes []*corev1.Node
	for i := 1; i <= 6; i++ {
		nodes = append(nodes, newNode(fmt.Sprint("n", i), "openstack:///"+newUUID(i), ""))
	}
	q := newQuestion(0, machines, nodes)
	q.Refused[newUUID(6)] = "its retirement was refused"
	d, err := ChooseMachinesToRemove(q)
	if err != nil || d.Active != 4 || victimNumbers(d) != "5" {
		t.Errorf("%d active, victims %q, %v", d.Active, victimNumbers(d), err)
	}
	for _, want := range []string{"n1", "n2", "n6", "its retirement was refused", "not evictable"} {
		check.Contains(t, d.ExplainShortfall(), want)
	}
}

// TestI4UnconfirmedMachineIsNotRemoved: the retirement of such a machine would be refused.
func TestI4UnconfirmedMachineIsNotRemoved(t *testing.T) {
	running := func(id, ip string) api.Machine {
		m := newMachine(1, api.Running, ip)
		m.ID = id
		return m
	}
	elsewhere := func(m api.Machine) api.Machine { m.Metadata = []byte(`{"host":{"fqdn":"Node-7"}}`); return m }
	for name, tt := range map[string]struct {
		machine      api.Machine
		node         *corev1.Node
		computerName string // path in the metadata
		reason       string // empty if it can be removed
		providerID   string // of the retirement
	}{
		"by provider ID": {newMachine(1, api.Running, ""), newNode("n1", "openstack://R/"+newUUID(1), ""), "", "", "openstack://R/" + newUUID(1)},
		"by address":     {newMachine(1, api.Running, "10.0.0.1"), newNode("n1", "", "10.0.0.1"), "", "", "openstack:///" + newUUID(1)},
		"by name":        {newMachine(1, api.Running, ""), newNode("n1", "", "10.0.0.1"), "", "", "openstack:///" + newUUID(1)},
		"by name at configured path": {
			elsewhere(newMachine(1, api.Running, "")), newNode("node-7", "", ""), "host.fqdn", "", "openstack:///" + newUUID(1),
		},
		"by address with other names": {
			newMachine(1, api.Running, "10.0.0.1"), newNode("worker", "", "10.0.0.1"), "", `has the name "` + newUUID(1) + `" and the computer name "n1"`, "",
		},
		"by provider ID with other names": {newMachine(1, api.Running, ""), newNode("worker", "openstack:///"+newUUID(1), ""), "", "", "openstack:///" + newUUID(1)},
		"by equal ID with any prefix":     {newMachine(1, api.Running, ""), newNode("worker", "vsphere://"+newUUID(1), ""), "", "", "vsphere://" + newUUID(1)},
		"spot request without instance ID": {
			running("sir-1", "10.0.0.1"), newNode("n1", "aws:///eu-west-1a/i-01234567", "10.0.0.1"), "", `the node's provider ID "aws:///eu-west-1a/i-01234567" does not identify`, "",
		},
		"node of other kind":                    {newMachine(1, api.Running, "10.0.0.1"), newNode("n1", "kind://docker/kind/n1", "10.0.0.1"), "", "but its machine " + newUUID(1) + " has openstack:///", ""},
		"equal ID with prefix of unknown cloud": {running("hcloud://123", ""), newNode("worker", "hcloud://123", ""), "", "does not identify its machine hcloud://123", ""},
		"equal ID without prefix":               {running("123", ""), newNode("worker", "123", ""), "", "does not identify its machine 123", ""},
		"equal ID, node with unknown prefix":    {running("123", ""), newNode("worker", "hcloud://123", ""), "", "does not identify its machine 123", ""},
		"machine of unknown kind":               {running("pod-1", ""), newNode("pod-1", "", ""), "", "neither the node nor its machine pod-1 has", ""},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []*corev1.Node{tt.node}
			q := newQuestion(0, []api.Machine{tt.machine}, nodes)
			paired := PairMachines([]api.Machine{tt.machine}, nodes, ServerIdentities{ComputerName: tt.computerName})
			q.Pairing = &paired
			d, err := ChooseMachinesToRemove(q)
			must.Not(t, err != nil || paired.Members[0].Node == nil, "%+v, %v; want it paired", paired, err)
			if is := &paired.Members[0]; tt.node.Name == "worker" && tt.providerID != "" && !strings.Contains(is.OtherName, "neither is the node's name") {
				t.Errorf("want a warning: %q", is.OtherName)
			}
			if tt.reason == "" && (len(d.Victims) != 1 || paired.Members[0].ProviderID != tt.providerID) {
				t.Errorf("%s; retired as %q, want %q", d.ExplainShortfall(), paired.Members[0].ProviderID, tt.providerID)
			}
			if tt.reason != "" && (len(d.Victims) > 0 || !strings.Contains(d.ExplainShortfall(), tt.reason) || !strings.Contains(d.ExplainShortfall(), ruleUnconfirmed)) {
				t.Errorf("victims %+v, %s; want %q in it", d.Victims, d.ExplainShortfall(), tt.reason)
			}
		})
	}
}

func TestUnclearPairingHasNoVictims(t *testing.T) {
	machines := []api.Machine{newMachine(1, api.Running, ""), newMachine(2, api.Running, ""), {ID: "sir-1", State: api.Requested, Membership: &api.MembershipStatus{Active: true, Evictable: true}}}
	nodes := []*corev1.Node{newNode("a", "openstack:///"+newUUID(1), ""), newNode("b", "openstack:///"+newUUID(1), "")}
	d, err := ChooseMachinesToRemove(newQuestion(0, machines, nodes))
	check.Not(t, err != nil || len(d.Victims) > 0 || len(d.Unclear) == 0, "%+v, %v", d, err)
}

func TestNewlyJoinedNodeIsNotChosen(t *testing.T) {
	machines := []api.Machine{newMachine(1, api.Running, "10.0.0.1"), newMachine(2, api.Running, "10.0.0.2")}
	nodes := []*corev1.Node{newNode("n1", "openstack:///"+newUUID(1), "10.0.0.1"), newNode("n2", "openstack:///"+newUUID(2), "10.0.0.2")}
	q := newQuestion(1, machines, nodes)
	known := q.ChooseNodes
	q.ChooseNodes = func(k int, policy planner.Policy, rules planner.Options) (*planner.VictimSelection, error) {
		if rules.ExcludedNodes["joined"] != "" {
			return known(k, policy, rules)
		}
		return &planner.VictimSelection{Victims: []planner.Evacuation{{Node: "joined"}}}, nil
	}
	if d, err := ChooseMachinesToRemove(q); err != nil || victimNumbers(d) != "1" {
		t.Errorf("%q, %v; want the machine 1 of the pool", victimNumbers(d), err)
	}
	q.ChooseNodes = func(int, planner.Policy, planner.Options) (*planner.VictimSelection, error) {
		return &planner.VictimSelection{Victims: []planner.Evacuation{{Node: "joined"}}}, nil
	}
	check.ErrorContains(t, check.Err(ChooseMachinesToRemove(q)), "node joined was chosen")
}
