package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// group is a cloud with one group of machines, of which those that grow are Pending.
type group struct {
	cloud.Provider
	machines []cloud.Instance
	refuses  error
	deleted  []string
	silent   string // the provider ID of which it does not say whose it is
	strict   bool   // it knows its own provider IDs alone
}

func (*group) Name() string { return "openstack" }

func (g *group) Normalize(id string) (string, error) {
	if id == g.silent {
		return "", &cloud.UnansweredError{Err: errors.New("the plugin hangs")}
	}
	if g.strict && !strings.HasPrefix(id, "openstack:///") {
		return "", &cloud.RefusedError{Reason: cloud.Invalid, Err: errors.New("want openstack:///UUID")}
	}
	return id, nil
}

func (g *group) Group(context.Context, string) (cloud.Group, error) {
	return cloud.Group{Name: "web", Size: len(g.machines)}, nil
}

func (g *group) Instances(context.Context, string) ([]cloud.Instance, error) {
	return slices.Clone(g.machines), nil
}

func (g *group) Grow(_ context.Context, _ string, o cloud.Order) (cloud.Operation, error) {
	for range o.Count {
		if g.refuses != nil {
			return cloud.Operation{}, g.refuses
		}
		g.add(len(g.machines)+1, cloud.Pending)
	}
	return cloud.Operation{}, nil
}

func (g *group) Delete(_ context.Context, id string) (cloud.Operation, error) {
	g.deleted = append(g.deleted, id)
	g.machines = slices.DeleteFunc(g.machines, func(i cloud.Instance) bool { return i.ProviderID == id })
	return cloud.Operation{}, nil
}

func (g *group) Status(context.Context, cloud.Operation) (cloud.Status, error) {
	return cloud.Status{Done: true}, nil
}

func (g *group) add(i int, state cloud.State) {
	g.machines = append(g.machines, cloud.Instance{ProviderID: "openstack:///" + uuid(i), Name: fmt.Sprint("n", i), State: state, Created: time.Now()})
}

// serveNatively runs a test with a NodeGroup of n machines that each have a node, and of at most so many.
func serveNatively(t *testing.T, n int, maximum int32, do func(t *testing.T, s *sim, g *group, pool *Native)) {
	t.Helper()
	simulate(t, n, func(t *testing.T, s *sim) {
		object := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.NodeGroupSpec{Maximum: &maximum}}
		if err := s.objects.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		g := &group{}
		for i := 1; i <= n; i++ {
			g.add(i, cloud.Running)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		c, watches := s.cluster(ctx, slog.New(slog.DiscardHandler))
		defer func() { stop(); watches.Shutdown() }()
		pool := NewNative(c, "web", "slipway", 0)
		pool.group, pool.provider = "web", g
		pool.unread.Store(false)
		do(t, s, g, pool)
	})
}

func TestAMachineThatItsCloudCallsFailedIsThereAndCanGo(t *testing.T) {
	serveNatively(t, 3, 10, func(t *testing.T, s *sim, g *group, pool *Native) {
		g.machines[1].State = cloud.Failed
		g.add(4, cloud.Failed)
		seen, err := pool.Pool(t.Context())
		if err != nil || seen.Machines[1].State != api.Running || seen.Machines[1].ServiceState != api.Unhealthy || seen.Machines[3].State != api.Rejected {
			t.Fatalf("%+v, %v; want the one with a node to run, and the other one to be rejected", seen.Machines, err)
		}
		size, err := pool.Size(t.Context())
		if err != nil || size.Desired != 3 || size.Active != 3 {
			t.Errorf("%+v, %v; want the rejected one not to count", size, err)
		}
		if err := pool.SetDesiredSize(t.Context(), 3); err != nil || len(g.machines) != 4 {
			t.Errorf("setting the size that it has: %v, %d machines", err, len(g.machines))
		}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		// It does not count, so that no other one comes in its place.
		ends(t, a, Update{Kind: Terminate, MachineID: "openstack:///" + uuid(4)}, time.Minute, Done)
		if len(g.deleted) != 1 || len(g.machines) != 3 {
			t.Errorf("deleted %v", g.deleted)
		}
		ticket, err := a.Submit(t.Context(), Update{Kind: Terminate, MachineID: "openstack:///" + uuid(2), Decrement: true}, a.JudgeMachine)
		if err != nil {
			t.Fatalf("the one with a node: %v", err)
		}
		s.passes(5 * time.Second)
		if rts := s.retirements(); len(rts) != 1 || rts[0].Spec.NodeName != "n2" {
			t.Errorf("%+v; want n2 to be retired", rts)
		}
		g.machines = slices.Delete(g.machines, 1, 2)
		s.retired(s.retirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
		if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != Done {
			t.Errorf("%+v, %v", over, err)
		}
	})
}

// TestI7ANodeThatSaysNothingKeepsANodeGroupsMachines, be it that its machine runs or that some change of it has failed.
func TestI7ANodeThatSaysNothingKeepsANodeGroupsMachines(t *testing.T) {
	serveNatively(t, 0, 10, func(t *testing.T, s *sim, g *group, pool *Native) {
		g.strict = true
		g.add(1, cloud.Running)
		g.add(2, cloud.Failed)
		for name, id := range map[string]string{"w1": "k3s://w1", "w2": "k3s://w2", "e": "aws:///eu-west-1a/i-01234567"} {
			if _, err := s.kube.CoreV1().Nodes().Create(t.Context(), node(name, id, "10.0.0.1"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		s.passes(time.Hour)
		ends(t, a, Update{Kind: SetSize, DesiredSize: 0}, time.Hour, NotPossible, "machine-may-be-a-node", "k3s://w1")
		for i := 1; i <= 2; i++ {
			ends(t, a, Update{Kind: Terminate, MachineID: "openstack:///" + uuid(i)}, time.Hour, NotPossible, "machine-may-be-a-node", "k3s://w1")
		}
		if len(g.deleted) > 0 {
			t.Errorf("deleted %v", g.deleted)
		}
		if pool.Elsewhere("openstack:///"+uuid(1), "weird://x") || pool.Elsewhere("openstack:///"+uuid(1), "openstack:///"+uuid(9)) {
			t.Error("a node of no known cloud, and one of the same, are taken for those of another")
		}
		pool.others = []cloud.Provider{&group{}}
		if !pool.Elsewhere("openstack:///"+uuid(1), "weird://x") {
			t.Error("a node of another cloud that is configured may be a machine of this one")
		}
	})
}

// TestI7NothingIsKnownOfAMachineWhoseNodeCannotBeTold: it may have been detached, or be kept.
func TestI7NothingIsKnownOfAMachineWhoseNodeCannotBeTold(t *testing.T) {
	serveNatively(t, 2, 10, func(t *testing.T, s *sim, g *group, pool *Native) {
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		g.silent = "openstack:///" + uuid(2)
		ends(t, a, Update{Kind: Terminate, MachineID: g.silent, Decrement: true}, time.Hour, BackendUnavailable, "n2", "the plugin hangs")
		ends(t, a, Update{Kind: SetSize, DesiredSize: 1}, time.Hour, BackendUnavailable, "n2", "the plugin hangs")
		if len(g.deleted) > 0 || len(s.retirements()) > 0 {
			t.Errorf("deleted %q, %d retirements; want nothing to go", g.deleted, len(s.retirements()))
		}
	})
}

func TestI5AMachineThatIsReplacedKeepsTheMaximumOfItsGroup(t *testing.T) {
	quota := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("the quota is used up")}
	for name, tt := range map[string]struct {
		maximum int32
		refuses error
		reason  cloud.Refusal
	}{"the maximum": {2, nil, cloud.AtLimit}, "no quota": {10, quota, cloud.NoQuota}} {
		serveNatively(t, 2, tt.maximum, func(t *testing.T, s *sim, g *group, pool *Native) {
			g.refuses = tt.refuses
			id := "openstack:///" + uuid(1)
			for what, err := range map[string]error{
				"detached": pool.Detach(t.Context(), api.Removal{MachineID: id}),
				"inactive": pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: id, MembershipStatus: waiting}),
			} {
				if cloud.RefusalOf(err) != tt.reason {
					t.Errorf("%s, %s: %v; want %s", name, what, err, tt.reason)
				}
			}
			node, err := s.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil || len(node.Annotations) > 0 || len(g.machines) != 2 {
				t.Errorf("%s: %v, %d machines, %v; want nothing changed", name, node.Annotations, len(g.machines), err)
			}
		})
	}
	serveNatively(t, 2, 3, func(t *testing.T, _ *sim, g *group, pool *Native) {
		if err := pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + uuid(1)}); err != nil || len(g.machines) != 3 {
			t.Errorf("%v, %d machines; want it replaced", err, len(g.machines))
		}
		if err := pool.SetDesiredSize(t.Context(), 3); cloud.RefusalOf(err) != cloud.AtLimit {
			t.Errorf("a size above the maximum, with what was detached: %v", err)
		}
	})
}

// TestWhatAClientKeepsIsKeptFromOthersAndNotFromItself has the machine of a client that it has blessed, or detached, and what
// the client itself may have done with it.
func TestWhatAClientKeepsIsKeptFromOthersAndNotFromItself(t *testing.T) {
	serveNatively(t, 3, 10, func(t *testing.T, s *sim, _ *group, pool *Native) {
		blessed, detached := "openstack:///"+uuid(1), "openstack:///"+uuid(2)
		keep := api.SetMembershipStatus{MachineID: blessed, MembershipStatus: api.MembershipStatus{Active: true}}
		if err := errors.Join(pool.SetMembershipStatus(t.Context(), keep), pool.Detach(t.Context(), api.Removal{MachineID: detached, Decrement: true})); err != nil {
			t.Fatal(err)
		}
		holder := func(name string) string {
			n, err := s.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return retirement.HeldBy(n.Annotations, n.CreationTimestamp.Time, time.Now())
		}
		for name, by := range map[string]string{"n1": drainability.Membership, "n2": drainability.Detached, "n3": ""} {
			if got := holder(name); got != by {
				t.Errorf("%s is held by %q, want %q", name, got, by)
			}
		}
		a := s.replica("a", func(o *UpdaterOptions) { o.Backend = pool })
		ends(t, a, Update{Kind: Terminate, MachineID: blessed}, time.Minute, NotPossible, "not evictable")
		ends(t, a, Update{Kind: Terminate, MachineID: detached}, time.Minute, NotFound)
		ticket, err := a.Submit(t.Context(), Update{Kind: Dispose, MachineID: blessed}, a.JudgeMachine)
		if err != nil {
			t.Fatalf("the client itself makes it disposable: %v", err)
		}
		s.passes(5 * time.Second)
		rts := s.retirements()
		if len(rts) != 1 || rts[0].Spec.NodeName != "n1" || holder("n1") != "" {
			t.Fatalf("%+v, n1 is held by %q; want n1 to be retired, and to be let go for that", rts, holder("n1"))
		}
		s.retired(rts[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Refused })
		if over, err := ticket.Wait(t.Context()); err != nil || over.Outcome.Result != NotPossible || holder("n1") != drainability.Membership {
			t.Errorf("%+v, %v, n1 is held by %q; want it kept as before", over, err, holder("n1"))
		}
	})
}

func TestTimesAreInTheFormOfTheAPI(t *testing.T) {
	form := regexp.MustCompile(`"(timestamp|requestTime|launchTime)":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("CET", 3600))
	for want, object := range map[int]any{
		3: api.Pool{Timestamp: at, Machines: []api.Machine{{ID: "m", RequestTime: &at, LaunchTime: &at}}}, 1: api.Size{Timestamp: at.Add(123456)},
	} {
		raw, err := json.Marshal(object)
		if n := len(form.FindAll(raw, -1)); err != nil || n != want {
			t.Errorf("%s, %v", raw, err)
		}
	}
	raw, err := json.Marshal(api.Machine{ID: "m", State: api.Running})
	var read map[string]any
	if err = errors.Join(err, json.Unmarshal(raw, &read)); err != nil || read["id"] != "m" || read["machineState"] != "RUNNING" || len(read) != 9 {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestAPathOfTheAPIIsThereWhateverTheMethod asks in ways that the API does not have.
func TestAPathOfTheAPIIsThereWhateverTheMethod(t *testing.T) {
	serveNatively(t, 1, 10, func(t *testing.T, _ *sim, _ *group, pool *Native) {
		pool.started.Store(&isStarted{true, time.Now().Add(time.Hour)})
		s := newServer("web", pool, pool, nil, false)
		for request, want := range map[string]string{
			"GET /pool/terminate": "405 POST, OPTIONS", "HEAD /start": "405 POST, OPTIONS", "POST /pool": "405 GET, HEAD, OPTIONS",
			"POST /status": "405 GET, HEAD, OPTIONS", "OPTIONS /pool/size": "204 GET, HEAD, POST, OPTIONS", "OPTIONS /x": "404 ", "GET /x": "404 ",
			"POST /x": "404 ", "HEAD /pool": "200 ",
		} {
			method, path, _ := strings.Cut(request, " ")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			if got := fmt.Sprint(w.Code, " ", w.Header().Get("Allow")); got != want {
				t.Errorf("%s: %s, want %s", request, got, want)
			}
		}
	})
}

// TestAMachineIsReplacedOnceHoweverOftenItsNodeCannotBeWrittenOn has clients ask again and again.
func TestAMachineIsReplacedOnceHoweverOftenItsNodeCannotBeWrittenOn(t *testing.T) {
	for name, tt := range map[string]struct {
		dryRun bool // it is found out before
		grown  int
	}{"before": {true, 0}, "after": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			serveNatively(t, 2, 10, func(t *testing.T, s *sim, g *group, pool *Native) {
				away := true
				s.kube.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if dry := len(a.(clienttesting.PatchActionImpl).PatchOptions.DryRun) > 0; away && (tt.dryRun || !dry) {
						return true, nil, errCut
					}
					return false, nil, nil
				})
				for i, change := range []func() error{
					func() error { return pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + uuid(1)}) },
					func() error {
						return pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: "openstack:///" + uuid(2), MembershipStatus: waiting})
					},
				} {
					has := len(g.machines)
					away = true
					for range 3 {
						if err := change(); ResultOf(err) != ClusterUnavailable {
							t.Errorf("change %d: %v", i, err)
						}
					}
					if grown := len(g.machines) - has; grown != tt.grown {
						t.Errorf("change %d: %d machines were asked for, want %d", i, grown, tt.grown)
					}
					away = false
					if err := change(); err != nil || len(g.machines) != has+1 {
						t.Errorf("change %d: %v, %d machines; want one more than %d", i, err, len(g.machines), has)
					}
				}
			})
		})
	}
}

// TestAMachineThatIsPastKeepingIsNotSaidToBeKept has somebody's retirement of the machine under way.
func TestAMachineThatIsPastKeepingIsNotSaidToBeKept(t *testing.T) {
	for phase, past := range map[v1alpha1.Phase]bool{
		v1alpha1.Pending: false, v1alpha1.Draining: false, v1alpha1.Drained: true, v1alpha1.NodeDeleted: true, v1alpha1.Aborted: false,
	} {
		t.Run(string(phase), func(t *testing.T) {
			serveNatively(t, 3, 10, func(t *testing.T, s *sim, g *group, pool *Native) {
				for i := 1; i <= 3; i++ {
					s.retire(i, fmt.Sprint("n", i))
					s.retired(fmt.Sprint("others-n", i), func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = phase })
				}
				id := func(i int) string { return "openstack:///" + uuid(i) }
				for i, err := range map[int]error{
					1: pool.Detach(t.Context(), api.Removal{MachineID: id(1)}),
					2: pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: id(2), MembershipStatus: api.MembershipStatus{Active: true}}),
				} {
					if past && (ResultOf(err) != NotPossible || !strings.Contains(err.Error(), fmt.Sprint("NodeRetirement others-n", i))) || !past && err != nil {
						t.Errorf("machine %d: %v", i, err)
					}
				}
				if grown := len(g.machines) - 3; past && grown > 0 {
					t.Errorf("%d machines were asked for", grown)
				}
				evictable := api.SetMembershipStatus{MachineID: id(3), MembershipStatus: api.MembershipStatus{Active: true, Evictable: true}}
				if err := pool.SetMembershipStatus(t.Context(), evictable); err != nil {
					t.Errorf("what keeps nothing: %v", err)
				}
			})
		})
	}
}
