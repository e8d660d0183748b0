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
)

var uuid, machine, node = pooltest.UUID, pooltest.Machine, pooltest.Node

// asked is a machine that its cloud was only asked for.
func asked(at time.Time) api.Machine {
	return api.Machine{ID: "sir-1", State: api.Requested, RequestTime: &at}
}

// young is a node that has just come.
func young(name, providerID string) *corev1.Node {
	n := node(name, providerID, "")
	n.CreationTimestamp = metav1.Now()
	return n
}

func TestMachinesAndNodesArePairedUnambiguouslyOrNotAtAll(t *testing.T) {
	one := func(ip string) api.Machine { return machine(1, api.Running, ip) }
	for name, tt := range map[string]struct {
		machines []api.Machine
		nodes    []*corev1.Node
		pairs    string // of machine 1
		unclear  string
		doubt    string
	}{
		"by provider ID": {[]api.Machine{one("")}, []*corev1.Node{node("a", "openstack:///"+uuid(1), "")}, "a/provider ID", "", ""},
		"by provider ID, whatever the addresses": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{node("a", "openstack://R/"+uuid(1), "10.9.9.9")}, "a/provider ID", "", "",
		},
		"by address, where the node has no ID": {[]api.Machine{one("10.0.0.1")}, []*corev1.Node{node("a", "", "10.0.0.1")}, "a/address", "", ""},
		"by IPv6 address in another spelling":  {[]api.Machine{one("2001:db8::1")}, []*corev1.Node{node("a", "", "2001:0db8:0::1")}, "a/address", "", ""},
		"by name, where nothing else says": {
			[]api.Machine{{ID: "pod-1", State: api.Running}}, []*corev1.Node{node("pod-1", "kind://x", "")}, "pod-1/name", "", "",
		},
		"by external ID, as before Kubernetes 1.11": {
			[]api.Machine{one("")}, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{DoNotUseExternalID: uuid(1)}}}, "a/external ID", "", "",
		},
		"two nodes are one machine": {
			[]api.Machine{one("")},
			[]*corev1.Node{node("a", "openstack:///"+uuid(1), ""), node("b", "openstack:///"+uuid(1), "")},
			"a/provider ID", "both say that they are machine", "",
		},
		"a node has another machine's address": {
			[]api.Machine{one("10.0.0.1"), machine(2, api.Running, "10.0.0.2")},
			[]*corev1.Node{node("a", "openstack:///"+uuid(1), "10.0.0.2")},
			"a/provider ID", "has the address 10.0.0.2 of machine " + uuid(2), "",
		},
		"a node of elsewhere has the machine's address": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{node("a", "openstack:///"+uuid(9), "10.0.0.1")}, "", "has the address 10.0.0.1", "",
		},
		"an address of two nodes": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{node("a", "", "10.0.0.1"), node("b", "", "10.0.0.1")}, "", "is node a or node b", "may be it",
		},
		"an address of two machines": {
			[]api.Machine{one("10.0.0.1"), machine(2, api.Running, "10.0.0.1")}, []*corev1.Node{node("a", "", "10.0.0.1")}, "", "is machine", "may be it",
		},
		"the loopback address says nothing":  {[]api.Machine{one("127.0.0.1")}, []*corev1.Node{node("a", "", "127.0.0.1")}, "", "", "may be it"},
		"a machine twice":                    {[]api.Machine{one(""), one("")}, nil, "", "which are one machine", ""},
		"no node, and none that could be":    {[]api.Machine{one("")}, []*corev1.Node{node("a", "openstack:///"+uuid(9), "")}, "", "", ""},
		"no node, and one of another cloud":  {[]api.Machine{one("")}, []*corev1.Node{node("a", "gce://p/z/n", "")}, "", "", ""},
		"no node, and one that says nothing": {[]api.Machine{one("")}, []*corev1.Node{node("a", "", "")}, "", "", "node a, which has no provider ID, may be it"},
		"no node, and one with another address, perhaps of a second network": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{node("a", "", "10.0.0.9")}, "", "", "node a, which has no provider ID, may be it",
		},
		"no node, and one with another address, perhaps the same machine's IPv6": {
			[]api.Machine{one("10.0.0.1")}, []*corev1.Node{node("a", "", "2001:db8::1")}, "", "", "node a, which has no provider ID, may be it",
		},
		"no node, and one of k3s": {
			[]api.Machine{one("")}, []*corev1.Node{node("a", "k3s://a", "10.0.0.1")}, "", "", `node a, whose provider ID "k3s://a" does not say`,
		},
		"no node, and one of k3s with another address": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{node("a", "k3s://a", "10.0.0.1")}, "", "", `node a, whose provider ID "k3s://a" does not say`,
		},
		"no node, and one of kind": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{node("a", "kind://docker/kind/a", "172.18.0.2")}, "", "", "node a, whose provider ID",
		},
		"no node, and one whose ID is of its own cloud and cannot be read": {
			[]api.Machine{one("192.168.7.1")}, []*corev1.Node{node("a", "openstack:///a", "10.0.0.1")}, "", "", "node a, whose provider ID",
		},
		"no node, and one of another cloud whose ID cannot be read": {
			[]api.Machine{one("")}, []*corev1.Node{node("a", "aws:///eu-west-1a/fargate-ip-10-0-0-1", "")}, "", "", "",
		},
		"no node, and one that nothing clears, though another machine has one": {
			[]api.Machine{machine(2, api.Running, ""), one("")},
			[]*corev1.Node{node("a", "k3s://a", ""), node("b", "openstack:///"+uuid(1), "")},
			"", "", "node a, whose provider ID",
		},
		"a machine of no known cloud, and a node of one": {
			[]api.Machine{{ID: "pod-1", State: api.Running}},
			[]*corev1.Node{node("a", "openstack:///"+uuid(9), "")},
			"", "", "node a, which says that it is openstack:///" + uuid(9) + ", may be it",
		},
		"only asked for": {[]api.Machine{asked(time.Now())}, []*corev1.Node{node("a", "", "")}, "", "", ""},
		"asked for, and perhaps met since, by any cloud's node": {
			[]api.Machine{asked(time.Now().Add(-time.Hour))}, []*corev1.Node{young("a", "aws:///eu-west-1a/i-0123456789abcdef0")}, "", "", "node a, which has come since",
		},
		"asked for at some time": {[]api.Machine{{ID: "sir-1", State: api.Requested}}, []*corev1.Node{young("a", "")}, "", "", "node a, which has come since"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pair(tt.machines, tt.nodes, ServerIdentities{})
			m := p.Find(tt.machines[0].ID)
			got := ""
			if m.Node != nil {
				got = m.Node.Name + "/" + string(m.By)
			}
			if got != tt.pairs {
				t.Errorf("paired with %q, want %q", got, tt.pairs)
			}
			unclear := strings.Join(p.Unclear, "; ")
			if (unclear == "") != (tt.unclear == "") || !strings.Contains(unclear, tt.unclear) {
				t.Errorf("unclear: %q, want %q", unclear, tt.unclear)
			}
			if m.Doubt != tt.doubt && (tt.doubt == "" || !strings.Contains(m.Doubt, tt.doubt)) {
				t.Errorf("doubt: %q, want %q", m.Doubt, tt.doubt)
			}
		})
	}
}

// TestWhateverTheMachinesAndNodesSayNobodyIsPairedTwice pairs at random.
func TestWhateverTheMachinesAndNodesSayNobodyIsPairedTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.IntRange(1, 4)
		ip := rapid.SampledFrom([]string{"", "10.0.0.1", "10.0.0.2", "10.0.0.3", "x"})
		var machines []api.Machine
		for range rapid.IntRange(0, 5).Draw(t, "machines") {
			m := machine(id.Draw(t, "id"), rapid.SampledFrom([]api.MachineState{api.Requested, api.Pending, api.Running, api.Terminating}).Draw(t, "state"), ip.Draw(t, "ip"))
			machines = append(machines, m)
		}
		var nodes []*corev1.Node
		for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
			providerID := rapid.SampledFrom([]string{"", "openstack:///" + uuid(1), "openstack:///" + uuid(2), "openstack://R/" + uuid(3), "gce://p/z/n", "?"}).Draw(t, "provider ID")
			nodes = append(nodes, node(fmt.Sprint("n", i), providerID, ip.Draw(t, "ip")))
		}
		p := Pair(machines, nodes, ServerIdentities{})
		taken := map[string]bool{}
		for _, m := range p.Members {
			if m.Node == nil {
				continue
			}
			if taken[m.Node.Name] {
				t.Fatalf("node %s is paired twice", m.Node.Name)
			}
			taken[m.Node.Name] = true
			if nodeID, err := (ServerIdentities{}).NodeIdentity(m.Node.Spec.ProviderID); err == nil {
				if is, ok := (ServerIdentities{}).Identity(m.Machine); ok && is != nodeID {
					t.Fatalf("machine %s is paired with a node that says it is %s", is, nodeID)
				}
			}
		}
		// A node that says it is a machine of the pool is paired, or something is unclear.
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

// ask makes a Question about machines that each have a node, choosing them by name.
func ask(desired int, machines []api.Machine, nodes []*corev1.Node) Question {
	p := Pair(machines, nodes, ServerIdentities{})
	return Question{
		Desired: desired, Pairing: &p, Leaving: map[string]bool{}, Refused: map[string]string{}, Registration: 15 * time.Minute, Now: time.Now(), Nodes: nodes,
		Choose: func(k int, _ planner.Policy, rules planner.Options) (*planner.Selection, error) {
			s := &planner.Selection{}
			for _, n := range nodes {
				if rules.Excluded[n.Name] == "" && len(s.Victims) < k {
					s.Victims = append(s.Victims, planner.Evacuation{Node: n.Name})
				}
			}
			return s, nil
		},
	}
}

func victims(d *Decision) string {
	var all []string
	for _, v := range d.Victims {
		all = append(all, v.Machine[max(0, len(v.Machine)-1):])
	}
	return strings.Join(all, " ")
}

func TestMachinesThatAreLeastThereGoFirst(t *testing.T) {
	asked := api.Machine{ID: "i-requested9", State: api.Requested, Membership: &api.MembershipStatus{Active: true, Evictable: true}}
	young := machine(4, api.Running, "10.0.0.4")
	now := time.Now()
	young.LaunchTime = &now
	old := machine(5, api.Running, "10.0.0.5")
	machines := []api.Machine{machine(1, api.Running, "10.0.0.1"), machine(2, api.Running, "10.0.0.2"), machine(3, api.Pending, "10.0.0.3"), young, old, asked}
	nodes := []*corev1.Node{node("n1", "openstack:///"+uuid(1), "10.0.0.1"), node("n2", "openstack:///"+uuid(2), "10.0.0.2")}
	for desired, want := range map[int]string{6: "", 7: "", 5: "9", 4: "9 3", 3: "9 3 5", 2: "9 3 5 1", 1: "9 3 5 1 2", 0: "9 3 5 1 2"} {
		d, err := Decide(ask(desired, machines, nodes))
		if err != nil || victims(d) != want || d.Active != 6 {
			t.Errorf("size %d: %q, %v; want %q", desired, victims(d), err, want)
		}
		if desired == 0 && !strings.Contains(d.Reasons(), "may be about to register") {
			t.Errorf("%s", d.Reasons())
		}
	}
}

// TestI7AMachineIsWithoutANodeOnlyWhereEveryNodeIsKnownToBeAnother: what runs on one that is not would be lost undrained.
func TestI7AMachineIsWithoutANodeOnlyWhereEveryNodeIsKnownToBeAnother(t *testing.T) {
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
				machines = append(machines, machine(i, api.Running, number(tt.machineIP, i)))
				nodes = append(nodes, node(fmt.Sprint("worker-", i), number(tt.providerID, i), number(tt.nodeIP, i)))
			}
			d, err := Decide(ask(1, machines, nodes))
			if err != nil || len(d.Victims) > 0 || len(d.Passed) != 3 || d.Passed[0].Rule != ruleDoubt {
				t.Errorf("victims %q, passed %+v, %v; want none to go", victims(d), d.Passed, err)
			}
		})
	}
}

func TestI5MachinesWithoutANodeKeepTheMinimumOfTheirGroup(t *testing.T) {
	machines := []api.Machine{machine(1, api.Running, ""), machine(2, api.Running, ""), machine(3, api.Pending, ""), machine(4, api.Pending, "")}
	nodes := []*corev1.Node{node("n1", "openstack:///"+uuid(1), ""), node("n2", "openstack:///"+uuid(2), "")}
	q := ask(2, machines, nodes)
	q.Rules.Groups = []planner.Group{{Name: "g", Nodes: []string{"n1", "n2"}, MinSize: 3}}
	q.Choose = func(int, planner.Policy, planner.Options) (*planner.Selection, error) {
		return &planner.Selection{}, nil
	}
	d, err := Decide(q)
	if err != nil || victims(d) != "3" || !strings.Contains(d.Reasons(), "group g would have 2 machines left and has a minimum of 3") {
		t.Errorf("victims %q, %v, %s", victims(d), err, d.Reasons())
	}
}

func TestWhoIsNotToGoDoesNotAndCountsAllTheSame(t *testing.T) {
	blessed, silent, idle, ending := machine(1, api.Running, ""), machine(2, api.Running, ""), machine(3, api.Running, ""), machine(4, api.Terminating, "")
	blessed.Membership = &api.MembershipStatus{Active: true}
	silent.Membership = nil
	idle.Membership = &api.MembershipStatus{Active: false}
	strange := machine(5, "MOLTEN", "")
	machines := []api.Machine{blessed, silent, idle, ending, strange, machine(6, api.Running, "")}
	var nodes []*corev1.Node
	for i := 1; i <= 6; i++ {
		nodes = append(nodes, node(fmt.Sprint("n", i), "openstack:///"+uuid(i), ""))
	}
	q := ask(0, machines, nodes)
	q.Refused[uuid(6)] = "its retirement was refused"
	d, err := Decide(q)
	if err != nil || d.Active != 4 || victims(d) != "5" {
		t.Errorf("%d active, victims %q, %v", d.Active, victims(d), err)
	}
	for _, want := range []string{"n1", "n2", "n6", "its retirement was refused", "not evictable"} {
		if !strings.Contains(d.Reasons(), want) {
			t.Errorf("%s does not say %q", d.Reasons(), want)
		}
	}
}

// TestI4AMachineGoesOnlyIfItsCloudCanConfirmThatItIsItsNodes: the retirement of any other would be refused.
func TestI4AMachineGoesOnlyIfItsCloudCanConfirmThatItIsItsNodes(t *testing.T) {
	running := func(id, ip string) api.Machine {
		m := machine(1, api.Running, ip)
		m.ID = id
		return m
	}
	elsewhere := func(m api.Machine) api.Machine { m.Metadata = []byte(`{"host":{"fqdn":"Node-7"}}`); return m }
	for name, tt := range map[string]struct {
		machine      api.Machine
		node         *corev1.Node
		computerName string // where it is
		why          string // empty is that it can go
		names        string // the machine to the retirement
	}{
		"by provider ID": {machine(1, api.Running, ""), node("n1", "openstack://R/"+uuid(1), ""), "", "", "openstack://R/" + uuid(1)},
		"by address":     {machine(1, api.Running, "10.0.0.1"), node("n1", "", "10.0.0.1"), "", "", "openstack:///" + uuid(1)},
		"by name":        {machine(1, api.Running, ""), node("n1", "", "10.0.0.1"), "", "", "openstack:///" + uuid(1)},
		"by a name that is where the pool says": {
			elsewhere(machine(1, api.Running, "")), node("node-7", "", ""), "host.fqdn", "", "openstack:///" + uuid(1),
		},
		"by address, and of other names": {
			machine(1, api.Running, "10.0.0.1"), node("worker", "", "10.0.0.1"), "", `has the name "` + uuid(1) + `" and the computer name "n1"`, "",
		},
		"by provider ID, and of other names":    {machine(1, api.Running, ""), node("worker", "openstack:///"+uuid(1), ""), "", "", "openstack:///" + uuid(1)},
		"by an equal provider ID of any prefix": {machine(1, api.Running, ""), node("worker", "vsphere://"+uuid(1), ""), "", "", "vsphere://" + uuid(1)},
		"a spot request that does not say its instance": {
			running("sir-1", "10.0.0.1"), node("n1", "aws:///eu-west-1a/i-01234567", "10.0.0.1"), "", `the node's provider ID is "aws:///eu-west-1a/i-01234567", by which`, "",
		},
		"a node of another kind":                       {machine(1, api.Running, "10.0.0.1"), node("n1", "kind://docker/kind/n1", "10.0.0.1"), "", "that of its machine " + uuid(1) + " is openstack:///", ""},
		"an equal provider ID, its cloud's prefix too": {running("hcloud://123", ""), node("worker", "hcloud://123", ""), "", "by which its machine hcloud://123 is not known", ""},
		"an equal provider ID without a prefix":        {running("123", ""), node("worker", "123", ""), "", "by which its machine 123 is not known", ""},
		"an equal ID of a cloud that is not known":     {running("123", ""), node("worker", "hcloud://123", ""), "", "by which its machine 123 is not known", ""},
		"a machine of no known kind":                   {running("pod-1", ""), node("pod-1", "", ""), "", "neither the node nor its machine pod-1 says", ""},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []*corev1.Node{tt.node}
			q := ask(0, []api.Machine{tt.machine}, nodes)
			paired := Pair([]api.Machine{tt.machine}, nodes, ServerIdentities{ComputerName: tt.computerName})
			q.Pairing = &paired
			d, err := Decide(q)
			if err != nil || paired.Members[0].Node == nil {
				t.Fatalf("%+v, %v; want it paired", paired, err)
			}
			if is := &paired.Members[0]; tt.node.Name == "worker" && tt.names != "" && !strings.Contains(is.OtherName, "neither of which is the node's name") {
				t.Errorf("it is not warned of: %q", is.OtherName)
			}
			if tt.why == "" && (len(d.Victims) != 1 || paired.Members[0].ProviderID != tt.names) {
				t.Errorf("%s; retired as %q, want %q", d.Reasons(), paired.Members[0].ProviderID, tt.names)
			}
			if tt.why != "" && (len(d.Victims) > 0 || !strings.Contains(d.Reasons(), tt.why) || !strings.Contains(d.Reasons(), ruleUnconfirmed)) {
				t.Errorf("victims %+v, %s; want it to say %q", d.Victims, d.Reasons(), tt.why)
			}
		})
	}
}

func TestWhatIsUnclearHasNoVictims(t *testing.T) {
	machines := []api.Machine{machine(1, api.Running, ""), machine(2, api.Running, ""), {ID: "sir-1", State: api.Requested, Membership: &api.MembershipStatus{Active: true, Evictable: true}}}
	nodes := []*corev1.Node{node("a", "openstack:///"+uuid(1), ""), node("b", "openstack:///"+uuid(1), "")}
	d, err := Decide(ask(0, machines, nodes))
	if err != nil || len(d.Victims) > 0 || len(d.Unclear) == 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestANodeThatHasJustJoinedIsNotChosen(t *testing.T) {
	machines := []api.Machine{machine(1, api.Running, "10.0.0.1"), machine(2, api.Running, "10.0.0.2")}
	nodes := []*corev1.Node{node("n1", "openstack:///"+uuid(1), "10.0.0.1"), node("n2", "openstack:///"+uuid(2), "10.0.0.2")}
	q := ask(1, machines, nodes)
	known := q.Choose
	q.Choose = func(k int, policy planner.Policy, rules planner.Options) (*planner.Selection, error) {
		if rules.Excluded["joined"] != "" {
			return known(k, policy, rules)
		}
		return &planner.Selection{Victims: []planner.Evacuation{{Node: "joined"}}}, nil
	}
	if d, err := Decide(q); err != nil || victims(d) != "1" {
		t.Errorf("%q, %v; want the machine 1 of the pool", victims(d), err)
	}
	q.Choose = func(int, planner.Policy, planner.Options) (*planner.Selection, error) {
		return &planner.Selection{Victims: []planner.Evacuation{{Node: "joined"}}}, nil
	}
	if _, err := Decide(q); err == nil || !strings.Contains(err.Error(), "node joined was chosen") {
		t.Errorf("%v, want an error that names the node", err)
	}
}
