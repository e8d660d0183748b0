package retirement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestI4InstanceWithOtherNamesMustKeepThem uses a cloud with other names for the instance. One of them changes once the
// Node is deleted: the instance was recreated under its provider ID.
func TestI4InstanceWithOtherNamesMustKeepThem(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *simInstance)
		want   v1alpha1.Phase
	}{
		"nothing changes":                      {func(*simInstance) {}, v1alpha1.Succeeded},
		"its computer name changes":            {func(m *simInstance) { m.ComputerName = "host-2" }, v1alpha1.Failed},
		"its name changes":                     {func(m *simInstance) { m.Name = "i-2" }, v1alpha1.Failed},
		"both change":                          {func(m *simInstance) { m.Name, m.ComputerName = "i-2", "host-2" }, v1alpha1.Failed},
		"only the case of one changes":         {func(m *simInstance) { m.ComputerName = "Host-1" }, v1alpha1.Succeeded},
		"it has the Node's name when captured": {func(m *simInstance) { m.ComputerName = "a" }, v1alpha1.Succeeded},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			m := s.instances["sim://a"]
			m.Name, m.ComputerName, m.NameMayDiffer = "i-1", "host-1", true
			s.afterNodeDeletion(func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				c.change(m)
			})
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			if rt.Status.Phase != c.want || s.deletionRequested["sim://a"] != (c.want == v1alpha1.Succeeded) {
				t.Errorf("%s: %s; deletion requested: %t, want %s", rt.Status.Phase, rt.Status.Message, s.deletionRequested["sim://a"], c.want)
			}
		}))
	}
}

// TestI4InstanceWithOtherNamesNeedsNodeProviderID sets the provider ID in the Node, in the spec only, or in another
// Node too.
func TestI4InstanceWithOtherNamesNeedsNodeProviderID(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *sim)
		spec   v1alpha1.NodeRetirementSpec
		want   v1alpha1.Phase
		code   string
	}{
		"the Node has the provider ID": {func(*sim) {}, v1alpha1.NodeRetirementSpec{}, v1alpha1.Succeeded, ""},
		"only the spec has the provider ID": {
			func(s *sim) { s.nodes["a"].Spec.ProviderID = "" }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused, NotConfirmed,
		},
		"there is no Node": {
			func(s *sim) { s.deleteNodeAsUser("a") }, v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"}, v1alpha1.Refused, NotConfirmed,
		},
		"another Node has the same provider ID": {
			func(s *sim) { s.nodes["b"].Spec.ProviderID = "sim://a" }, v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused, NotConfirmed,
		},
		"it has the name of another Node": {
			func(s *sim) { s.instances["sim://a"].ComputerName, s.nodes["b"].Spec.ProviderID = "b", "" },
			v1alpha1.NodeRetirementSpec{NodeName: "a"}, v1alpha1.Refused, NotConfirmed,
		},
	} {
		setup := func(s *sim) {
			m := s.instances["sim://a"]
			m.Name, m.ComputerName, m.NameMayDiffer = "i-1", "host-1", true
			c.change(s)
		}
		t.Run(name, outcome{setup, c.spec, c.want, c.code}.check)
	}
}

// setProviderID sets the Node's provider ID; "" means a cluster without a cloud controller.
func setProviderID(providerID string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.ProviderID = providerID }
}

// TestI4NodeWithoutProviderIDUsesSpecProviderID, but only if the cloud confirms the instance.
func TestI4NodeWithoutProviderIDUsesSpecProviderID(t *testing.T) {
	for name, tt := range map[string]struct {
		names string // spec.providerID
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":              {"sim://a", nil, v1alpha1.Succeeded, ""},
		"none":                 {"", nil, v1alpha1.Refused, NoProviderID},
		"another one":          {"sim://b", func(s *sim) { s.changeNode("b", setProviderID("")) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node":  {"sim://b", nil, v1alpha1.Refused, ProviderMismatch},
		"one of another cloud": {"aws:///x", nil, v1alpha1.Refused, ForeignMachine},
		"a missing one":        {"sim://z", nil, v1alpha1.Refused, NotConfirmed},
		"another missing one":  {"sim://z", func(s *sim) { s.changeNode("a", setUnready) }, v1alpha1.Refused, NotConfirmed},
		"one of another Node with its name": {
			"sim://b", func(s *sim) { s.instances["sim://b"].ComputerName = "a" }, v1alpha1.Refused, ProviderMismatch,
		},
	} {
		setup := func(s *sim) {
			s.changeNode("a", setProviderID(""))
			if tt.setup != nil {
				tt.setup(s)
			}
			s.addPod("a", "web", nil)
		}
		t.Run(name, outcome{setup, v1alpha1.NodeRetirementSpec{ProviderID: tt.names}, tt.phase, tt.code}.check)
	}
}

// TestI4LateProviderIDMustMatchCaptured starts a cloud controller right before each step that cannot be undone.
func TestI4LateProviderIDMustMatchCaptured(t *testing.T) {
	for _, at := range []string{"evict", "delete node"} {
		for said, phase := range map[string]v1alpha1.Phase{
			"sim://a": v1alpha1.Succeeded, "sim://b": v1alpha1.Aborted, "k3s://a": v1alpha1.Aborted,
		} {
			t.Run(at+", "+said, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
				s.changeNode("a", setProviderID(""))
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a"})
				var done atomic.Bool
				s.interceptRequests(func(moment, request string) error {
					if moment == "before" && request == at && done.CompareAndSwap(false, true) {
						s.changeNode("a", setProviderID(said))
					}
					return nil
				})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
				if rt.Status.Phase != phase || !done.Load() {
					t.Errorf("%s %q: %s, want %s", rt.Status.Phase, EarlyEndCode(rt), rt.Status.Message, phase)
				}
				if phase == v1alpha1.Succeeded {
					s.checkRetired(t, "a")
					return
				}
				check.Is(t, ProviderMismatch, EarlyEndCode(rt))
				s.checkNodeRestored(t, "a")
			}))
		}
	}
}

// setSystemUUID sets the system UUID that the kubelet has read.
func setSystemUUID(uuid string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = uuid }
}

// TestI4NodeWithoutProviderIDIsMatchedBySystemUUID covers clouds with the system UUID as instance ID.
func TestI4NodeWithoutProviderIDIsMatchedBySystemUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		uuid  string
		setup func(*sim)
		phase v1alpha1.Phase
		code  string
	}{
		"its own":                         {"a", nil, v1alpha1.Succeeded, ""},
		"in capitals":                     {"A", nil, v1alpha1.Succeeded, ""},
		"another instance's":              {"b", func(s *sim) { s.changeNode("b", setProviderID("")) }, v1alpha1.Refused, NotConfirmed},
		"the ID of no instance":           {"z", nil, v1alpha1.Refused, NotConfirmed},
		"the provider ID of another Node": {"b", nil, v1alpha1.Refused, ProviderMismatch},
		"two Nodes have it":               {"a", func(s *sim) { s.changeNode("b", setProviderID("")); s.changeNode("b", setSystemUUID("a")) }, v1alpha1.Refused, NotConfirmed},
	} {
		setup := func(s *sim) {
			s.changeNode("a", setProviderID(""))
			s.changeNode("a", setSystemUUID(tt.uuid))
			if tt.setup != nil {
				tt.setup(s)
			}
			s.addPod("a", "web", nil)
		}
		t.Run(name, outcome{setup: setup, phase: tt.phase, code: tt.code}.check)
	}
}

// TestI4NameWithDomainNeedsIDOrUUID: kubelets use their host's full name, and clouds only the first label.
func TestI4NameWithDomainNeedsIDOrUUID(t *testing.T) {
	for name, tt := range map[string]struct {
		says, uuid, names string // provider ID and system UUID of the Node, and spec.providerID
		computer          string
		phase             v1alpha1.Phase
	}{
		"the ID agrees":             {"sim://a", "", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees":           {"", "a", "", "a.example.com", v1alpha1.Succeeded},
		"the UUID agrees with spec": {"", "a", "sim://a", "a.example.com", v1alpha1.Succeeded},
		"neither is set":            {"", "", "sim://a", "a.example.com", v1alpha1.Refused},
		"another host":              {"sim://a", "a", "", "c.example.com", v1alpha1.Refused},
	} {
		setup := func(s *sim) {
			s.changeNode("a", setProviderID(tt.says))
			s.changeNode("a", setSystemUUID(tt.uuid))
			s.instances["sim://a"].Name, s.instances["sim://a"].ComputerName = "kube-worker-1", tt.computer
			s.addPod("a", "web", nil)
		}
		t.Run(name, outcome{setup, v1alpha1.NodeRetirementSpec{ProviderID: tt.names}, tt.phase, NotConfirmed}.check)
	}
}

// recreateInstance replaces an instance by another one of the same name. Its Node has not joined.
func (s *sim) recreateInstance(node, uniqueID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := newSimInstance(node)
	m.UniqueID, m.Group = uniqueID, "ci"
	s.instances["sim://"+node] = m
}

// TestI4RecreatedInstanceIsNotDeleted recreates the instance right before each step that could delete it.
func TestI4RecreatedInstanceIsNotDeleted(t *testing.T) {
	failed := func(rt *v1alpha1.NodeRetirement) bool {
		return rt.Status.Operation != nil && rt.Status.Operation.RetryAfter != nil
	}
	for name, tt := range map[string]struct {
		noIDs bool // the cloud has no unique IDs
		setup func(*sim)
		when  func(moment, request string, rt *v1alpha1.NodeRetirement) bool
		phase v1alpha1.Phase
		code  string
	}{
		"during the drain": {
			when:  func(_, request string, _ *v1alpha1.NodeRetirement) bool { return request == "evict" },
			phase: v1alpha1.Aborted, code: NotConfirmed,
		},
		"once the Node is deleted": {
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Succeeded,
		},
		"after a deletion that failed": {
			setup: func(s *sim) { s.instances["sim://a"].failingDeletions = 1 },
			when:  func(_, _ string, rt *v1alpha1.NodeRetirement) bool { return failed(rt) },
			phase: v1alpha1.Succeeded,
		},
		"gone at capture": {
			setup: func(s *sim) { s.removeInstance("a"); s.changeNode("a", setUnready) },
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Failed, code: InstanceRecovered,
		},
		"gone at capture, in a cloud without unique IDs": {
			noIDs: true,
			setup: func(s *sim) { s.removeInstance("a"); s.changeNode("a", setUnready) },
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Failed, code: InstanceRecovered,
		},
		"gone during the drain, in a cloud without unique IDs": {
			noIDs: true,
			setup: func(s *sim) {
				time.AfterFunc(time.Second, func() { s.removeInstance("a"); s.changeNode("a", setUnready) })
			},
			when: func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
				return moment == "after" && request == "delete node"
			},
			phase: v1alpha1.Failed, code: InstanceRecovered,
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.addPod("a", "web", nil)
			id := "second-a"
			if tt.noIDs {
				s.instances["sim://a"].UniqueID, id = "", ""
			}
			if tt.setup != nil {
				tt.setup(s)
			}
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			var made atomic.Bool
			s.interceptRequests(func(moment, request string) error {
				if !made.Load() && tt.when(moment, request, s.getRetirement("r")) && made.CompareAndSwap(false, true) {
					s.recreateInstance("a", id)
				}
				return nil
			})
			rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
			requirePhase(t, rt, tt.phase, tt.code)
			m := s.instances["sim://a"]
			check.Not(t, !made.Load() || m == nil || m.op != nil, "recreated: %t; the captured instance was deleted: %+v", made.Load(), m)
			if tt.phase == v1alpha1.Aborted {
				s.checkNodeRestored(t, "a")
			}
		}))
	}
}

// TestGoneInstanceThatIsListedAsDeletingIsAwaited has a cloud without unique IDs that lags behind.
func TestGoneInstanceThatIsListedAsDeletingIsAwaited(t *testing.T) {
	for name, shown := range map[string]func(moment, request string, rt *v1alpha1.NodeRetirement) bool{
		"before its Node is tainted": func(_, _ string, rt *v1alpha1.NodeRetirement) bool { return rt.Status.InstanceGone },
		"while its pods are deleted": func(_, _ string, rt *v1alpha1.NodeRetirement) bool { return rt.Status.Times.Releasing != nil },
		"once the Node is deleted": func(moment, request string, _ *v1alpha1.NodeRetirement) bool {
			return moment == "after" && request == "delete node"
		},
	} {
		t.Run(name, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.instances["sim://a"].UniqueID = ""
			retireOnNotice(t, s, "a")
			c := s.newController(t)
			s.reconcileUntilDone(ctx, c, "r", 10*time.Second)
			s.removeInstance("a")
			s.changeNode("a", setUnready)
			var once sync.Once
			s.interceptRequests(func(moment, request string) error {
				if !shown(moment, request, s.getRetirement("r")) {
					return nil
				}
				once.Do(func() {
					s.recreateInstance("a", "")
					s.mu.Lock()
					defer s.mu.Unlock()
					s.instances["sim://a"].State = cloud.Deleting
					time.AfterFunc(time.Minute, func() { s.removeInstance("a") })
				})
				return nil
			})
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			s.checkRetired(t, "a")
		}))
	}
}

// TestI4InstanceWithoutUniqueIDIsConfirmedByNames covers clouds without unique IDs, and instances captured by an older
// Slipway.
func TestI4InstanceWithoutUniqueIDIsConfirmedByNames(t *testing.T) {
	outcome{setup: func(s *sim) { s.instances["sim://a"].UniqueID = "" }, phase: v1alpha1.Succeeded}.check(t)
}

// TestI7IncompleteInstanceAnswerIsRetried returns incomplete answers once the Node is deleted.
func TestI7IncompleteInstanceAnswerIsRetried(t *testing.T) {
	for field, clear := range map[string]func(*simInstance){
		"computer name": func(m *simInstance) { m.ComputerName = "" },
		"unique ID":     func(m *simInstance) { m.UniqueID = "" },
	} {
		t.Run(field, groupOfTwo(func(t *testing.T, ctx context.Context, s *sim) {
			s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
			s.afterNodeDeletion(func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				clear(s.instances["sim://a"])
			})
			c := s.newController(t)
			rt := s.reconcileUntilDone(ctx, c, "r", 10*time.Minute)
			if rt.Status.Phase != v1alpha1.NodeDeleted || !strings.Contains(rt.Status.Message, field) || s.deletionRequested["sim://a"] {
				t.Fatalf("%s: %s, want it to retry", rt.Status.Phase, rt.Status.Message)
			}
			s.instances["sim://a"].ComputerName, s.instances["sim://a"].UniqueID = "a", "first-a"
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
			s.checkRetired(t, "a")
		}))
	}
}

// foreignInstanceID is a VM that the credential can delete and that is in no NodeGroup's cloud group.
const foreignInstanceID = "sim://db"

// forgedRetirement is a NodeRetirement as a stolen token may write it, in a cluster that may make it succeed.
type forgedRetirement struct {
	spec    v1alpha1.NodeRetirementSpec
	unsaid  bool          // the Node a has no provider ID
	alike   bool          // the foreign VM has the name of the Node a
	cluster bool          // no Node is in a group
	missing time.Duration // how long the cloud does not find the foreign VM
	from    time.Duration // and from when on
	denied  bool          // the group's disruption budget allows nothing for a while
}

func drawForgedRetirement(t *rapid.T) forgedRetirement {
	duration := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(0, 60).Draw(t, name)) * time.Second
	}
	return forgedRetirement{
		spec: v1alpha1.NodeRetirementSpec{
			NodeName:   rapid.SampledFrom([]string{"a", "db", "vm-db", "vm-a", "made-up"}).Draw(t, "node"),
			NodeUID:    types.UID(rapid.SampledFrom([]string{"", "made-up", "uid-a"}).Draw(t, "UID")),
			ProviderID: rapid.SampledFrom([]string{foreignInstanceID, foreignInstanceID, "sim://a", "sim://z", ""}).Draw(t, "provider ID"),
			Group:      rapid.SampledFrom([]string{"", "ci", "made-up"}).Draw(t, "group"),
		},
		unsaid: rapid.Bool().Draw(t, "unsaid"), alike: rapid.Bool().Draw(t, "alike"), cluster: rapid.Bool().Draw(t, "cluster"),
		missing: duration("missing"), from: duration("from"), denied: rapid.Bool().Draw(t, "denied"),
	}
}

// runAndCheck returns every violation.
func (c forgedRetirement) runAndCheck(t *testing.T) (broken []string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); synctest.Wait() }()
	s := newGroupOfTwo(t)
	s.instances[foreignInstanceID] = newSimInstance("db")
	if c.alike {
		s.instances[foreignInstanceID].ComputerName = "a"
	}
	if c.unsaid {
		s.changeNode("a", setProviderID(""))
	}
	if c.spec.NodeUID == "uid-a" {
		c.spec.NodeUID = s.getNode("a").UID
	}
	if c.denied {
		s.groups[0].Spec.MinSize = 2
		time.AfterFunc(2*time.Minute, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.groups[0].Spec.MinSize = 0
		})
	}
	began := time.Now()
	var away *simInstance
	_ = cloud.Instance{}
	s.interceptRequests(func(moment, request string) error {
		if moment != "before" || request != "cloud instance" {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		since := time.Since(began)
		switch gone := since >= c.from && since < c.from+c.missing; {
		case gone && s.instances[foreignInstanceID] != nil:
			away = s.instances[foreignInstanceID]
			delete(s.instances, foreignInstanceID)
		case !gone && away != nil:
			s.instances[foreignInstanceID], away = away, nil
		}
		return nil
	})
	s.addPod("a", "web", nil)
	s.createRetirement(t, "r", c.spec)
	s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
	if s.deletionRequested[foreignInstanceID] {
		broken = append(broken, "the foreign VM's deletion was asked for")
	}
	rt := s.getRetirement("r")
	if len(broken) > 0 && rt != nil {
		broken = append(broken, fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message))
	}
	return append(broken, s.violations...)
}

func TestI4ForgedRetirementDeletesNoForeignInstance(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawForgedRetirement(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = c.runAndCheck(t) })
		if len(broken) > 0 {
			rt.Fatalf("%+v: %s", c, strings.Join(broken, "; "))
		}
	})
}

func TestI4InstanceOfAnotherNodeIsNotDeleted(t *testing.T) {
	outcome{
		setup: func(s *sim) { s.addPod("a", "web", nil) }, spec: v1alpha1.NodeRetirementSpec{NodeName: "vm-a", ProviderID: "sim://a"},
		phase: v1alpha1.Refused, code: NodeReplaced,
	}.check(t)
}

// TestI4InstanceReregisteredUnderOtherNameIsNotDeleted registers it at every request of a retirement, before and after.
func TestI4InstanceReregisteredUnderOtherNameIsNotDeleted(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		for at, more := 1, true; more; at++ {
			withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
				s.addPod("a", "web", nil)
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
				n := 0
				s.interceptRequests(func(when, request string) error {
					s.mu.Lock()
					if when == moment {
						n++
					}
					now := when == moment && n == at
					s.mu.Unlock()
					switch when + " " + request {
					case "after list nodes", "before list pods", "after list pods", "before cloud delete": // the retirement does not check any more
					default:
						if now {
							s.reregisterAs("a", "a.example.org")
						}
					}
					return nil
				})
				rt := s.reconcileUntilDone(ctx, s.newController(t), "r", 3*time.Hour)
				s.mu.Lock()
				defer s.mu.Unlock()
				more = n >= at
				check.Not(t, len(s.violations) > 0, "%d %s: %v", at, moment, s.violations)
				if s.nodes["a.example.org"] != nil && (s.deletionRequested["sim://a"] || !rt.Status.Phase.IsFinal() || rt.Status.Phase == v1alpha1.Succeeded) {
					t.Errorf("%d %s: %s: %s, its instance's deletion requested: %t", at, moment, rt.Status.Phase, rt.Status.Message,
						s.deletionRequested["sim://a"])
				}
			})
		}
	}
}

func TestI7InstanceWithUnknownNodeIsNotDeleted(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		fails := true
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "list nodes" && fails {
				return errors.New("etcdserver: request timed out")
			}
			return nil
		})
		c := s.newController(t)
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		must.Not(t, rt.Status.Phase != v1alpha1.NodeDeleted || s.deletionRequested["sim://a"], "%s: %s", rt.Status.Phase, rt.Status.Message)
		fails = false
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
		s.checkRetired(t, "a")
	})
}

// TestInstanceWithSimilarNameToOtherNodeIsRetired retires one of two hosts with the same name in different domains.
func TestInstanceWithSimilarNameToOtherNodeIsRetired(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.addNode("worker-1.east.example.org", map[string]string{pool: "ci"})
		s.addNode("worker-1.west.example.org", map[string]string{pool: "ci"})
	}, spec: v1alpha1.NodeRetirementSpec{NodeName: "worker-1.west.example.org"}, phase: v1alpha1.Succeeded}.check(t)
}

// TestNodeSharingItsInstanceIsRefusedBeforeDrain retires a Node with a kubelet that had another name before.
func TestNodeSharingItsInstanceIsRefusedBeforeDrain(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", nil)
		s.mu.Lock()
		s.addReadyNode("a-before", "sim://a", nil)
		s.mu.Unlock()
		s.makeNodeUnready("a-before")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		rt := s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Refused, NotConfirmed)
		s.checkNodeRestored(t, "a")
		s.deleteNodeAsUser("a-before")
		s.createRetirement(t, "again", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "again", time.Hour), v1alpha1.Succeeded)
	})
}

// TestHostInOtherDomainIsNotTheInstance uses hosts without a provider ID, or with that of another cloud.
func TestHostInOtherDomainIsNotTheInstance(t *testing.T) {
	for name, id := range map[string]string{"it says nothing": "", "it is another cloud's": "aws:///x"} {
		setup := func(s *sim) {
			s.addNode("w1.rack-a", map[string]string{pool: "ci"})
			s.instances["sim://w1.rack-a"].Name = "w1.rack-a"
			s.addReadyNode("w1.rack-b", id, nil)
			if id == "" {
				s.changeNode("w1.rack-a", func(n *corev1.Node) { n.Spec.ProviderID = "" })
			}
		}
		spec := v1alpha1.NodeRetirementSpec{NodeName: "w1.rack-a", ProviderID: "sim://w1.rack-a"}
		t.Run(name, outcome{setup: setup, spec: spec, phase: v1alpha1.Succeeded}.check)
	}
}

// TestI4PossibleHostCountsAsTheInstance uses Nodes without a provider ID of the cloud.
func TestI4PossibleHostCountsAsTheInstance(t *testing.T) {
	m := cloud.Instance{ProviderID: "sim://3f", Name: "vm-1", ComputerName: "w1.rack-a"}
	for _, tt := range []struct {
		host cloud.NodeIdentity
		is   bool
	}{
		{cloud.NodeIdentity{Name: "w1"}, true}, // of any domain
		{cloud.NodeIdentity{Name: "W1.Rack-A"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-a", ProviderID: "aws:///x"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-b", SystemUUID: "3F"}, true},
		{cloud.NodeIdentity{Name: "w1.rack-b"}, false},
		{cloud.NodeIdentity{Name: "w1.rack-b", ProviderID: "aws:///x"}, false},
		{cloud.NodeIdentity{Name: "w1", ProviderID: "k3s://w1"}, true}, // set by the kubelet from its host's name
	} {
		if is := !isOnOtherInstance(tt.host, m, simCloud{}.Normalize); is != tt.is {
			t.Errorf("%+v: counts as the instance: %t", tt.host, is)
		}
	}
	m.ComputerName = "w1"
	for _, id := range []string{"", "k3s://w1.rack-b"} {
		if isOnOtherInstance(cloud.NodeIdentity{Name: "w1.rack-b", ProviderID: id}, m, simCloud{}.Normalize) {
			t.Errorf("the instance does not say its domain, and the Node of ID %q counts as another's", id)
		}
	}
}

// TestI4InstanceOfNodeWithForeignIDIsNotDeleted registers the kubelet under its host's name, with an ID that its
// distribution derives from that name.
func TestI4InstanceOfNodeWithForeignIDIsNotDeleted(t *testing.T) {
	outcome{setup: func(s *sim) {
		s.deleteNodeAsUser("a")
		s.addReadyNode("a.example.org", "k3s://a.example.org", map[string]string{pool: "ci"})
	}, spec: v1alpha1.NodeRetirementSpec{ProviderID: "sim://a"}, phase: v1alpha1.Refused, code: NodeReplaced}.check(t)
}

// TestI4NodeSharingItsInstanceDuringDrainIsRestored registers the other Node during the drain.
func TestI4NodeSharingItsInstanceDuringDrainIsRestored(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.addPod("a", "web", func(p *simPod) { p.stopsAfter = time.Minute })
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", 30*time.Second)
		s.mu.Lock()
		s.addReadyNode("a.example.org", "sim://a", nil)
		s.mu.Unlock()
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Aborted, NotConfirmed)
		s.checkNodeRestored(t, "a")
	})
}

// deleteNodeAsUser deletes a Node as a user does before its kubelet registers it again.
func (s *sim) deleteNodeAsUser(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node)
}

// newGroupAtMinSize returns a group at its minimum size and starts the retirement of a node.
func newGroupAtMinSize(t *testing.T) *sim {
	t.Helper()
	s := newGroupOfTwo(t)
	s.groups[0].Spec.MinSize = 2
	s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{
		NodeName: "a", NodeUID: s.getNode("a").UID, ProviderID: "sim://a", Group: "ci", Reason: v1alpha1.Surplus,
	})
	return s
}

func TestI5InstanceStaysIfItsNodeIsDeletedByOthers(t *testing.T) {
	for _, when := range []string{"before capture", "while waiting", "after the Node was read"} {
		t.Run(when, inVirtualTime(func(t *testing.T, ctx context.Context) {
			s := newGroupAtMinSize(t)
			c := s.newController(t)
			switch when {
			case "while waiting":
				requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Minute), v1alpha1.Pending)
				s.deleteNodeAsUser("a")
			case "before capture":
				s.deleteNodeAsUser("a")
			default:
				s.interceptRequests(func(moment, request string) error {
					if moment == "after" && request == "cached get node" {
						s.deleteNodeAsUser("a")
					}
					return nil
				})
			}
			requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Refused, BeingRemoved)
			check.Not(t, s.deletionRequested["sim://a"], "the instance was deleted, and its group is below its minimum")
		}))
	}
}

func TestI4NodeReregisteredWhileWaitingStays(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.MinSize = 2
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a"})
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.addNode("a", map[string]string{pool: "ci"})
		rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
		requirePhase(t, rt, v1alpha1.Refused, NodeReplaced)
		s.checkNodeRestored(t, "a")
	})
}

func TestNodeAndInstanceDeletedWhileWaitingSucceeds(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
		s := newGroupAtMinSize(t)
		c := s.newController(t)
		s.reconcileUntilDone(ctx, c, "r", time.Minute)
		s.deleteNodeAsUser("a")
		s.interceptRequests(func(moment, request string) error {
			if moment == "before" && request == "cloud instance" {
				return errors.New("too many requests")
			}
			return nil
		})
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Pending)
		s.interceptRequests(func(string, string) error { return nil })
		s.removeInstance("a")
		requirePhase(t, s.reconcileUntilDone(ctx, c, "r", time.Hour), v1alpha1.Succeeded)
	})
}

func TestInstanceWithoutNodeIsRetiredByProviderID(t *testing.T) {
	withGroupOfTwo(t, func(t *testing.T, ctx context.Context, s *sim) {
		s.groups[0].Spec.MinSize = 1
		s.deleteNodeAsUser("a")
		s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", ProviderID: "sim://a", Group: "ci"})
		requirePhase(t, s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour), v1alpha1.Succeeded)
		s.mu.Lock()
		defer s.mu.Unlock()
		if (simCloud{s}).finishOperations(); s.instances["sim://a"] != nil && s.instances["sim://a"].State != cloud.Deleting {
			t.Error("the instance stays")
		}
	})
}
