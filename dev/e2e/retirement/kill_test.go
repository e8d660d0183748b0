package retirement_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// course is one possible sequence of a retirement. The first of two nodes is retired.
type course struct {
	name string
	// group is the NodeGroup's spec, except for its nodes, its cloud and its minimum.
	group string
	// prepare sets up the cluster before the test retires the node and starts the manager.
	prepare func(f *fixture)
	// parts, if set, reports where the course diverges from the first course. The requests before that point are already
	// covered. part, if set, runs at that point.
	parts func(*v1alpha1.NodeRetirement) bool
	part  func(j *judge, node string)
	// real are the requests that the test also kills a manager after on a control plane.
	real []faultproxy.RequestID
	// end waits for the end, and checks it.
	end func(f *fixture, node string)
}

// stuck runs an app of one pod on the first instance. The app's PDB always denies the eviction.
func stuck(f *fixture) {
	app := f.app("stuck", 0, 1)
	app.MinAvailable = "1"
	f.run(app.Deployment(), app.PodDisruptionBudget())
}

// restored checks that a node is restored.
func restored(f *fixture, node string) {
	f.t.Helper()
	f.left(2)
	if _, err := f.AwaitNode(f.ctx, node, "schedulable", func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		f.t.Error(err)
	}
}

func draining(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Draining }

// These are kinds of requests.
const (
	evicted     = "api POST /api/v1/namespaces/*/pods/*/eviction"
	nodeChanged = "api PATCH /api/v1/nodes/*"
	nodeDeleted = "api DELETE /api/v1/nodes/*"
	vmDeleted   = "arm POST /subscriptions/" + controlplane.Subscription +
		"/resourceGroups/MC_DEMO/providers/Microsoft.Compute/virtualMachineScaleSets/*/delete"
)

var courses = []course{
	{
		name:    "retired",
		real:    []faultproxy.RequestID{{Kind: evicted, Nth: 1}, {Kind: nodeDeleted, Nth: 1}, {Kind: vmDeleted, Nth: 1}},
		group:   "drain: {timeout: 30m}",
		prepare: func(f *fixture) { f.run(f.app("web", 0, 2).Deployment()) },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
		},
	},
	{
		name:    "cancelled",
		real:    []faultproxy.RequestID{{Kind: nodeChanged, Nth: 2}},
		group:   "drain: {timeout: 30m}",
		prepare: stuck,
		parts:   func(rt *v1alpha1.NodeRetirement) bool { return draining(rt) && rt.Status.Drain != nil },
		part: func(f *judge, node string) {
			f.check(f.objects().Delete(f.ctx, &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: node}}))
		},
		end: func(f *fixture, node string) {
			if rt := f.over(node); rt != nil {
				if rt.Status.Phase != v1alpha1.Aborted {
					f.t.Errorf("%s: %s, want it aborted", rt.Status.Phase, rt.Status.Message)
				}
				f.gone(node)
			}
			restored(f, node)
		},
	},
	{
		name:    "given up",
		real:    []faultproxy.RequestID{{Kind: nodeChanged, Nth: 2}},
		group:   "drain: {timeout: 15s}",
		prepare: stuck,
		parts:   draining,
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Aborted)
			restored(f, node)
		},
	},
	{
		name:    "a protected pod comes",
		real:    []faultproxy.RequestID{{Kind: nodeChanged, Nth: 2}},
		group:   "drain: {timeout: 30m}",
		prepare: stuck,
		parts:   draining,
		part: func(f *judge, node string) {
			late := f.app("late", 0, 1)
			late.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
			pod := late.Pod()
			pod.Spec.NodeName = node // the scheduler would not place it there
			f.run(pod)
			f.protected(pod.Name, node)
		},
		end: func(f *fixture, node string) {
			rt := f.awaitPhase(node, v1alpha1.Aborted)
			if rt.Status.Reasons[0].Code != retirement.ProtectedPod {
				f.t.Errorf("aborted for %+v, want the protected pod", rt.Status.Reasons)
			}
			restored(f, node)
			pod, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, "late", metav1.GetOptions{})
			f.check(err)
			if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
				f.t.Errorf("I1: the protected pod is %s, deleted at %v", pod.Status.Phase, pod.DeletionTimestamp)
			}
		},
	},
	{
		name:  "deletion fails",
		real:  []faultproxy.RequestID{{Kind: vmDeleted, Nth: 2}},
		group: "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: f.pool.ResourceName(0), Times: 1}))
		},
		parts: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.NodeDeleted },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
			// The record counts only the attempts that it knows of. A killed manager's attempt may be missing there,
			// but the cloud knows it.
			if n := f.deletions(); n < 2 {
				f.t.Errorf("the cloud was asked for %d deletions: want a second attempt", n)
			}
		},
	},
	{
		name:  "machine gone",
		real:  []faultproxy.RequestID{{Kind: nodeDeleted, Nth: 1}},
		group: "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.run(f.app("web", 0, 1).Deployment())
			f.loseMachine(0)
		},
		parts: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.InstanceGone },
		end: func(f *fixture, node string) {
			rt := f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
			if !rt.Status.InstanceGone {
				f.t.Error("the record does not say that the machine was gone")
			}
		},
	},
}

// deletions counts the requests to the cloud to delete instances of the pool.
func (f *fixture) deletions() (n int) {
	for _, r := range f.ARM.Requests() {
		if path := strings.ToLower(r.Path); r.Method == http.MethodPost && strings.HasSuffix(path, "/"+strings.ToLower(f.pool.ScaleSetName())+"/delete") {
			n++
		}
	}
	return n
}

// loseMachine removes an instance, and updates its Node as the node lifecycle controller would after a while.
func (f *fixture) loseMachine(instance int) {
	f.t.Helper()
	f.check(f.ARM.RemoveVM(f.ctx, f.pool.ResourceName(instance)))
	patch := `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.pool.NodeName(instance), types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	f.check(err)
}

// TestKillCoursesInVirtualTime kills the manager at each request to the API server and to the cloud, in each course. It
// kills once before the server handles the request, and once after. A first run without a kill records all requests, and
// a separate run covers each request and each moment. The later courses only cover the requests after they diverge from
// the first course.
//
// The judge checks each request of each manager, as in the fault schedules. For I1 it also checks that every manager
// lists the protected pods itself. What the killed manager saw does not count.
func TestKillCoursesInVirtualTime(t *testing.T) {
	testbed.UseOneThread(t)
	points := 0
	for n, c := range courses {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("k%d", n)
			walk := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request, parted int) {
				synctest.Test(t, func(t *testing.T) {
					seen, parted = c.walk(inMemory(t).machines(t, name, courseNodes), at, moment)
				})
				return seen, parted
			}
			seen, parted := walk(t, faultproxy.RequestID{}, "")
			t.Logf("%d requests, %d of them from where the course parts: %s", len(seen), len(seen)-parted, faultproxy.FormatKinds(seen[parted:]))
			chosen := distinct(seen[parted:])
			points += len(chosen) * len(faultproxy.Moments())
			// Some kinds do not occur in every run. An example is the read of an operation that ends sooner.
			faultproxy.RunAtEachRequest(t, chosen, t.Logf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
				seen, _ := walk(t, at, moment)
				return seen
			})
		})
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("retirement: %d kill points of %d courses in virtual time", points, len(courses)))
}

// TestI8AfterAKillTheNextManagerReachesTheSameEnd kills the real process on a control plane after a few requests of each
// course. It confirms the results of virtual time.
func TestI8AfterAKillTheNextManagerReachesTheSameEnd(t *testing.T) {
	t.Parallel()
	for n, c := range courses {
		for i, at := range c.real {
			t.Run(fmt.Sprint(c.name, ", ", at), func(t *testing.T) {
				t.Parallel()
				seen, _ := c.walk(newMachines(t, fmt.Sprintf("k%dx%d", n, i), courseNodes), at, faultproxy.After)
				if !slices.ContainsFunc(seen, func(r faultproxy.Request) bool { return r.RequestID == at }) {
					t.Errorf("there was no %s", at)
				}
			})
		}
	}
}

// repeated limits the kills at reads of one kind, because a waiting course repeats the same reads.
const repeated = 6

// distinct drops the later reads of each kind, which a course repeats while it waits. It also drops the reads of PDBs,
// which only serve to tell people which PDB blocks. It drops no write.
//
// A read changes nothing, and a manager's knowledge dies with it. A kill at a read therefore leaves the same state as a
// kill after the previous write or before the next write. Those are all covered. Other events in between, such as a pod's
// end, an operation's end or a timeout, have not begun at the first write. They have ended at the second write. The kills
// at the first few reads of each kind cover the partial states in between.
func distinct(seen []faultproxy.Request) []faultproxy.Request {
	times := map[string]int{}
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		times[r.Kind]++
		return times[r.Kind] > repeated && r.Method == http.MethodGet || strings.Contains(r.Kind, "/poddisruptionbudgets")
	})
}

// walk runs the course, kills the manager at the given request if there is one, and checks the end. A judge checks all
// requests of each manager. walk returns the requests of all managers, and the number of requests before the course
// diverged.
func (c course) walk(f *fixture, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request, parted int) {
	f.t.Helper()
	law := law{nodes: courseNodes, minimum: 1, budget: 1, pods: f.name}
	f.grouped(fmt.Sprintf("minSize: %d\n%s", law.minimum, c.group))
	f.secluded = true
	c.prepare(f)
	node := f.retire(0)
	proxy := faultproxy.New(kindOf)
	judge := newJudge(f, law)
	judge.watches(proxy)
	launched := make(chan func(), 1)
	proxy.InterruptAt(at, moment, func(faultproxy.Request) { (<-launched)() })
	launched <- f.mortal(proxy)
	if c.parts != nil {
		f.await(node, c.parts)
		parted = len(proxy.Requests())
	}
	if c.part != nil {
		c.part(judge, node)
	}
	c.end(f, node)
	judge.sawAll(node)
	return proxy.Requests(), parted
}

// courseNodes is the number of nodes in the pool of a course.
const courseNodes = 2

// mortal starts a manager, and returns a function that kills it and starts the next one.
func (f *fixture) mortal(proxy *faultproxy.Proxy) (kill func()) {
	f.t.Helper()
	if !f.virtual {
		p := f.manage("", proxy)
		return func() { f.noError(p.revive(context.WithoutCancel(f.ctx))) }
	}
	log := &testbed.LogBuffer{}
	m := f.embed(proxy, log, f.atLeisure()...)
	f.begin(m, proxy, log)
	return m.crash
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|noderetirements|virtualMachines|virtualMachineScaleSets|operations|` +
	`nodegroups|asyncOperations|leases)/[^/]+`)

// kindOf returns a request without the names in it.
func kindOf(r faultproxy.Request) string {
	kind := r.Server + " " + r.Method + " " + object.ReplaceAllString(r.Path, "/$1/*")
	if strings.Contains(r.Query, "watch=true") || strings.Contains(r.Query, "watch=1") {
		kind += " (watch)"
	}
	return kind
}
