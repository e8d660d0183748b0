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

// course is one way that a retirement can take. Of two nodes the first is to be retired.
type course struct {
	name string
	// group is the NodeGroup's spec but for its nodes, its cloud and its minimum.
	group string
	// prepare makes the world, before the node is retired and the manager started.
	prepare func(f *fixture)
	// parts, if set, is where the course parts from the first one, of which the requests are known already, and part what is
	// done then, if anything.
	parts func(*v1alpha1.NodeRetirement) bool
	part  func(j *judge, node string)
	// real are the requests that a manager is killed after on a control plane too.
	real []faultproxy.Point
	// end waits for the end, and checks it.
	end func(f *fixture, node string)
}

// stuck is an app of one pod on the first machine, with a disruption budget that never lets it go.
func stuck(f *fixture) {
	app := f.app("stuck", 0, 1)
	app.MinAvailable = "1"
	f.run(app.Deployment(), app.Budget())
}

// restored checks that a node is as it was.
func restored(f *fixture, node string) {
	f.t.Helper()
	f.left(2)
	if _, err := f.AwaitNode(f.ctx, node, "schedulable", func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		f.t.Error(err)
	}
}

func draining(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Draining }

// Kinds of requests.
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
		real:    []faultproxy.Point{{Kind: evicted, Nth: 1}, {Kind: nodeDeleted, Nth: 1}, {Kind: vmDeleted, Nth: 1}},
		group:   "drain: {timeout: 30m}",
		prepare: func(f *fixture) { f.run(f.app("web", 0, 2).Deployment()) },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
		},
	},
	{
		name:    "called off",
		real:    []faultproxy.Point{{Kind: nodeChanged, Nth: 2}},
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
		real:    []faultproxy.Point{{Kind: nodeChanged, Nth: 2}},
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
		real:    []faultproxy.Point{{Kind: nodeChanged, Nth: 2}},
		group:   "drain: {timeout: 30m}",
		prepare: stuck,
		parts:   draining,
		part: func(f *judge, node string) {
			late := f.app("late", 0, 1)
			late.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
			pod := late.Pod()
			pod.Spec.NodeName = node // the scheduler would keep it away
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
		real:  []faultproxy.Point{{Kind: vmDeleted, Nth: 2}},
		group: "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.check(f.ARM.Inject(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: f.pool.Resource(0), Times: 1}))
		},
		parts: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.NodeDeleted },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
			// The record counts the attempts that it knows of, which that of a killed manager may not be: the cloud knows.
			if n := f.deletions(); n < 2 {
				f.t.Errorf("the cloud was asked for %d deletions: want a second attempt", n)
			}
		},
	},
	{
		name:  "machine gone",
		real:  []faultproxy.Point{{Kind: nodeDeleted, Nth: 1}},
		group: "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.run(f.app("web", 0, 1).Deployment())
			f.loseMachine(0)
		},
		parts: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.MachineGone },
		end: func(f *fixture, node string) {
			rt := f.awaitPhase(node, v1alpha1.Succeeded)
			f.left(2, 0)
			if !rt.Status.MachineGone {
				f.t.Error("the record does not say that the machine was gone")
			}
		},
	},
}

// deletions is how often the cloud was asked to delete machines of the pool.
func (f *fixture) deletions() (n int) {
	for _, r := range f.ARM.Requests() {
		if path := strings.ToLower(r.Path); r.Method == http.MethodPost && strings.HasSuffix(path, "/"+strings.ToLower(f.pool.ScaleSet())+"/delete") {
			n++
		}
	}
	return n
}

// loseMachine takes a machine away, and says of its Node what the node lifecycle controller would after a while.
func (f *fixture) loseMachine(instance int) {
	f.t.Helper()
	f.check(f.ARM.Lose(f.ctx, f.pool.Resource(instance)))
	patch := `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.pool.NodeName(instance), types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	f.check(err)
}

// TestKillCoursesInVirtualTime kills the manager at each request that it makes to the API server and to the cloud while it
// walks each of the courses: once before the request is served, once after. The requests are not chosen: a first run is
// left alone, and there is a run for each request that it made, and each moment. Of the later courses it is those made
// after the course has parted from the first.
//
// Each request of each manager is judged as those in the schedules of faults are: of I1 also that every manager looks for
// protected pods itself, whatever the one that was killed had seen.
func TestKillCoursesInVirtualTime(t *testing.T) {
	testbed.OneThread(t)
	points := 0
	for n, c := range courses {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("k%d", n)
			walk := func(t *testing.T, at faultproxy.Point, moment faultproxy.Moment) (seen []faultproxy.Request, parted int) {
				synctest.Test(t, func(t *testing.T) {
					seen, parted = c.walk(inMemory(t).machines(t, name, courseNodes), at, moment)
				})
				return seen, parted
			}
			seen, parted := walk(t, faultproxy.Point{}, "")
			t.Logf("%d requests, %d of them from where the course parts: %s", len(seen), len(seen)-parted, faultproxy.Kinds(seen[parted:]))
			chosen := distinct(seen[parted:])
			points += len(chosen) * len(faultproxy.Moments())
			// Some kinds are not in every run, such as the read of an operation that is over sooner.
			faultproxy.AtEach(t, chosen, t.Logf, func(t *testing.T, _ int, at faultproxy.Point, moment faultproxy.Moment) []faultproxy.Request {
				seen, _ := walk(t, at, moment)
				return seen
			})
		})
	}
	testbed.Note(t, fmt.Sprintf("retirement: %d kill points of %d courses in virtual time", points, len(courses)))
}

// TestI8AfterAKillTheNextManagerReachesTheSameEnd kills the real process on a control plane after a few of the requests of each
// course: that what holds in virtual time holds there too.
func TestI8AfterAKillTheNextManagerReachesTheSameEnd(t *testing.T) {
	t.Parallel()
	for n, c := range courses {
		for i, at := range c.real {
			t.Run(fmt.Sprint(c.name, ", ", at), func(t *testing.T) {
				t.Parallel()
				seen, _ := c.walk(newMachines(t, fmt.Sprintf("k%dx%d", n, i), courseNodes), at, faultproxy.After)
				if !slices.ContainsFunc(seen, func(r faultproxy.Request) bool { return r.Point == at }) {
					t.Errorf("there was no %s", at)
				}
			})
		}
	}
}

// repeated is how many reads of a kind are killed at: a course that waits asks the same again and again.
const repeated = 6

// distinct leaves out the later reads of each kind, which are asked while a course waits, and those of disruption budgets,
// which are asked only to tell people which one blocks. No write is left out.
//
// A read changes nothing, and what a manager knows dies with it: killed at a read it leaves behind what it would have left
// if it had been killed after the write before that, or before the write after it, and those are all killed at. What the
// others do in between - pods end, the cloud's operation ends, a timeout passes - has not begun at the one write, and is over
// at the other. The first few reads of each kind are killed at for what is between: when some of it is done, and some is not.
func distinct(seen []faultproxy.Request) []faultproxy.Request {
	times := map[string]int{}
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		times[r.Kind]++
		return times[r.Kind] > repeated && r.Method == http.MethodGet || strings.Contains(r.Kind, "/poddisruptionbudgets")
	})
}

// walk walks the course, kills the manager at a request, if there is one such, and checks the end. A judge looks at what
// each of the managers asks for on the way. It returns the requests of all managers, and how many there were when the course
// parted.
func (c course) walk(f *fixture, at faultproxy.Point, moment faultproxy.Moment) (seen []faultproxy.Request, parted int) {
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
	proxy.At(at, moment, func(faultproxy.Request) { (<-launched)() })
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

// courseNodes are in the pool of a course.
const courseNodes = 2

// mortal starts a manager, and returns what kills it, and has the next one begin.
func (f *fixture) mortal(proxy *faultproxy.Proxy) (kill func()) {
	f.t.Helper()
	if !f.virtual {
		p := f.manage("", proxy)
		return func() { f.noError(p.revive(context.WithoutCancel(f.ctx))) }
	}
	log := &testbed.Log{}
	m := f.embed(proxy, log, f.atLeisure()...)
	f.begin(m, proxy, log)
	return m.crash
}

// object is the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|noderetirements|virtualMachines|virtualMachineScaleSets|operations|` +
	`nodegroups|asyncOperations|leases)/[^/]+`)

// kindOf is a request without the names in it.
func kindOf(r faultproxy.Request) string {
	kind := r.Server + " " + r.Method + " " + object.ReplaceAllString(r.Path, "/$1/*")
	if strings.Contains(r.Query, "watch=true") || strings.Contains(r.Query, "watch=1") {
		kind += " (watch)"
	}
	return kind
}
