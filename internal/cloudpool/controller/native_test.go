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
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeGroup is a cloud with one group. Launched instances are Pending.
type fakeGroup struct {
	cloud.Provider
	machines     []cloud.Instance
	launchError  error
	deleted      []string
	unansweredID string // a provider ID for which Normalize gets no answer
	ownIDsOnly   bool   // Normalize accepts only its own provider IDs
}

func (*fakeGroup) Name() string { return "openstack" }

func (g *fakeGroup) Normalize(id string) (string, error) {
	if id == g.unansweredID {
		return "", &cloud.ProviderUnavailableError{Err: errors.New("the plugin hangs")}
	}
	if g.ownIDsOnly && !strings.HasPrefix(id, "openstack:///") {
		return "", &cloud.RefusedError{Reason: cloud.Invalid, Err: errors.New("want openstack:///UUID")}
	}
	return id, nil
}

func (g *fakeGroup) Group(context.Context, string) (cloud.Group, error) {
	return cloud.Group{Name: "web", Size: len(g.machines)}, nil
}

func (g *fakeGroup) Instances(context.Context, string) ([]cloud.Instance, error) {
	return slices.Clone(g.machines), nil
}

func (g *fakeGroup) Grow(_ context.Context, _ string, o cloud.LaunchRequest) (cloud.Operation, error) {
	for range o.Count {
		if g.launchError != nil {
			return cloud.Operation{}, g.launchError
		}
		g.add(len(g.machines)+1, cloud.Pending)
	}
	return cloud.Operation{}, nil
}

func (g *fakeGroup) Delete(_ context.Context, id string) (cloud.Operation, error) {
	g.deleted = append(g.deleted, id)
	g.machines = slices.DeleteFunc(g.machines, func(i cloud.Instance) bool { return i.ProviderID == id })
	return cloud.Operation{}, nil
}

func (g *fakeGroup) Status(context.Context, cloud.Operation) (cloud.OperationStatus, error) {
	return cloud.OperationStatus{Done: true}, nil
}

func (g *fakeGroup) add(i int, state cloud.State) {
	g.machines = append(g.machines, cloud.Instance{ProviderID: "openstack:///" + newUUID(i), Name: fmt.Sprint("n", i), State: state, Created: time.Now()})
}

// simulateNative runs a test with a NodeGroup of n machines that each have a node, and with a maximum size.
func simulateNative(t *testing.T, n int, maximum int32, do func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool)) {
	t.Helper()
	simulate(t, n, func(t *testing.T, s *sim) {
		object := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.NodeGroupSpec{MaxSize: &maximum}}
		must.NoError(t, s.objects.Create(t.Context(), object))
		g := &fakeGroup{}
		for i := 1; i <= n; i++ {
			g.add(i, cloud.Running)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		c, watches := s.newCluster(ctx, slog.New(slog.DiscardHandler))
		defer func() { stop(); watches.Shutdown() }()
		pool := NewNativePool(c, "web", "slipway", 0)
		pool.group, pool.provider = "web", g
		pool.groupUnread.Store(false)
		do(t, s, g, pool)
	})
}

func TestFailedMachineExistsAndCanBeRemoved(t *testing.T) {
	simulateNative(t, 3, 10, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
		g.machines[1].State = cloud.Failed
		g.add(4, cloud.Failed)
		seen, err := pool.Pool(t.Context())
		if err != nil || seen.Machines[1].State != api.Running || seen.Machines[1].ServiceState != api.Unhealthy || seen.Machines[3].State != api.Rejected {
			t.Fatalf("%+v, %v; want the machine with a node RUNNING, the other REJECTED", seen.Machines, err)
		}
		size, err := pool.Size(t.Context())
		check.Not(t, err != nil || size.Desired != 3 || size.Active != 3, "%+v, %v; want the rejected machine not to count", size, err)
		if err := pool.SetDesiredSize(t.Context(), 3); err != nil || len(g.machines) != 4 {
			t.Errorf("setting the size that it has: %v, %d machines", err, len(g.machines))
		}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		// It does not count, so it is not replaced.
		checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: "openstack:///" + newUUID(4)}, time.Minute, Done)
		check.Not(t, len(g.deleted) != 1 || len(g.machines) != 3, "deleted %v", g.deleted)
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Terminate, MachineID: "openstack:///" + newUUID(2), Decrement: true}, a.CheckCanRemoveMachine)
		must.Not(t, err != nil, "machine with a node: %v", err)
		s.advance(5 * time.Second)
		if rts := s.listRetirements(); len(rts) != 1 || rts[0].Spec.NodeName != "n2" {
			t.Errorf("%+v; want n2 to be retired", rts)
		}
		g.machines = slices.Delete(g.machines, 1, 2)
		s.updateRetirementStatus(s.listRetirements()[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Succeeded })
		if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != Done {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// TestI7UnidentifiedNodeProtectsNodeGroupMachines covers a running machine and one with a failed change.
func TestI7UnidentifiedNodeProtectsNodeGroupMachines(t *testing.T) {
	simulateNative(t, 0, 10, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
		g.ownIDsOnly = true
		g.add(1, cloud.Running)
		g.add(2, cloud.Failed)
		for name, id := range map[string]string{"w1": "k3s://w1", "w2": "k3s://w2", "e": "aws:///eu-west-1a/i-01234567"} {
			must.NoError(t, check.Err(s.kube.CoreV1().Nodes().Create(t.Context(), newNode(name, id, "10.0.0.1"), metav1.CreateOptions{})))
		}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		s.advance(time.Hour)
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 0}, time.Hour, NotPossible, "machine-may-be-a-node", "k3s://w1")
		for i := 1; i <= 2; i++ {
			checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: "openstack:///" + newUUID(i)}, time.Hour, NotPossible, "machine-may-be-a-node", "k3s://w1")
		}
		check.Not(t, len(g.deleted) > 0, "deleted %v", g.deleted)
		if pool.IsOfOtherCloud("openstack:///"+newUUID(1), "weird://x") || pool.IsOfOtherCloud("openstack:///"+newUUID(1), "openstack:///"+newUUID(9)) {
			t.Error("want IDs of an unknown cloud and of the same cloud not to count as another cloud's")
		}
		pool.otherProviders = []cloud.Provider{&fakeGroup{}}
		check.Not(t, !pool.IsOfOtherCloud("openstack:///"+newUUID(1), "weird://x"), "want an ID of another configured cloud to count as another cloud's")
	})
}

// TestI7UnansweredProviderIDProtectsMachine: the machine may be detached or protected.
func TestI7UnansweredProviderIDProtectsMachine(t *testing.T) {
	simulateNative(t, 2, 10, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		g.unansweredID = "openstack:///" + newUUID(2)
		checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: g.unansweredID, Decrement: true}, time.Hour, BackendUnavailable, "n2", "the plugin hangs")
		checkUpdateEnds(t, a, Update{Kind: SetSize, DesiredSize: 1}, time.Hour, BackendUnavailable, "n2", "the plugin hangs")
		if len(g.deleted) > 0 || len(s.listRetirements()) > 0 {
			t.Errorf("deleted %q, %d retirements; want nothing removed", g.deleted, len(s.listRetirements()))
		}
	})
}

func TestI5ReplacementKeepsGroupMaximum(t *testing.T) {
	quota := &cloud.RefusedError{Reason: cloud.NoQuota, Err: errors.New("the quota is used up")}
	for name, tt := range map[string]struct {
		maximum int32
		refuses error
		reason  cloud.Refusal
	}{"the maximum": {2, nil, cloud.AtLimit}, "no quota": {10, quota, cloud.NoQuota}} {
		simulateNative(t, 2, tt.maximum, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
			g.launchError = tt.refuses
			id := "openstack:///" + newUUID(1)
			for what, err := range map[string]error{
				"detached": pool.Detach(t.Context(), api.Removal{MachineID: id}),
				"inactive": pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: id, MembershipStatus: inactiveMember}),
			} {
				check.Not(t, cloud.RefusalOf(err) != tt.reason, "%s, %s: %v; want %s", name, what, err, tt.reason)
			}
			node, err := s.kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil || len(node.Annotations) > 0 || len(g.machines) != 2 {
				t.Errorf("%s: %v, %d machines, %v; want nothing changed", name, node.Annotations, len(g.machines), err)
			}
		})
	}
	simulateNative(t, 2, 3, func(t *testing.T, _ *sim, g *fakeGroup, pool *NativePool) {
		if err := pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + newUUID(1)}); err != nil || len(g.machines) != 3 {
			t.Errorf("%v, %d machines; want it replaced", err, len(g.machines))
		}
		if err := pool.SetDesiredSize(t.Context(), 3); cloud.RefusalOf(err) != cloud.AtLimit {
			t.Errorf("a size above the maximum, with what was detached: %v", err)
		}
	})
}

// TestClientMayRemoveMachineItProtected has a protected and a detached machine. Other tools may not remove them, but the
// client may.
func TestClientMayRemoveMachineItProtected(t *testing.T) {
	simulateNative(t, 3, 10, func(t *testing.T, s *sim, _ *fakeGroup, pool *NativePool) {
		blessed, detached := "openstack:///"+newUUID(1), "openstack:///"+newUUID(2)
		keep := api.SetMembershipStatus{MachineID: blessed, MembershipStatus: api.MembershipStatus{Active: true}}
		must.NoError(t, errors.Join(pool.SetMembershipStatus(t.Context(), keep), pool.Detach(t.Context(), api.Removal{MachineID: detached, Decrement: true})))
		holder := func(name string) string {
			n := must.Get(s.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
			return retirement.FindProtectingAnnotation(n.Annotations, n.CreationTimestamp.Time, time.Now())
		}
		for name, want := range map[string]string{"n1": drainability.Membership, "n2": drainability.Detached, "n3": ""} {
			check.Is(t, want, holder(name), name)
		}
		a := s.startReplica("a", func(o *UpdaterOptions) { o.Backend = pool })
		checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: blessed}, time.Minute, NotPossible, "not evictable")
		checkUpdateEnds(t, a, Update{Kind: Terminate, MachineID: detached}, time.Minute, NotFound)
		submitted, err := a.SubmitOrFindEqual(t.Context(), Update{Kind: Dispose, MachineID: blessed}, a.CheckCanRemoveMachine)
		must.Not(t, err != nil, "making it disposable: %v", err)
		s.advance(5 * time.Second)
		rts := s.listRetirements()
		if len(rts) != 1 || rts[0].Spec.NodeName != "n1" || holder("n1") != "" {
			t.Fatalf("%+v, n1 is protected by %q; want n1 retired and unprotected", rts, holder("n1"))
		}
		s.updateRetirementStatus(rts[0].Name, func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = v1alpha1.Refused })
		if result, err := submitted.WaitForOutcome(t.Context()); err != nil || result.Outcome.Result != NotPossible || holder("n1") != drainability.Membership {
			t.Errorf("%+v, %v, n1 is protected by %q; want it protected as before", result, err, holder("n1"))
		}
	})
}

func TestTimesHaveAPIFormat(t *testing.T) {
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

// TestWrongMethodIsNotAllowedOnAPIPaths uses methods that the API does not have.
func TestWrongMethodIsNotAllowedOnAPIPaths(t *testing.T) {
	simulateNative(t, 1, 10, func(t *testing.T, _ *sim, _ *fakeGroup, pool *NativePool) {
		pool.started.Store(&startedState{true, time.Now().Add(time.Hour)})
		s := newServer("web", pool, pool, nil, false)
		for request, want := range map[string]string{
			"GET /pool/terminate": "405 POST, OPTIONS", "HEAD /start": "405 POST, OPTIONS", "POST /pool": "405 GET, HEAD, OPTIONS",
			"POST /status": "405 GET, HEAD, OPTIONS", "OPTIONS /pool/size": "204 GET, HEAD, POST, OPTIONS", "OPTIONS /x": "404 ", "GET /x": "404 ",
			"POST /x": "404 ", "HEAD /pool": "200 ",
		} {
			method, path, _ := strings.Cut(request, " ")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			check.Is(t, want, fmt.Sprint(w.Code, " ", w.Header().Get("Allow")), request)
		}
	})
}

// TestMachineIsReplacedOnceDespiteFailedPatches repeats requests while the Node cannot be patched.
func TestMachineIsReplacedOnceDespiteFailedPatches(t *testing.T) {
	for name, tt := range map[string]struct {
		dryRun bool // the dry run fails already
		grown  int
	}{"dry run fails": {true, 0}, "patch fails": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			simulateNative(t, 2, 10, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
				away := true
				s.kube.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if dry := len(a.(clienttesting.PatchActionImpl).PatchOptions.DryRun) > 0; away && (tt.dryRun || !dry) {
						return true, nil, errConnectionRefused
					}
					return false, nil, nil
				})
				for i, change := range []func() error{
					func() error { return pool.Detach(t.Context(), api.Removal{MachineID: "openstack:///" + newUUID(1)}) },
					func() error {
						return pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: "openstack:///" + newUUID(2), MembershipStatus: inactiveMember})
					},
				} {
					has := len(g.machines)
					away = true
					for range 3 {
						if err := change(); ToResult(err) != ClusterUnavailable {
							t.Errorf("change %d: %v", i, err)
						}
					}
					if grown := len(g.machines) - has; grown != tt.grown {
						t.Errorf("change %d: %d machines were launched, want %d", i, grown, tt.grown)
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

// TestDrainedMachineCannotBeKept has another client's unfinished retirement of the machine.
func TestDrainedMachineCannotBeKept(t *testing.T) {
	for phase, past := range map[v1alpha1.Phase]bool{
		v1alpha1.Pending: false, v1alpha1.Draining: false, v1alpha1.Drained: true, v1alpha1.NodeDeleted: true, v1alpha1.Aborted: false,
	} {
		t.Run(string(phase), func(t *testing.T) {
			simulateNative(t, 3, 10, func(t *testing.T, s *sim, g *fakeGroup, pool *NativePool) {
				for i := 1; i <= 3; i++ {
					s.createForeignRetirement(i, fmt.Sprint("n", i))
					s.updateRetirementStatus(fmt.Sprint("others-n", i), func(rt *v1alpha1.NodeRetirement) { rt.Status.Phase = phase })
				}
				id := func(i int) string { return "openstack:///" + newUUID(i) }
				for i, err := range map[int]error{
					1: pool.Detach(t.Context(), api.Removal{MachineID: id(1)}),
					2: pool.SetMembershipStatus(t.Context(), api.SetMembershipStatus{MachineID: id(2), MembershipStatus: api.MembershipStatus{Active: true}}),
				} {
					if past && (ToResult(err) != NotPossible || !strings.Contains(err.Error(), fmt.Sprint("NodeRetirement others-n", i))) || !past && err != nil {
						t.Errorf("machine %d: %v", i, err)
					}
				}
				if grown := len(g.machines) - 3; past && grown > 0 {
					t.Errorf("%d machines were launched", grown)
				}
				evictable := api.SetMembershipStatus{MachineID: id(3), MembershipStatus: api.MembershipStatus{Active: true, Evictable: true}}
				if err := pool.SetMembershipStatus(t.Context(), evictable); err != nil {
					t.Errorf("making it evictable: %v", err)
				}
			})
		})
	}
}
