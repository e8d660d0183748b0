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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// agentPool makes AKS delete the instances instead of the scale set.
	agentPool bool
	// group is the NodeGroup's spec, except for its nodes, its cloud and its minimum.
	group string
	// prepare sets up the cluster before the test retires the node and starts the manager.
	prepare func(f *fixture)
	// diverged, if set, reports where the course diverges from the first course. The requests before that point are already
	// covered. part, if set, runs at that point.
	diverged     func(*v1alpha1.NodeRetirement) bool
	atDivergence func(j *requestChecker, node string)
	// realKills are the requests that the test also kills a manager after on a control plane.
	realKills []faultproxy.RequestID
	// end waits for the end, and checks it.
	end func(f *fixture, node string)
}

// runBlockedPod runs an app of one pod on the first instance. The app's PDB always denies the eviction.
func runBlockedPod(f *fixture) {
	app := f.app("stuck", 0, 1)
	app.MinAvailable = "1"
	f.run(app.Deployment(), app.PodDisruptionBudget())
}

// checkNodeRestored checks that a node is restored.
func checkNodeRestored(f *fixture, node string) {
	f.t.Helper()
	f.checkRemaining(2)
	if _, err := f.AwaitNode(f.ctx, node, "schedulable", func(n *corev1.Node) bool { return !n.Spec.Unschedulable }); err != nil {
		f.t.Error(err)
	}
}

func draining(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Draining }

// These are kinds of requests.
const (
	evictionKind     = "api POST /api/v1/namespaces/*/pods/*/eviction"
	nodePatchKind    = "api PATCH /api/v1/nodes/*"
	nodeDeletionKind = "api DELETE /api/v1/nodes/*"
	vmDeletionKind   = "arm POST /subscriptions/" + controlplane.Subscription +
		"/resourceGroups/MC_DEMO/providers/Microsoft.Compute/virtualMachineScaleSets/*/delete"
	aksDeletionKind = "arm POST /subscriptions/" + controlplane.Subscription + "/resourceGroups/" + testbed.ManagedClusterGroup +
		"/providers/Microsoft.ContainerService/managedClusters/" + testbed.ManagedClusterName + "/agentPools/*/deleteMachines"
)

var courses = []course{
	{
		name:      "retired",
		realKills: []faultproxy.RequestID{{Kind: evictionKind, Nth: 1}, {Kind: nodeDeletionKind, Nth: 1}, {Kind: vmDeletionKind, Nth: 1}},
		group:     "drain: {timeout: 30m}",
		prepare:   func(f *fixture) { f.run(f.app("web", 0, 2).Deployment()) },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.checkRemaining(2, 0)
		},
	},
	{
		name:  "surged", // on a control plane, dev/e2e/surge kills managers
		group: "drain: {timeout: 30m, surge: Always}",
		prepare: func(f *fixture) {
			app := f.app("single", 0, 1)
			app.Node, app.NodeSelector = "", map[string]string{"kubernetes.azure.com/agentpool": f.pool.Name}
			app.MaxUnavailable = "0"
			f.setUnschedulable(1, true) // so that the pod runs on the first instance
			f.run(app.Deployment(), app.PodDisruptionBudget(), app.Service())
			f.setUnschedulable(1, false)
		},
		diverged: draining,
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.checkRemaining(2, 0)
			f.awaitSurgeRestored("single", 1)
		},
	},
	{
		name:      "cancelled",
		realKills: []faultproxy.RequestID{{Kind: nodePatchKind, Nth: 2}},
		group:     "drain: {timeout: 30m}",
		prepare:   runBlockedPod,
		diverged:  func(rt *v1alpha1.NodeRetirement) bool { return draining(rt) && rt.Status.Drain != nil },
		atDivergence: func(f *requestChecker, node string) {
			f.check(f.objects().Delete(f.ctx, &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: node}}))
		},
		end: func(f *fixture, node string) {
			if rt := f.awaitFinalPhase(node); rt != nil {
				if rt.Status.Phase != v1alpha1.Aborted {
					f.t.Errorf("%s: %s, want it aborted", rt.Status.Phase, rt.Status.Message)
				}
				f.awaitDeleted(node)
			}
			checkNodeRestored(f, node)
		},
	},
	{
		name:      "timed out",
		realKills: []faultproxy.RequestID{{Kind: nodePatchKind, Nth: 2}},
		group:     "drain: {timeout: 15s}",
		prepare:   runBlockedPod,
		diverged:  draining,
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Aborted)
			checkNodeRestored(f, node)
		},
	},
	{
		name:      "protected pod arrives",
		realKills: []faultproxy.RequestID{{Kind: nodePatchKind, Nth: 2}},
		group:     "drain: {timeout: 30m}",
		prepare:   runBlockedPod,
		diverged:  draining,
		atDivergence: func(f *requestChecker, node string) {
			late := f.app("late", 0, 1)
			late.Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
			pod := late.Pod()
			pod.Spec.NodeName = node // the scheduler would not place it there
			f.run(pod)
			f.addProtectedPod(pod.Name, node)
		},
		end: func(f *fixture, node string) {
			rt := f.awaitPhase(node, v1alpha1.Aborted)
			if rt.Status.Reasons[0].Code != retirement.ProtectedPod {
				f.t.Errorf("aborted for %+v, want the protected pod", rt.Status.Reasons)
			}
			checkNodeRestored(f, node)
			pod, err := f.Client().CoreV1().Pods(f.name).Get(f.ctx, "late", metav1.GetOptions{})
			f.check(err)
			if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
				f.t.Errorf("I1: the protected pod is %s, deleted at %v", pod.Status.Phase, pod.DeletionTimestamp)
			}
		},
	},
	{
		name:      "deletion fails",
		realKills: []faultproxy.RequestID{{Kind: vmDeletionKind, Nth: 2}},
		group:     "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: f.pool.ResourceName(0), Times: 1}))
		},
		diverged: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.NodeDeleted },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.checkRemaining(2, 0)
			// The record counts only the attempts that it knows of. A killed manager's attempt may be missing there,
			// but the cloud knows it.
			if n := f.countDeletions("/" + f.pool.ScaleSetName() + "/delete"); n < 2 {
				f.t.Errorf("the cloud received %d deletions, want at least 2", n)
			}
		},
	},
	{
		name:      "deletion by AKS fails",
		agentPool: true,
		realKills: []faultproxy.RequestID{{Kind: aksDeletionKind, Nth: 2}},
		group:     "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.check(f.ARM.InjectFaults(azure.ARMFault{Kind: azure.ARMDeletionFails, Resource: f.pool.ResourceName(0), Times: 1}))
		},
		diverged: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.NodeDeleted },
		end: func(f *fixture, node string) {
			f.awaitPhase(node, v1alpha1.Succeeded)
			f.checkRemaining(2, 0)
			if pool, _ := f.ARM.AgentPool(testbed.ManagedClusterName, f.name); pool.Count != 1 || pool.State != azure.Succeeded {
				f.t.Errorf("the agent pool has the count %d and is %s, want the count 1", pool.Count, pool.State)
			}
			byAKS, byScaleSet := f.countDeletions("/agentPools/"+f.name+"/deleteMachines"), f.countDeletions("/"+f.pool.ScaleSetName()+"/delete")
			if byAKS < 2 || byScaleSet > 0 {
				f.t.Errorf("AKS received %d deletions and the scale set %d, want at least 2 and none", byAKS, byScaleSet)
			}
		},
	},
	{
		name:      "instance gone",
		realKills: []faultproxy.RequestID{{Kind: nodeDeletionKind, Nth: 1}},
		group:     "drain: {timeout: 30m}",
		prepare: func(f *fixture) {
			f.run(f.app("web", 0, 1).Deployment())
			f.removeInstance(0)
		},
		diverged: func(rt *v1alpha1.NodeRetirement) bool { return rt.Status.InstanceGone },
		end: func(f *fixture, node string) {
			rt := f.awaitPhase(node, v1alpha1.Succeeded)
			f.checkRemaining(2, 0)
			if !rt.Status.InstanceGone {
				f.t.Error("status.instanceGone is false")
			}
		},
	},
}

// setUnschedulable cordons an instance's node, or ends that.
func (f *fixture) setUnschedulable(instance int, unschedulable bool) {
	f.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, unschedulable)
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.pool.NodeName(instance), types.MergePatchType, patch, metav1.PatchOptions{})
	f.check(err)
}

// awaitSurgeRestored waits until a Deployment has the size that its user wants, without a record of a surge (I11).
func (f *fixture) awaitSurgeRestored(deployment string, size int32) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	var found int32
	var recordErr error
	if err := testbed.PollUntil(ctx, "the size is restored", func() bool {
		d, err := f.Client().AppsV1().Deployments(f.name).Get(ctx, deployment, metav1.GetOptions{})
		if err != nil {
			return false
		}
		found = *d.Spec.Replicas
		_, recordErr = f.Client().CoordinationV1().Leases(managerNamespace).Get(ctx, "slipway-surge-"+string(d.UID), metav1.GetOptions{})
		return found == size && apierrors.IsNotFound(recordErr)
	}); err != nil {
		f.t.Errorf("I11: %v: %d replicas, want %d; record: %v", err, found, size, recordErr)
	}
}

// countDeletions counts the POST requests to the cloud with this end of the path.
func (f *fixture) countDeletions(path string) (n int) {
	for _, r := range f.ARM.Requests() {
		if r.Method == http.MethodPost && strings.HasSuffix(strings.ToLower(r.Path), strings.ToLower(path)) {
			n++
		}
	}
	return n
}

// removeInstance removes an instance, and updates its Node as the node lifecycle controller would after a while.
func (f *fixture) removeInstance(instance int) {
	f.t.Helper()
	f.check(f.ARM.RemoveVM(f.ctx, f.pool.ResourceName(instance)))
	patch := `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.pool.NodeName(instance), types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	f.check(err)
}

// TestI8KillCoursesInVirtualTime kills the manager at each request to the API server and to the cloud, in each course.
// It kills once before the server handles the request, and once after a write. A first run without a kill records all
// requests, and a separate run covers each request and each moment. The later courses only cover the requests after they
// diverge from the first course.
//
// The checker checks each request of each manager, as in the fault schedules. For I1 it also checks that every manager
// lists the protected pods itself. What the killed manager saw does not count.
func TestI8KillCoursesInVirtualTime(t *testing.T) {
	testbed.UseOneThread(t)
	points := 0
	for n, c := range courses {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("k%d", n)
			runCourse := func(t *testing.T, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request, before int) {
				synctest.Test(t, func(t *testing.T) {
					seen, before = c.run(inMemory(t).addPool(t, name, courseNodes), at, moment)
				})
				return seen, before
			}
			seen, before := runCourse(t, faultproxy.RequestID{}, "")
			t.Logf("%d requests, %d of them after the course diverged: %s", len(seen), len(seen)-before, faultproxy.FormatKinds(seen[before:]))
			chosen := dropRepeatedReads(seen[before:])
			points += faultproxy.CountKillPoints(chosen)
			// Some kinds do not occur in every run. An example is the read of an operation that ends sooner.
			faultproxy.RunAtEachRequest(t, chosen, t.Logf, func(t *testing.T, _ int, at faultproxy.RequestID, moment faultproxy.Moment) []faultproxy.Request {
				seen, _ := runCourse(t, at, moment)
				return seen
			})
		})
	}
	testbed.AddSummaryNote(t, fmt.Sprintf("retirement: %d kill points of %d courses in virtual time", points, len(courses)))
}

// TestI8RestartAfterAKillReachesSameEnd kills the real process on a control plane after a few requests of each
// course. It confirms the results of virtual time.
func TestI8RestartAfterAKillReachesSameEnd(t *testing.T) {
	t.Parallel()
	for n, c := range courses {
		for i, at := range c.realKills {
			t.Run(fmt.Sprint(c.name, ", ", at), func(t *testing.T) {
				t.Parallel()
				seen, _ := c.run(newPool(t, fmt.Sprintf("k%dx%d", n, i), courseNodes), at, faultproxy.After)
				if !slices.ContainsFunc(seen, func(r faultproxy.Request) bool { return r.RequestID == at }) {
					t.Errorf("the manager did not send %s", at)
				}
			})
		}
	}
}

// maxRepeatedReads limits the kills at reads of one kind, because a waiting course repeats the same reads.
const maxRepeatedReads = 6

// dropRepeatedReads drops the later reads of each kind, which a course repeats while it waits. It also drops the reads
// of PDBs, which only serve to tell people which PDB blocks. It drops no write.
//
// A read changes nothing, and a manager's knowledge dies with it. A kill at a read therefore leaves the same state as a
// kill after the previous write or before the next write. Those are all covered. Other events in between, such as a pod's
// end, an operation's end or a timeout, have not begun at the first write. They have ended at the second write. The kills
// at the first few reads of each kind cover the partial states in between.
func dropRepeatedReads(seen []faultproxy.Request) []faultproxy.Request {
	times := map[string]int{}
	return slices.DeleteFunc(slices.Clone(seen), func(r faultproxy.Request) bool {
		times[r.Kind]++
		return times[r.Kind] > maxRepeatedReads && r.Method == http.MethodGet || strings.Contains(r.Kind, "/poddisruptionbudgets")
	})
}

// run runs the course, kills the manager at the given request if there is one, and checks the end. A checker checks all
// requests of each manager. run returns the requests of all managers, and the number of requests before the course
// diverged.
func (c course) run(f *fixture, at faultproxy.RequestID, moment faultproxy.Moment) (seen []faultproxy.Request, before int) {
	f.t.Helper()
	want := limits{nodes: courseNodes, minimum: 1, budget: 1, pods: f.name}
	if c.agentPool {
		f.ownedByAKS()
	}
	f.withGroup(fmt.Sprintf("minSize: %d\n%s", want.minimum, c.group))
	f.isolated = true
	c.prepare(f)
	node := f.retire(0)
	proxy := faultproxy.New(kindOf)
	checker := newRequestChecker(f, want)
	checker.attach(proxy)
	launched := make(chan func(), 1)
	proxy.InterruptAt(at, moment, func(faultproxy.Request) { (<-launched)() })
	launched <- f.startKillable(proxy)
	if c.diverged != nil {
		f.await(node, c.diverged)
		before = len(proxy.Requests())
	}
	if c.atDivergence != nil {
		c.atDivergence(checker, node)
	}
	c.end(f, node)
	checker.checkSawRequests(node)
	return proxy.Requests(), before
}

// courseNodes is the number of nodes in the pool of a course.
const courseNodes = 2

// startKillable starts a manager, and returns a function that kills it and starts the next one.
func (f *fixture) startKillable(proxy *faultproxy.Proxy) (kill func()) {
	f.t.Helper()
	if !f.virtual {
		p := f.manage("", proxy)
		return func() { f.noError(p.killAndRestart(context.WithoutCancel(f.ctx))) }
	}
	log := &testbed.LogBuffer{}
	m := f.newManager(proxy, log, f.slowPollFlags()...)
	f.runManager(m, proxy, log)
	return m.crash
}

// object matches the part of a path that names one object.
var object = regexp.MustCompile(`/(nodes|pods|namespaces|noderetirements|virtualMachines|virtualMachineScaleSets|operations|` +
	`nodegroups|asyncOperations|leases|agentPools|deployments|replicasets)/[^/]+`)

// kindOf returns a request without the names in it.
func kindOf(r faultproxy.Request) string {
	kind := r.Server + " " + r.Method + " " + object.ReplaceAllString(r.Path, "/$1/*")
	if strings.Contains(r.Query, "watch=true") || strings.Contains(r.Query, "watch=1") {
		kind += " (watch)"
	}
	return kind
}
