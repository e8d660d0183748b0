package surge

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// counter counts the calls of [Metrics].
type counter struct {
	mu     sync.Mutex
	counts map[string]int
	gained time.Duration
}

func (c *counter) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[name]++
}

func (c *counter) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

func (c *counter) SurgeStarted() { c.add("started") }
func (c *counter) SurgeSucceeded(d time.Duration) {
	c.add("succeeded")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gained += d
}
func (c *counter) SurgeFailed(reason string)  { c.add("failed " + reason) }
func (c *counter) SurgeRefused(reason string) { c.add("refused " + reason) }
func (c *counter) RecordRestored()            { c.add("restored") }

// process is one process with a Surger.
type process struct {
	*Surger

	client  *client
	ctx     context.Context
	metrics *counter
}

// newProcess starts a process of the cluster. It ends with ctx, or when its client is killed.
func (c *cluster) newProcess(ctx context.Context, name string) *process {
	l := c.newClient()
	ctx, l.kill = context.WithCancel(ctx)
	p := &process{client: l, ctx: ctx, metrics: &counter{}}
	s, err := New(Options{API: l, Namespace: "slipway", Identity: name, Mode: On, Metrics: p.metrics})
	must.NoError(c.t, err)
	p.Surger = s
	return p
}

// crash ends the process without an answer to any further request.
func (p *process) crash() {
	p.client.mu.Lock()
	p.client.dead = true
	p.client.mu.Unlock()
	p.client.kill()
}

// surge decides about the pod and runs the surge. It returns the decision alone if the pod does not surge.
func (p *process) surge(pod string, until time.Time, onProgress func(Progress)) (Decision, Result) {
	l := p.client
	current := l.pod(pod)
	d, err := p.Decide(p.ctx, *current, nil, time.Time{}, until)
	if err != nil || d.Verdict != Needed {
		return d, Result{}
	}
	return d, p.Run(p.ctx, Request{Pod: *current, Node: "n1", Decision: d, Until: until, OnProgress: onProgress})
}

// evict deletes the pod, as the drain does in the step Evictable. If the PodDisruptionBudget denies that, it tries again.
func (c *cluster) evict(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[pod]
	switch {
	case p == nil:
	case c.minAvailable > 0 && c.countHealthy() <= c.minAvailable:
		time.AfterFunc(time.Second, func() { c.evict(pod) })
	default:
		c.terminate(p, time.Now())
	}
}

// evictOnce deletes the pod if a PodDisruptionBudget of minAvailable 1 allows it.
func (c *cluster) evictOnce(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[pod]; p != nil && c.countHealthy() > 1 {
		c.terminate(p, time.Now())
	}
}

// simulate runs a test with a cluster in virtual time.
func simulate(t *testing.T, makeCluster func(t *testing.T) *cluster, test func(t *testing.T, ctx context.Context, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := makeCluster(t)
		var wait sync.WaitGroup
		wait.Go(func() { c.run(ctx) })
		test(t, ctx, c)
		cancel()
		wait.Wait()
		time.Sleep(slowWebhook) // requests that still are carried out
	})
}

func single(t *testing.T) *cluster { return newCluster(t, 1) }

const leaving = "web-1-1"

func TestSuccessorIsReadyBeforePodLeaves(t *testing.T) {
	clusters := map[string]func(t *testing.T) *cluster{
		"Deployment":            single,
		"ReplicaSet":            func(t *testing.T) *cluster { return newCluster(t, 1).withoutDeployment() },
		"ReplicationController": func(t *testing.T) *cluster { return newCluster(t, 1).withReplicationController() },
		"CloneSet":              func(t *testing.T) *cluster { return newCluster(t, 1).withCloneSet() },
		"CloneSet with minReadySeconds": func(t *testing.T) *cluster {
			c := newCluster(t, 1).withCloneSet()
			c.minReady = 15 * time.Second
			return c
		},
		"autoscaler of a ReplicationController": func(t *testing.T) *cluster { return newCluster(t, 1).withReplicationController().withAutoscaler(1, 5) },
		"autoscaler of a CloneSet":              func(t *testing.T) *cluster { return newCluster(t, 1).withCloneSet().withAutoscaler(1, 5) },
		"autoscaler":                            func(t *testing.T) *cluster { return newCluster(t, 1).withAutoscaler(1, 5) },
		"autoscaler above it":                   func(t *testing.T) *cluster { return newCluster(t, 1).withAutoscaler(1, 2) },
		"ScaledObject":                          func(t *testing.T) *cluster { return newCluster(t, 1).withScaledObject() },
		"without Service":                       func(t *testing.T) *cluster { c := newCluster(t, 1); c.noService = true; return c },
		"slow watch":                            func(t *testing.T) *cluster { c := newCluster(t, 1); c.watchLag = 3 * time.Second; return c },
		"slow controller": func(t *testing.T) *cluster {
			c := newCluster(t, 1)
			c.noService, c.readyLag = true, 7*time.Second
			return c
		},
	}
	for name, makeCluster := range clusters {
		t.Run(name, func(t *testing.T) {
			simulate(t, makeCluster, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				var steps []Step
				var last Progress
				d, result := p.surge(leaving, time.Time{}, func(p Progress) {
					if last = p; len(steps) == 0 || steps[len(steps)-1] != p.Step {
						steps = append(steps, p.Step)
					}
				})
				check.Is(t, Needed, d.Verdict, d)
				check.Is(t, 20.0, d.StartupSeconds)
				check.Not(t, !result.PodLeft || result.RestoreErr != nil, "result %+v", result)
				check.Is(t, "shop/web-1-2", result.Successor)
				check.Is(t, "shop/web-1-2", last.Successor)
				took := result.EndedAt.Sub(result.StartedAt)
				check.Not(t, took > 50*time.Second, "took %s", took)
				if !slices.Contains(steps, Removing) || slices.Contains(steps, Evictable) {
					t.Errorf("steps %v", steps)
				}
				time.Sleep(time.Minute)
				check.Is(t, "", c.findTraces())
				ready, serving := c.leastCounts()
				check.Is(t, 1, ready)
				check.Not(t, !c.noService && serving != 1, "for a time %d endpoints were ready", serving)
				check.Is(t, 1, p.metrics.count("succeeded"))
				check.Not(t, c.pod(leaving) != nil, "the pod is still there")
				check.Not(t, c.pod("web-1-2") == nil, "another pod than the leaving one was deleted")
			})
		})
	}
}

func TestFailedSurgeRestoresSize(t *testing.T) {
	tests := map[string]struct {
		change func(c *cluster)
		until  time.Duration
		after  func(c *cluster) // 10 s after the start
		want   string
		took   time.Duration // at most
	}{
		"unschedulable": {change: func(c *cluster) { c.noRoom = true }, want: ReasonUnschedulable, took: 12 * time.Second},
		"never ready":   {change: func(c *cluster) { c.neverReady = true }, want: ReasonNotReadyInTime, took: 601 * time.Second},
		"too late":      {change: func(c *cluster) { c.neverReady = true }, until: time.Minute, want: ReasonUntil, took: time.Minute + departureWait + time.Second},
		"no endpoint":   {change: func(c *cluster) { c.stallEndpoints(time.Hour) }, want: ReasonNoEndpoint, took: 142 * time.Second},
		"too late for an endpoint": {
			change: func(c *cluster) { c.stallEndpoints(time.Hour) }, until: time.Minute, want: ReasonUntil, took: time.Minute + departureWait + time.Second,
		},
		"no endpoint, user lowers the size": {
			change: func(c *cluster) { c.stallEndpoints(time.Hour) }, want: ReasonSizeChanged, took: 36 * time.Second,
			after: func(c *cluster) { time.Sleep(20 * time.Second); c.scaleByUser(1) },
		},
		"paused": {
			change: func(c *cluster) { c.deployment.Spec.Paused = true; c.touch(&c.deployment.ObjectMeta) }, want: ReasonPaused, took: time.Second,
		},
		"user scales": {after: func(c *cluster) { c.scaleByUser(4) }, want: ReasonSizeChanged, took: 16 * time.Second},
		"GitOps tool": {
			change: func(c *cluster) { c.gitOps, c.lastGitOps = 7*time.Second, time.Now() }, want: ReasonSizeChanged, took: 13 * time.Second,
		},
		"rollout": {
			after: func(c *cluster) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.deployment.Annotations[revisionAnnotation] = "2"
				c.touch(&c.deployment.ObjectMeta)
			}, want: ReasonRollout, took: 16 * time.Second,
		},
		"not allowed to scale":  {change: func(c *cluster) { c.forbidden["SetReplicas"] = true }, want: ReasonNoRights, took: time.Second},
		"not allowed to record": {change: func(c *cluster) { c.forbidden["CreateLease"] = true }, want: ReasonNoRights},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				pod := c.pod(leaving)
				d, err := p.Decide(ctx, *pod, nil, time.Time{}, time.Time{})
				must.NoError(t, err)
				check.Is(t, Needed, d.Verdict, d)
				c.mu.Lock()
				if test.change != nil {
					test.change(c)
				}
				c.mu.Unlock()
				if test.after != nil {
					time.AfterFunc(10*time.Second, func() { test.after(c) })
				}
				var until time.Time
				if test.until > 0 {
					until = time.Now().Add(test.until)
				}
				result := p.Run(ctx, Request{Pod: *pod, Node: "n1", Decision: d, Until: until})
				check.Is(t, test.want, result.Reason, result)
				check.Not(t, result.PodLeft || result.RestoreErr != nil, "result %+v", result)
				check.Is(t, 1, p.metrics.count("failed "+test.want)+p.metrics.count("refused "+test.want))
				reasons := map[bool][]string{true: FailureReasons, false: RefusalReasons}[p.metrics.count("failed "+test.want) > 0]
				check.Not(t, !slices.Contains(reasons, test.want), "%s has no label in the metrics", test.want)
				if !result.StartedAt.IsZero() {
					took := result.EndedAt.Sub(result.StartedAt)
					check.Not(t, took > test.took, "took %s, want at most %s", took, test.took)
				}
				if test.change == nil || !c.forbidden["SetReplicas"] {
					c.mu.Lock()
					wanted := c.wanted
					c.mu.Unlock()
					check.Is(t, wanted, c.currentField())
				}
				time.Sleep(30 * time.Second)
				check.Is(t, "", c.findTraces())
				check.Not(t, c.pod(leaving) == nil, "the pod was deleted, although its surge failed")
				ready, serving := c.leastCounts()
				check.Not(t, ready != 1 || serving != 1, "for a time %d pods were ready, and %d ready endpoints", ready, serving)
			})
		})
	}
}

func TestOnlyAReversalDelaysTheNextSurge(t *testing.T) {
	pdb := &kubeapi.PodDisruptionBudget{ObjectMeta: kubeapi.ObjectMeta{Name: "never"}}
	pdb.Status.ExpectedPods, pdb.Status.DesiredHealthy = 1, 1
	revert := func(c *cluster) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.setReplicas(c.deployment, 1, "argocd")
	}
	for name, tt := range map[string]struct {
		at      time.Duration // of the change
		change  func(c *cluster)
		ended   string // the reason of the end
		refused string // the next decision
	}{
		"user raises the size":       {10 * time.Second, func(c *cluster) { c.scaleByUser(4) }, ReasonSizeChanged, ""},
		"GitOps tool":                {10 * time.Second, revert, ReasonSizeChanged, ReasonReverted},
		"GitOps tool, while it ends": {29900 * time.Millisecond, revert, ReasonUntil, ReasonReverted},
		"nobody":                     {10 * time.Second, func(*cluster) {}, ReasonUntil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.mu.Lock()
				c.neverReady = true
				c.mu.Unlock()
				p := c.newProcess(ctx, "n1/1")
				time.AfterFunc(tt.at, func() { tt.change(c) })
				result := p.Run(ctx, c.request(startDecision(), time.Now().Add(30*time.Second)))
				check.Is(t, tt.ended, result.Reason, result)
				time.Sleep(5 * time.Second)
				d, err := p.Decide(ctx, *c.pod(leaving), []*kubeapi.PodDisruptionBudget{pdb}, time.Time{}, time.Time{})
				must.NoError(t, err)
				if tt.refused == "" {
					check.Is(t, Needed, d.Verdict, d)
				} else {
					check.Is(t, tt.refused, d.Reason, d)
				}
			})
		})
	}
}

func TestEvictionIsAskedForWhileSuccessorIsReady(t *testing.T) {
	makeCluster := func(t *testing.T) *cluster { c := newCluster(t, 3); c.neverReady = true; return c }
	simulate(t, makeCluster, func(t *testing.T, ctx context.Context, c *cluster) {
		c.setReady("web-1-2", false) // lowering the size would delete this pod
		time.AfterFunc(30*time.Second, func() { c.setReady("web-1-4", true) })
		time.AfterFunc(40*time.Second, func() { c.setReady("web-1-4", false) })
		time.AfterFunc(60*time.Second, func() { c.setReady("web-1-4", true) })
		p := c.newProcess(ctx, "n1/1")
		began := time.Now()
		var steps []string
		r := c.request(startDecision(), time.Time{})
		r.OnProgress = func(p Progress) {
			after := time.Since(began).Truncate(10 * time.Second)
			if step := fmt.Sprint(p.Step, " ", after); len(steps) == 0 || steps[len(steps)-1] != step {
				steps = append(steps, step)
			}
			if p.Step == Evictable && after == time.Minute {
				time.AfterFunc(time.Second, func() { c.evict(leaving) })
			}
		}
		result := p.Run(ctx, r)
		check.Not(t, !result.PodLeft, "result %+v", result)
		check.Equal(t, []string{
			"raising 0s", "awaiting-ready 0s", "awaiting-endpoint 30s", "evictable 30s", "awaiting-ready 40s",
			"awaiting-endpoint 1m0s", "evictable 1m0s", "restoring 1m0s",
		}, steps)
		check.Is(t, 30*time.Second, p.startup("u-web", nil).Round(5*time.Second)) // not the 20 s until it was Ready again
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
		check.Not(t, c.pod("web-1-3") == nil || c.pod("web-1-4") == nil, "a ready pod was deleted instead of the leaving one")
	})
}

func TestSuccessorOnANewInstanceMayJoinAfterGiveUpAt(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		p.options.CheckRoom = func(context.Context, kubeapi.Pod, bool) Room { return Room{Fits: true, LaunchTime: 15 * time.Minute} }
		r := c.request(startDecision(), time.Now().Add(time.Hour))
		r.GiveUpAt = time.Now().Add(10 * time.Minute)
		result := p.Run(ctx, r)
		check.Is(t, true, result.PodLeft, result) // the instance has joined earlier than in the worst case
	})
}

func TestSlowStartsSurge(t *testing.T) {
	for name, c := range map[string]struct {
		launch, startup, maxLaunch time.Duration
	}{
		"slow application":           {startup: 14 * time.Minute},
		"new instance":               {launch: 12 * time.Minute, startup: 20 * time.Second, maxLaunch: 15 * time.Minute},
		"both":                       {launch: 14 * time.Minute, startup: 14 * time.Minute, maxLaunch: 15 * time.Minute},
		"the instance joins earlier": {launch: time.Minute, startup: time.Minute, maxLaunch: 15 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, cl *cluster) {
				cl.mu.Lock()
				cl.launch, cl.startup = c.launch, c.startup
				cl.mu.Unlock()
				p := cl.newProcess(ctx, "manager/1")
				p.options.CheckRoom = func(context.Context, kubeapi.Pod, bool) Room { return Room{Fits: true, LaunchTime: c.maxLaunch} }
				d := startDecision()
				d.StartupSeconds = c.startup.Seconds()
				result := p.Run(ctx, cl.request(d, time.Time{}))
				check.Is(t, true, result.PodLeft, result)
				time.Sleep(time.Minute)
				check.Is(t, "", cl.findI11Violation())
				ready, _ := cl.leastCounts()
				check.Is(t, 1, ready)
			})
		})
	}
}

// roomKeeper says that a successor needs a new instance, and counts the reservations for one.
type roomKeeper struct {
	launch time.Duration
	held   int
	asked  []bool        // with a reservation or without
	lasted time.Duration // the last one
	end    func()        // of the last one
}

func (r *roomKeeper) checkRoom(_ context.Context, _ kubeapi.Pod, reserve bool) Room {
	room := Room{Fits: true, LaunchTime: r.launch}
	r.asked = append(r.asked, reserve)
	if reserve {
		if r.end != nil {
			r.end() // a pod has one reservation
		}
		r.held++
		since := time.Now()
		r.end = sync.OnceFunc(func() { r.held, r.lasted = r.held-1, time.Since(since) })
		room.Release = r.end
	}
	return room
}

func TestRoomIsReservedUntilTheSuccessorHasANode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *cluster)
		lasts  time.Duration
		left   bool
	}{
		"succeeded":     {change: func(c *cluster) { c.launch = 30 * time.Second }, lasts: 30 * time.Second, left: true},
		"unschedulable": {change: func(c *cluster) { c.noRoom = true }, lasts: time.Minute},
		"refused":       {change: func(c *cluster) { c.forbidden["SetReplicas"] = true }},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, cl *cluster) {
				cl.mu.Lock()
				c.change(cl)
				cl.mu.Unlock()
				keeper := &roomKeeper{launch: time.Minute}
				p := cl.newProcess(ctx, "manager/1")
				p.options.CheckRoom = keeper.checkRoom
				d, result := p.surge(leaving, time.Time{}, nil)
				check.Is(t, 60.0, d.LaunchSeconds)
				check.Is(t, c.left, result.PodLeft, result)
				check.Is(t, 0, keeper.held)
				check.Equal(t, []bool{false, true}, keeper.asked) // Decide, and Run once it has the record
				check.Is(t, c.lasts, keeper.lasted.Round(2*time.Second))
			})
		})
	}
}

func TestNoRoomIsReservedWhileAnotherSurgeOfTheOwnerRuns(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "manager/1"), c.newProcess(ctx, "n2/1")
		keeper := &roomKeeper{}
		p.options.CheckRoom = keeper.checkRoom
		x := &surgeRun{s: other.Surger, request: c.request(startDecision(), time.Time{}), pods: newPodWatch()}
		r, err := x.plan(ctx)
		must.NoError(t, err)
		h, err := other.acquireRecord(ctx, r)
		must.NoError(t, err)
		time.AfterFunc(10*time.Second, func() {
			check.Is(t, 0, keeper.held)
			check.NoError(t, h.release(ctx))
		})
		result := p.Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, true, result.PodLeft, result)
		check.Not(t, keeper.lasted == 0, "no room was reserved for the successor")
		check.Is(t, 0, keeper.held)
	})
}

func TestNoEvictionIsAskedForWithTooFewReadyPods(t *testing.T) {
	simulate(t, func(t *testing.T) *cluster { return newCluster(t, 3) }, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		time.AfterFunc(10*time.Second, func() { c.evict("web-1-2") }) // another client does
		r := c.request(startDecision(), time.Time{})
		r.OnProgress = func(p Progress) { check.Not(t, p.Step == Evictable, "%+v", p) }
		result := p.Run(ctx, r)
		check.Not(t, !result.PodLeft, "result %+v", result)
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
		ready, _ := c.leastCounts()
		check.Is(t, 2, ready)
	})
}

// TestPodLeavesAlthoughItsPDBHasDeniedThat has an owner of three pods with a PodDisruptionBudget of two. One pod never is Ready.
func TestPodLeavesAlthoughItsPDBHasDeniedThat(t *testing.T) {
	for name, change := range map[string]func(c *cluster) *cluster{
		"Deployment":   func(c *cluster) *cluster { return c },
		"ReplicaSet":   (*cluster).withoutDeployment,
		"autoscaler":   func(c *cluster) *cluster { return c.withAutoscaler(1, 5) },
		"ScaledObject": (*cluster).withScaledObject,
		"the controllers see late that the successor is ready": func(c *cluster) *cluster {
			c.noService, c.readyLag, c.watchLag = true, 12*time.Second, 11*time.Second
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			makeCluster := func(t *testing.T) *cluster { return change(newCluster(t, 3).withUnhealthyPod()) }
			simulate(t, makeCluster, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				d, err := p.Decide(ctx, *c.pod(leaving), []*kubeapi.PodDisruptionBudget{newPDB(t, "2", "", 3, 2)}, time.Now().Add(-time.Hour), time.Time{})
				must.NoError(t, err)
				check.Is(t, ReasonPDBDenies, d.Reason, d)
				r, isEvictable := c.request(d, time.Time{}), false
				evict := r.OnProgress
				r.OnProgress = func(g Progress) {
					isEvictable = isEvictable || g.Step == Evictable
					evict(g)
				}
				result := p.Run(ctx, r)
				check.Is(t, true, result.PodLeft, result)
				check.Is(t, true, isEvictable)
				time.Sleep(time.Minute)
				check.Is(t, "", c.findTraces())
				ready, _ := c.leastCounts()
				check.Is(t, 2, ready)
				check.Not(t, c.pod("web-1-3") == nil || c.pod("web-1-4") == nil, "a healthy pod was deleted")
			})
		})
	}
}

// TestSurgeIsNotFailedIfThePDBAllowsTheEvictionBefore evicts the pod before its successor is ready.
func TestSurgeIsNotFailedIfThePDBAllowsTheEvictionBefore(t *testing.T) {
	for reason, want := range map[string]string{ReasonPDBDenies: ReasonNotNeeded, ReasonLastReady: ReasonLeaving} {
		t.Run(reason, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				d := startDecision()
				d.Reason = reason
				time.AfterFunc(10*time.Second, func() { c.evict(leaving) })
				result := p.Run(ctx, c.request(d, time.Time{}))
				check.Is(t, true, result.PodLeft, result)
				check.Is(t, 1, p.metrics.count("failed "+want))
				check.Is(t, "", c.findTraces())
			})
		})
	}
}

// variant is one application of the tests below.
func variant(t *testing.T, n int) *cluster {
	size := int32(1)
	switch n % 5 {
	case 3:
		size = 3
	case 4:
		size = 2
	}
	c := newCluster(t, size)
	if size == 3 {
		c.withUnhealthyPod()
	}
	switch n % 4 {
	case 1:
		c.withAutoscaler(1, 6)
	case 2:
		c.withScaledObject()
	case 3:
		switch n / 4 % 3 {
		case 0:
			c.withoutDeployment()
		case 1:
			c.withReplicationController()
		case 2:
			c.withCloneSet()
			c.minReady = time.Duration(n%5) * 4 * time.Second
		}
	}
	c.startup = time.Duration(1+7*(n%4)) * time.Second
	c.noService = n%3 == 0
	c.noRoom = n%7 == 6
	c.stuckScaler = n%6 == 5
	c.readyLag = time.Duration(n%5) * time.Second
	c.deploymentLag = time.Duration(n%9) * time.Second
	if n%5 == 2 {
		c.stallEndpoints(c.startup + 10*time.Second)
	}
	return c
}

// requestsBeforeRaise runs a surge, delay after its decision. It returns the names of the requests before the first attempt to
// raise. change, if set, runs after the decision.
func (p *process) requestsBeforeRaise(delay time.Duration, change func()) (names []string, result Result) {
	l := p.client
	d, err := p.Decide(p.ctx, *l.pod(leaving), nil, time.Time{}, time.Time{})
	must.NoError(l.cluster.t, err)
	if change != nil {
		change()
	}
	time.Sleep(delay)
	var mu sync.Mutex
	raised := false
	l.faultOf = func(name string) fault {
		mu.Lock()
		defer mu.Unlock()
		if raised = raised || name == "SetReplicas"; !raised {
			names = append(names, name)
		}
		return fault{}
	}
	result = p.Run(p.ctx, l.cluster.request(d, time.Time{}))
	return names, result
}

func TestSurgeReadsOwnersAgainOnlyAfterAnOldDecision(t *testing.T) {
	for delay, reads := range map[time.Duration]int{0: 0, time.Second: 0, 3 * time.Second: 2} {
		simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
			names, result := c.newProcess(ctx, "n1/1").requestsBeforeRaise(delay, nil)
			check.Not(t, !result.PodLeft, "result %+v", result)
			got := 0
			for _, name := range names {
				if name == "GetWorkload" {
					got++
				}
			}
			check.Is(t, reads, got, delay, " after the decision: ", names)
		})
	}
}

func TestSizeThatChangesAfterTheDecisionIsNotLost(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		_, result := c.newProcess(ctx, "n1/1").requestsBeforeRaise(0, func() { c.scaleByUser(3) })
		check.Not(t, !result.PodLeft, "result %+v", result)
		time.Sleep(time.Minute)
		check.Is(t, int32(3), c.currentField())
		check.Is(t, "", c.findTraces())
	})
}

// request returns the request of a drain that evicts the leaving pod when it is asked to.
func (c *cluster) request(d Decision, until time.Time) Request {
	return Request{Pod: *c.pod(leaving), Node: "n1", Decision: d, Until: until, OnProgress: func(g Progress) {
		if g.Step == Evictable {
			time.AfterFunc(time.Second, func() { c.evict(leaving) })
		}
	}}
}

// startDecision returns a decision to surge for the leaving pod.
func startDecision() Decision {
	return Decision{Verdict: Needed, Reason: ReasonPDBNeverAllows, Owner: Owner{UID: "u-web"}}
}

func TestI11SizeIsRestoredAfterInterruptionAtEachRequest(t *testing.T) {
	interruptions := 0
	for n := range 30 {
		for request, reached := 0, true; reached; request++ {
			how := interruption((n/2 + request) % 4)
			ok := t.Run(fmt.Sprintf("surge %d, request %d %s", n, request, how), func(t *testing.T) {
				simulate(t, func(t *testing.T) *cluster { return variant(t, n) }, func(t *testing.T, ctx context.Context, c *cluster) {
					p := c.newProcess(ctx, "n1/1")
					p.client.interruptAt, p.client.interruption = request, how
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						p.Run(p.ctx, c.request(startDecision(), time.Time{}))
					}()
					select {
					case <-p.ctx.Done():
					case <-ended:
						reached = p.client.requestCount() > request
					}
					other := c.newProcess(ctx, "n2/1")
					var wait sync.WaitGroup
					wait.Go(func() { other.RestoreExpired(other.ctx) })
					time.Sleep(time.Minute)
					if how == crashLate {
						time.Sleep(time.Minute)
					}
					check.Is(t, "", c.findI11Violation())
					ready, _ := c.leastCounts()
					check.Not(t, ready < c.lowestReady(), "only %d pods were ready", ready)
					<-ended
					for range 6 {
						if c.findTraces() != "" {
							time.Sleep(10 * time.Second)
						}
					}
					check.Is(t, "", c.findTraces())
					other.client.kill()
					wait.Wait()
				})
			})
			if !ok {
				return
			}
			interruptions++
		}
	}
	t.Logf("%d interruptions", interruptions)
}

// newRandomFaults returns faults for a part of the requests.
func newRandomFaults(seed int, stream uint64, permille int) func(int) fault {
	r := rand.New(rand.NewPCG(uint64(seed), stream))
	var mu sync.Mutex
	return func(int) fault {
		mu.Lock()
		defer mu.Unlock()
		f := fault{before: time.Duration(r.IntN(20)) * time.Millisecond}
		if r.IntN(1000) >= permille {
			return f
		}
		switch r.IntN(6) {
		case 0:
			f.fails = true
		case 1:
			f.unanswered = true
		case 2:
			f.before = time.Duration(r.IntN(8000)) * time.Millisecond
			if f.late = r.IntN(2) == 0; f.late {
				f.before = time.Duration(r.Int64N(int64(slowWebhook)))
			}
		case 3:
			f.overloaded = true
		case 4:
			f.after = time.Duration(r.IntN(8000)) * time.Millisecond
		case 5:
			f.repeated = true
		}
		return f
	}
}

// afterRaise calls act once, some time after the raise.
func afterRaise(onProgress func(Progress), delay time.Duration, act func()) func(Progress) {
	raised := false
	return func(g Progress) {
		if g.Step == AwaitingReady && !raised {
			raised = true
			time.AfterFunc(delay, act)
		}
		onProgress(g)
	}
}

func TestI11UsersWishPrevailsInRandomInterleavings(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range 200 {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			permille := []int{0, 50, 200}[seed%3]
			simulate(t, func(t *testing.T) *cluster {
				c := variant(t, seed)
				if r.IntN(4) == 0 && c.hpa == nil {
					c.gitOps = time.Duration(5+r.IntN(30)) * time.Second
				}
				if r.IntN(4) == 0 {
					c.stallEndpoints(time.Duration(r.IntN(240)) * time.Second)
				}
				return c
			}, func(t *testing.T, ctx context.Context, c *cluster) {
				p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
				p.client.nextFault, other.client.nextFault = newRandomFaults(seed, 2, permille), newRandomFaults(seed, 3, permille)
				keeper := &roomKeeper{launch: time.Minute}
				if seed%8 == 7 { // the successor needs a new instance
					c.mu.Lock()
					c.launch = time.Duration(r.IntN(60)) * time.Second
					c.mu.Unlock()
					p.options.CheckRoom = keeper.checkRoom
				}
				var wait sync.WaitGroup
				for _, s := range []*process{p, other} {
					wait.Go(func() { s.RestoreExpired(s.ctx) })
				}
				running, stop := context.WithCancel(ctx)
				if r.IntN(6) == 0 {
					time.AfterFunc(time.Duration(r.IntN(60000))*time.Millisecond, stop)
				}
				writes := rand.New(rand.NewPCG(uint64(seed), 4))
				count := writes.IntN(4)
				isConstant := count == 0 && c.gitOps == 0
				wait.Go(func() {
					r := writes
					for range count {
						elapsed.Sleep(running, time.Duration(r.IntN(25000))*time.Millisecond)
						size := int32(1 + r.IntN(5))
						if c.gitOps == 0 && size != c.currentField() {
							c.scaleByUser(size)
						}
						if c.hpa != nil {
							c.mu.Lock()
							c.metric = int32(1 + r.IntN(5))
							c.leastReady = 0 // the autoscaler may remove pods
							c.mu.Unlock()
						}
					}
				})
				restarting := rand.New(rand.NewPCG(uint64(seed), 5))
				restarts := restarting.IntN(3)
				wait.Go(func() {
					for range restarts {
						elapsed.Sleep(running, time.Duration(restarting.IntN(40000))*time.Millisecond)
						c.restartContainer(restarting)
					}
				})
				var until time.Time
				if r.IntN(2) == 0 {
					until = time.Now().Add(time.Duration(20+r.IntN(100)) * time.Second)
				} else {
					until = time.Now().Add(5 * time.Minute)
				}
				request := c.request(startDecision(), until)
				switch r.IntN(8) {
				case 0:
					answer := statusError([]int{403, 404}[r.IntN(2)], "")
					request.OnProgress = afterRaise(request.OnProgress, time.Duration(r.IntN(30))*time.Second, func() { c.deleteRecordNamespace(answer) })
				case 1:
					if isConstant && !c.stuckScaler {
						request.OnProgress = afterRaise(request.OnProgress, time.Duration(r.IntN(30))*time.Second, c.deleteTarget)
					}
				}
				result := p.Run(running, request)
				outcomes[result.Reason]++
				stop()
				time.Sleep(5 * time.Minute)
				check.Is(t, "", c.findTraces(), result)
				check.Is(t, 0, keeper.held)
				if ready, _ := c.leastCounts(); isConstant && restarts == 0 && len(c.unhealthy) > 0 {
					check.Not(t, ready < c.lowestReady(), "only %d pods were ready", ready)
				}
				if took := c.longestStartup(); took > max(c.startup, 20*time.Second)+2*tick {
					t.Errorf("a pod shows a start of %s, and each takes %s", took, c.startup)
				}
				p.client.kill()
				other.client.kill()
				wait.Wait()
			})
		})
		if !ok {
			return
		}
	}
	t.Logf("outcomes: %v", outcomes)
	check.Is(t, 0, outcomes[ReasonRequestFailed])
	check.Not(t, outcomes[""] < 50, "only %d of 200 surges succeeded", outcomes[""])
}

// TestNodesDrainedAtOnceKeepAReadyPod drains two of three nodes at about the same time. Each drain cordons its node first.
func TestNodesDrainedAtOnceKeepAReadyPod(t *testing.T) {
	for seed := range 60 {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 6))
			simulate(t, func(t *testing.T) *cluster {
				c := newCluster(t, int32(2+seed%3))
				for _, name := range slices.Sorted(maps.Keys(c.pods)) {
					c.pods[name].Spec.NodeName = nodes[r.IntN(2)]
				}
				c.startup = time.Duration(1+r.IntN(30)) * time.Second
				return c
			}, func(t *testing.T, ctx context.Context, c *cluster) {
				var drains sync.WaitGroup
				for _, node := range nodes[:2] {
					pause := time.Duration(r.IntN(2)*r.IntN(20000)) * time.Millisecond
					p := c.newProcess(ctx, node+"/1")
					p.client.nextFault = newRandomFaults(seed, 7, 0)
					drains.Go(func() {
						time.Sleep(pause)
						c.cordon(node)
						for _, pod := range c.podsOn(node) {
							current := c.pod(pod)
							if current == nil {
								continue
							}
							d, err := p.Decide(ctx, *current, nil, time.Time{}, time.Time{})
							check.NoError(t, err)
							if d.Verdict == Needed {
								result := p.Run(ctx, Request{Pod: *current, Node: node, Decision: d, OnProgress: func(g Progress) {
									if g.Step == Evictable {
										time.AfterFunc(time.Second, func() { c.evict(pod) })
									}
								}})
								check.Not(t, !result.PodLeft && result.Reason != ReasonNotNeeded, "%+v", result)
							}
							c.evict(pod)
						}
					})
				}
				drains.Wait()
				time.Sleep(time.Minute)
				check.Is(t, "", c.findI11Violation())
				ready, _ := c.leastCounts()
				check.Not(t, ready == 0, "for a time no pod was ready")
			})
		})
		if !ok {
			return
		}
	}
}

func TestSurgeSurvivesOutageOfAPIServer(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		began := time.Now()
		outage := func(until time.Duration) func(int) fault {
			return func(int) fault { return fault{fails: time.Since(began) > 5*time.Second && time.Since(began) < until} }
		}
		p.client.nextFault, other.client.nextFault = outage(30*time.Second), outage(35*time.Second)
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		_, result := p.surge(leaving, time.Time{}, nil)
		check.Not(t, !result.PodLeft || result.RestoreErr != nil, "result %+v", result)
		check.Is(t, "", c.findTraces())
		ready, _ := c.leastCounts()
		check.Is(t, 1, ready)
		other.client.kill()
		wait.Wait()
	})
}

func TestI11SizeIsRestoredAfterRecordWasDeleted(t *testing.T) {
	for name, answer := range map[string]error{
		"record": nil, "namespace": statusError(404, "NotFound"), "rights": statusError(403, "Forbidden"),
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				time.AfterFunc(7*time.Second, func() { c.deleteRecordNamespace(answer) })
				_, result := p.surge(leaving, time.Time{}, nil)
				check.Is(t, ReasonRecordLost, result.Reason, result)
				check.Not(t, result.RestoreErr != nil, "result %+v", result)
				check.Is(t, "", c.findTraces())
			})
		})
	}
}

func TestI11SizeIsRestoredAfterItsTargetWasDeleted(t *testing.T) {
	clusters := map[string]func(t *testing.T) *cluster{
		"Deployment":                            single,
		"autoscaler":                            func(t *testing.T) *cluster { return newCluster(t, 1).withAutoscaler(1, 5) },
		"ScaledObject":                          func(t *testing.T) *cluster { return newCluster(t, 1).withScaledObject() },
		"autoscaler of a ReplicationController": func(t *testing.T) *cluster { return newCluster(t, 1).withReplicationController().withAutoscaler(1, 5) },
		"autoscaler of a CloneSet":              func(t *testing.T) *cluster { return newCluster(t, 1).withCloneSet().withAutoscaler(1, 5) },
	}
	for name, makeCluster := range clusters {
		for _, crash := range []bool{false, true} {
			for _, after := range []time.Duration{5 * time.Second, 25 * time.Second} { // the successor is Ready after 20 s
				t.Run(fmt.Sprintf("%s after %s, crash %t", name, after, crash), func(t *testing.T) {
					simulate(t, makeCluster, func(t *testing.T, ctx context.Context, c *cluster) {
						c.mu.Lock()
						c.stallEndpoints(time.Hour)
						c.mu.Unlock()
						p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
						var wait sync.WaitGroup
						wait.Go(func() { other.RestoreExpired(other.ctx) })
						time.AfterFunc(after, func() {
							if crash {
								p.crash()
							}
							c.deleteTarget()
						})
						result := p.Run(p.ctx, c.request(startDecision(), time.Time{}))
						check.Is(t, !crash, result.Reason == ReasonDeleting, result)
						time.Sleep(time.Minute)
						check.Is(t, "", c.findI11Violation())
						time.Sleep(time.Minute)
						check.Is(t, "", c.findTraces())
						check.Not(t, c.pod(leaving) == nil, "the pod was deleted, although its surge failed")
						other.client.kill()
						wait.Wait()
					})
				})
			}
		}
	}
}

func TestDeletedTargetLeavesSizesOfOthers(t *testing.T) {
	for name, change := range map[string]func(c *cluster){
		"user sets the size": func(c *cluster) { c.replicaSet.ManagedFields = managedBy("kubectl", "replicas") },
		"another Deployment": func(c *cluster) {
			c.replicaSet.OwnerReferences = []kubeapi.OwnerReference{{Kind: "Deployment", Name: "new", UID: "u-new", Controller: isController()}}
		},
		"another ReplicaSet": func(c *cluster) { c.replicaSet.UID = "u-new" },
		"it is deleted too":  func(c *cluster) { now := time.Now(); c.replicaSet.DeletionTimestamp = &now },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				time.AfterFunc(5*time.Second, func() {
					c.deleteTarget()
					c.mu.Lock()
					defer c.mu.Unlock()
					change(c)
				})
				result := p.Run(ctx, c.request(startDecision(), time.Time{}))
				check.Is(t, ReasonDeleting, result.Reason, result)
				check.Not(t, result.RestoreErr != nil, "result %+v", result)
				check.Is(t, 2, c.currentField())
			})
		})
	}
}

// TestRecordIsDeletedAfterControllersThatNeedAsLongAsARestoration has an API server that needs 2 s for the deletion.
func TestRecordIsDeletedAfterControllersThatNeedAsLongAsARestoration(t *testing.T) {
	for ms := 12000; ms <= 15000; ms += 500 {
		simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
			c.noRoom, c.deploymentLag = true, time.Duration(ms)*time.Millisecond
			p := c.newProcess(ctx, "n1/1")
			p.client.faultOf = func(request string) fault {
				if request == "DeleteLease" {
					return fault{before: 2 * time.Second}
				}
				return fault{}
			}
			result := p.Run(ctx, c.request(startDecision(), time.Time{}))
			check.Is(t, ReasonUnschedulable, result.Reason)
			check.Not(t, result.RestoreErr != nil, "after controllers that need %s: %v", c.deploymentLag, result.RestoreErr)
			check.Is(t, "", c.findTraces())
		})
	}
}

func TestI11RaiseIsLoweredAfterTheSlowestWebhook(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		x := &surgeRun{s: p.Surger, request: c.request(startDecision(), time.Time{}), pods: newPodWatch()}
		r, err := x.plan(ctx)
		must.NoError(t, err)
		h, err := p.acquireRecord(ctx, r)
		must.NoError(t, err)
		time.Sleep(ownershipTimeout - time.Second)
		must.Not(t, !h.isHeld(), "the record is not held")
		z, err := p.readSize(ctx, r.Target)
		must.NoError(t, err)
		time.AfterFunc(30*time.Second, func() { _ = other.writeSize(ctx, r.Target, z.resourceVersion, &r.To) })
		for range 2 { // as early as possible
			l, err := other.client.GetLease(ctx, "slipway", h.lease.Name)
			must.NoError(t, err)
			time.Sleep(time.Until(l.Spec.RenewTime.Add(time.Duration(l.Spec.LeaseDurationSeconds) * time.Second)))
			must.NoError(t, other.restoreExpired(ctx, *l))
		}
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
	})
}

func TestNextSurgeAwaitsTheLateRaise(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		late := true
		p.client.faultOf = func(request string) fault {
			if request != "SetReplicas" || !late {
				return fault{}
			}
			late = false
			return fault{before: slowWebhook, late: true}
		}
		began := time.Now()
		draining, end := context.WithCancel(ctx)
		time.AfterFunc(2*time.Second, end)
		p.Run(draining, c.request(startDecision(), time.Time{}))
		result := p.Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, true, result.PodLeft, result)
		check.Not(t, result.StartedAt.Before(began.Add(slowWebhook)), "the next surge started after %s", result.StartedAt.Sub(began))
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
	})
}

func TestI11DeletionCostOfALateRequestIsTakenBack(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		p.client.faultOf = func(request string) fault {
			if request != "SetPodAnnotation" {
				return fault{}
			}
			time.AfterFunc(time.Second, p.crash)
			return fault{before: slowWebhook, late: true}
		}
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		p.Run(p.ctx, c.request(startDecision(), time.Time{}))
		time.Sleep(time.Minute)
		check.Is(t, 1, c.currentField())
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
		other.client.kill()
		wait.Wait()
	})
}

func TestRecordIsNotKeptAfterThePodHasLeft(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		time.AfterFunc(15*time.Second, func() {
			for c.currentField() == 2 {
				time.Sleep(time.Millisecond)
			}
			p.crash()
		})
		p.Run(p.ctx, c.request(startDecision(), time.Time{}))
		time.Sleep(leaseDuration + recordsPoll + 2*takeOverSpread + 2*time.Second)
		check.Is(t, "", c.findTraces())
		other.client.kill()
		wait.Wait()
	})
}

func TestSurgeAfterOutageLeavesSizeToNextHolder(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.neverReady = true
		c.mu.Unlock()
		p := c.newProcess(ctx, "n1/1")
		began := time.Now()
		p.client.nextFault = func(int) fault {
			since := time.Since(began)
			return fault{fails: since > 5*time.Second && since < 41*time.Second}
		}
		time.AfterFunc(30*time.Second, func() { // the size is that of another surge now
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, l := range c.leases {
				l.Spec.HolderIdentity = "n2/1"
				c.touch(&l.ObjectMeta)
			}
		})
		_, result := p.surge(leaving, began.Add(40*time.Second), nil)
		check.Is(t, ReasonUntil, result.Reason, result)
		check.Not(t, result.RestoreErr == nil, "result %+v", result)
		check.Is(t, 2, c.currentField())
	})
}

func TestDeletionCostIsSetOnlyWithTheRecord(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		began := time.Now()
		renewed, costs := began, 0
		p.client.faultOf = func(request string) fault {
			outage := time.Since(began) > 5*time.Second && time.Since(began) < 19*time.Second+leaseDuration/2
			switch {
			case request == "UpdateLease" && !outage:
				renewed = time.Now()
			case request == "SetPodAnnotation":
				costs++
				check.Not(t, time.Since(renewed) > ownershipTimeout, "the deletion cost is set %s after the record was renewed", time.Since(renewed))
			}
			return fault{fails: outage && request == "UpdateLease"}
		}
		_, result := p.surge(leaving, time.Time{}, nil)
		check.Is(t, true, result.PodLeft, result)
		check.Not(t, costs == 0, "the deletion cost was never set")
	})
}

func TestDeletionCostIsNotRetriedWithoutTheRecord(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		var renewed, first time.Time
		costs := 0
		p.client.faultOf = func(request string) fault {
			if first.IsZero() && request == "SetPodAnnotation" {
				first = time.Now()
			}
			outage := !first.IsZero() && time.Since(first) < leaseDuration
			switch {
			case request == "UpdateLease" && !outage:
				renewed = time.Now()
			case request == "SetPodAnnotation":
				costs++
				check.Not(t, time.Since(renewed) > ownershipTimeout, "the deletion cost is set %s after the record was renewed", time.Since(renewed))
			}
			return fault{fails: outage && (request == "UpdateLease" || request == "SetPodAnnotation")}
		}
		result := p.Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, true, result.PodLeft, result)
		check.Not(t, costs < 3, "the request was sent %d times", costs)
	})
}

func TestDeletionCostIsReadOnce(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		read := 0
		p.client.faultOf = func(request string) fault {
			switch request {
			case "SetReplicas":
				read = 0
			case "GetPod":
				read++
			case "SetPodAnnotation":
				check.Is(t, 1, read)
			}
			return fault{}
		}
		result := p.Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, true, result.PodLeft, result)
	})
}

func TestFailingLoweringEndsTheSurge(t *testing.T) {
	for want, after := range map[string]func(c *cluster){
		ReasonRequestFailed: func(*cluster) {},
		ReasonRecordLost: func(c *cluster) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, l := range c.leases {
				l.Spec.HolderIdentity = "n2/1"
				c.touch(&l.ObjectMeta)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				began := time.Now()
				p.client.faultOf = func(request string) fault {
					return fault{fails: request == "SetReplicas" && time.Since(began) > 10*time.Second}
				}
				time.AfterFunc(26*time.Second, func() { after(c) }) // Slipway lowers the size since about 24 s
				draining, cancel := context.WithTimeout(ctx, 5*time.Minute)
				defer cancel()
				result := p.Run(draining, c.request(startDecision(), time.Time{}))
				check.Is(t, want, result.Reason, result)
				check.Not(t, result.RestoreErr == nil, "result %+v", result)
				check.Is(t, 2, c.currentField())
			})
		})
	}
}

func TestForgedRecordIsNotRestored(t *testing.T) {
	size := func(n int32) *int32 { return &n }
	genuine := func() record {
		return record{
			Owner: Owner{UID: "u-web"}, From: size(1), To: 2, Pod: objectRef{Namespace: namespace, Name: leaving},
			Target: sizeTarget{APIVersion: "apps/v1", Kind: "Deployment", Namespace: namespace, Name: "web", UID: "u-web", Field: "replicas"},
		}
	}
	for name, forge := range map[string]func(r *record){
		"stops the owner":   func(r *record) { r.From, r.To = size(0), 1 },
		"several steps":     func(r *record) { r.To = 4 },
		"without a size":    func(r *record) { r.From = nil },
		"another object":    func(r *record) { r.Target.UID = "u-other" },
		"another owner":     func(r *record) { r.Owner.UID, r.Target.UID = "u-other", "u-other" },
		"another namespace": func(r *record) { r.Target.Namespace = "kube-system" },
		"another field":     func(r *record) { r.Target.Field = "minReplicas" },
		"another API group": func(r *record) { r.Target.APIVersion = "v1" },
		"an unknown kind":   func(r *record) { r.Target.Kind = "StatefulSet" },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				r := genuine()
				l, err := p.newLease(&r, time.Now())
				must.NoError(t, err)
				_, err = parseRecord(&l)
				must.NoError(t, err)
				forge(&r)
				forged, err := p.newLease(&r, time.Now())
				must.NoError(t, err)
				l.Annotations, l.Spec.HolderIdentity = forged.Annotations, "x/1"
				c.mu.Lock()
				c.deployment.ManagedFields = managedBy(FieldManager, "replicas")
				p.client.putLease(l)
				c.mu.Unlock()
				began := time.Now()
				result := p.Run(ctx, c.request(startDecision(), began.Add(10*time.Minute)))
				check.Is(t, ReasonBusy, result.Reason, result)
				check.Not(t, time.Since(began) > time.Minute, "it took %s", time.Since(began))
				check.Is(t, 1, c.currentField())
			})
		})
	}
}

func TestLateSuccessorIsKeptWhenThePodIsEvicted(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.startup = 40 * time.Second
		c.mu.Unlock()
		p := c.newProcess(ctx, "n1/1")
		time.AfterFunc(35*time.Second, func() { c.evict(leaving) }) // forced
		r := Request{Pod: *c.pod(leaving), Node: "n1", Decision: startDecision(), Until: time.Now().Add(30 * time.Second)}
		result := p.Run(ctx, r)
		check.Is(t, ReasonUntil, result.Reason, result)
		time.Sleep(15 * time.Second)
		successor := c.pod("web-1-2")
		must.Not(t, successor == nil, "the successor was deleted")
		_, ready := successor.ReadyTime()
		check.Not(t, !ready, "the successor is not ready")
		check.Is(t, "", c.findTraces())
	})
}

func TestSlowReplicaSetControllerDeletesNoSuccessor(t *testing.T) {
	for name, tt := range map[string]struct {
		lag, readyLag, until time.Duration // until is about when the size is lowered
	}{
		"very slow":                     {lag: removalWait + 5*time.Second},
		"does not see that it is ready": {readyLag: time.Hour},
		"at the end of the time":        {lag: 5 * time.Second, until: 24500 * time.Millisecond},
		"before the size was lowered":   {lag: 5 * time.Second, until: 23 * time.Second},
		"does not see it in time":       {readyLag: time.Hour, until: 24500 * time.Millisecond},
		"sees it while the pod leaves":  {readyLag: 8 * time.Second, until: 24500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.mu.Lock()
				c.removalLag, c.readyLag = tt.lag, tt.readyLag
				c.mu.Unlock()
				var until time.Time
				if tt.until > 0 {
					until = time.Now().Add(tt.until)
					time.AfterFunc(tt.until+6*time.Second, func() { c.evict(leaving) })
				}
				result := c.newProcess(ctx, "n1/1").Run(ctx, c.request(startDecision(), until))
				check.Is(t, tt.until == 0, result.PodLeft, result)
				time.Sleep(time.Minute)
				check.Is(t, "", c.findTraces())
				ready, serving := c.leastCounts()
				check.Not(t, ready != 1 || serving != 1, "for a time %d pods were ready, and %d ready endpoints", ready, serving)
				check.Not(t, c.pod("web-1-2") == nil, "the successor was deleted")
			})
		})
	}
}

// TestCloneSetKeepsTheSuccessorUntilItIsAvailable has a PodDisruptionBudget that never allows the eviction which Slipway asks for meanwhile.
func TestCloneSetKeepsTheSuccessorUntilItIsAvailable(t *testing.T) {
	simulate(t, func(t *testing.T) *cluster { return newCluster(t, 2).withCloneSet() }, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.minReady = time.Minute
		c.mu.Unlock()
		result := c.newProcess(ctx, "n1/1").Run(ctx, Request{Pod: *c.pod(leaving), Node: "n1", Decision: startDecision()})
		check.Not(t, !result.PodLeft || result.RestoreErr != nil, "result %+v", result)
		took := result.EndedAt.Sub(result.ReadyAt)
		check.Not(t, took < time.Minute || took > 70*time.Second, "the pod left %s after its successor was ready", took)
		check.Not(t, c.pod("web-1-2") == nil || c.pod("web-1-3") == nil, "another pod than the leaving one was deleted")
		ready, serving := c.leastCounts()
		check.Not(t, ready != 2 || serving != 2, "for a time %d pods were ready, and %d ready endpoints", ready, serving)
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
	})
}

func TestCloneSetThatMayCreateNoPodIsRestored(t *testing.T) {
	simulate(t, func(t *testing.T) *cluster { return newCluster(t, 2).withCloneSet() }, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.scaleLimit, c.neverReady = 1, true
		c.mu.Unlock()
		c.setReady("web-1-2", false)
		result := c.newProcess(ctx, "n1/1").Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, ReasonNoSuccessor, result.Reason, result)
		took := result.EndedAt.Sub(result.StartedAt)
		check.Not(t, took < creationWait || took > creationWait+2*time.Second, "the surge ended after %s", took)
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
		check.Not(t, c.pod(leaving) == nil || c.pod("web-1-2") == nil, "a pod was deleted")
	})
}

func TestRolloutOfACloneSetEndsTheSurge(t *testing.T) {
	for name, tt := range map[string]struct {
		starts func(c *cluster) bool
		ended  time.Duration // at most
	}{
		"while the successor starts": {func(c *cluster) bool { return c.pod("web-1-2") != nil }, 7 * time.Second},
		"before the size is lowered": {func(c *cluster) bool { return c.pod(leaving).Annotations[DeletionCostAnnotation] != "" }, 25 * time.Second},
		"shortly before the size is lowered": {func(c *cluster) bool {
			isSet := c.pod(leaving).Annotations[DeletionCostAnnotation] != ""
			if isSet {
				time.Sleep(costWait / 2) // the owner was read after that change
			}
			return isSet
		}, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T) *cluster { return newCluster(t, 1).withCloneSet() }, func(t *testing.T, ctx context.Context, c *cluster) {
				go func() {
					for !tt.starts(c) {
						time.Sleep(time.Millisecond)
					}
					c.mu.Lock()
					defer c.mu.Unlock()
					c.replicaSet.Status.UpdateRevision = "web-1-b"
					c.touch(&c.replicaSet.ObjectMeta)
				}()
				result := c.newProcess(ctx, "n1/1").Run(ctx, c.request(startDecision(), time.Time{}))
				check.Is(t, ReasonRollout, result.Reason, result)
				took := result.EndedAt.Sub(result.StartedAt)
				check.Not(t, took > tt.ended, "the surge ended after %s", took)
				time.Sleep(time.Minute)
				check.Is(t, "", c.findTraces())
				check.Not(t, c.pod(leaving) == nil, "the pod was deleted, although its surge failed")
			})
		})
	}
}

func TestDeletionCostIsSetOnlyWhileSuccessorReceivesTraffic(t *testing.T) {
	for name, afterRead := range map[string]bool{"cost of the application": false, "cost that the application sets after the read": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				annotate := func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.pods[leaving].Annotations = map[string]string{DeletionCostAnnotation: "7"}
					c.notify(c.pods[leaving], false)
				}
				p := c.newProcess(ctx, "n1/1")
				if afterRead {
					once := sync.OnceFunc(annotate)
					p.client.faultOf = func(request string) fault {
						if request == "SetPodAnnotation" {
							once()
						}
						return fault{}
					}
				} else {
					time.AfterFunc(10*time.Second, annotate)
				}
				cost := func() string { return c.pod(leaving).Annotations[DeletionCostAnnotation] }
				time.AfterFunc(15*time.Second, func() {
					for cost() != lowestCost {
						time.Sleep(tick / 4)
					}
					check.Not(t, !c.isServing(c.pod("web-1-2"), time.Now()), "the successor is no endpoint")
					c.setReady("web-1-2", false)
					time.Sleep(2 * time.Second)
					check.Is(t, "7", cost())
					c.mu.Lock()
					c.neverReady = true
					c.stallEndpoints(time.Hour)
					c.mu.Unlock()
					c.setReady("web-1-2", true)
				})
				result := p.Run(ctx, c.request(startDecision(), time.Time{}))
				check.Is(t, ReasonNoEndpoint, result.Reason, result)
				check.Is(t, "7", cost())
				time.Sleep(time.Minute)
				check.Is(t, "7", cost())
				check.Is(t, 1, c.currentField())
			})
		})
	}
}

func TestEndedDrainAwaitsNoDeparture(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.startup = 40 * time.Second
		c.mu.Unlock()
		p := c.newProcess(ctx, "n1/1")
		draining, end := context.WithCancel(ctx)
		time.AfterFunc(32*time.Second, end)
		began := time.Now()
		p.Run(draining, Request{Pod: *c.pod(leaving), Node: "n1", Decision: startDecision(), Until: began.Add(30 * time.Second)})
		took := time.Since(began)
		check.Not(t, took < 32*time.Second || took > 34*time.Second, "the surge ended after %s", took)
		check.Is(t, 1, c.currentField())
		check.Is(t, "", c.findTraces())
	})
}

func TestStartupExcludesLaunchOfInstance(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.launch = 4 * time.Minute
		c.mu.Unlock()
		p, other := c.newProcess(ctx, "manager/1"), c.newProcess(ctx, "n2/1")
		p.options.SchedulingWait = 10 * time.Minute
		result := p.Run(ctx, c.request(startDecision(), time.Time{}))
		check.Is(t, true, result.PodLeft, result)
		for name, s := range map[string]*process{"learned": p, "measured on the pods": other} {
			d, err := s.Decide(ctx, *c.pod("web-1-2"), nil, time.Time{}, time.Now().Add(30*time.Second))
			must.NoError(t, err)
			check.Is(t, Needed, d.Verdict, name, d)
			check.Not(t, d.StartupSeconds < 19 || d.StartupSeconds > 21, "%s: a start takes %gs, want 20", name, d.StartupSeconds)
		}
	})
}

// TestSuccessorOfACrashedProcessDoesNotReplaceThePod crashes a process before its successor is Ready. The restoration removes that
// successor, so the next process must not evict the pod because of it.
func TestSuccessorOfACrashedProcessDoesNotReplaceThePod(t *testing.T) {
	for name, decidesBefore := range map[string]bool{"decides before the crash": true, "decides after the crash": false} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				crashed, next := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n1/2")
				var d Decision
				decide := func() {
					var err error
					d, err = next.Decide(ctx, *c.pod(leaving), nil, time.Time{}, time.Time{})
					must.NoError(t, err)
				}
				if decidesBefore {
					decide()
				}
				crashed.surge(leaving, time.Time{}, func(p Progress) {
					if p.Step == AwaitingReady && p.Successor != "" {
						crashed.crash()
					}
				})
				time.Sleep(time.Minute) // the successor becomes Ready, and no process has seen the record
				if !decidesBefore {
					decide()
				}
				check.Is(t, Needed, d.Verdict, d)
				result := next.Run(ctx, Request{Pod: *c.pod(leaving), Node: "n1", Decision: d})
				check.Is(t, true, result.PodLeft, result)
				check.Not(t, result.Successor == "", "the pod left without a successor of this surge")
				ready, serving := c.leastCounts()
				check.Is(t, 1, ready)
				check.Is(t, 1, serving)
				check.Is(t, "", c.findTraces())
			})
		})
	}
}

// TestEndOfAnotherSurgeAfterTheDecisionCostsNoPod restores the size of a crashed process between a decision and its surge. The successor of
// the crashed process goes with that.
func TestEndOfAnotherSurgeAfterTheDecisionCostsNoPod(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.stallEndpoints(30 * time.Second)
		crashed, drainer := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n1/2")
		crashed.surge(leaving, time.Time{}, func(p Progress) {
			if p.Step == AwaitingEndpoint {
				crashed.crash()
			}
		})
		d, err := drainer.Decide(ctx, *c.pod(leaving), nil, time.Time{}, time.Time{})
		must.NoError(t, err)
		check.Is(t, ReasonLastReady, d.Reason, d)
		c.mu.Lock()
		c.setReplicas(c.deployment, 1, FieldManager)
		clear(c.leases)
		c.mu.Unlock()
		c.evict("web-1-2")
		result := drainer.Run(ctx, c.request(d, time.Time{}))
		check.Not(t, !result.PodLeft || result.Successor != "shop/web-1-3", "result %+v", result)
		ready, _ := c.leastCounts()
		check.Is(t, 1, ready)
	})
}

func TestOwnerHasOneSurgeAtATime(t *testing.T) {
	simulate(t, func(t *testing.T) *cluster { return newCluster(t, 2) }, func(t *testing.T, ctx context.Context, c *cluster) {
		c.mu.Lock()
		c.pods["web-1-2"].Spec.NodeName = "n1"
		c.mu.Unlock()
		var wait sync.WaitGroup
		for i, name := range []string{"web-1-1", "web-1-2"} {
			p := c.newProcess(ctx, fmt.Sprintf("n1/%d", i))
			wait.Go(func() {
				pod := c.pod(name)
				result := p.Run(ctx, Request{Pod: *pod, Node: "n1", Decision: startDecision()})
				check.Not(t, !result.PodLeft, "pod %s: %+v", name, result)
			})
		}
		for range 100 {
			time.Sleep(time.Second)
			check.Not(t, c.currentField() > 3, "the size is %d", c.currentField())
		}
		wait.Wait()
		check.Is(t, "", c.findTraces())
		ready, _ := c.leastCounts()
		check.Is(t, 2, ready)
	})
}

func TestThousandHoldersDoNotRush(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		var wait sync.WaitGroup
		var all []*process
		for i := range 1000 {
			p := c.newProcess(ctx, fmt.Sprintf("n%d/1", i))
			all = append(all, p)
			wait.Go(func() { p.RestoreExpired(p.ctx) })
		}
		time.Sleep(time.Minute)
		requests := 0
		for _, p := range all {
			requests += p.client.requestCount()
		}
		check.Not(t, requests > 1000*6, "1000 idle holders sent %d requests within 1 min", requests)
		pod := c.pod(leaving)
		crashed := c.newProcess(ctx, "y/1")
		time.AfterFunc(8*time.Second, crashed.crash)
		crashed.Run(crashed.ctx, Request{Pod: *pod, Node: "n1", Decision: startDecision()})
		time.Sleep(45 * time.Second)
		check.Is(t, "", c.findI11Violation())
		time.Sleep(time.Minute)
		check.Is(t, "", c.findTraces())
		restored := 0
		for _, p := range all {
			restored += p.metrics.count("restored")
		}
		check.Is(t, 1, restored)
		for _, p := range all {
			p.client.kill()
		}
		wait.Wait()
	})
}
