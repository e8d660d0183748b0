package surge

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// firstOnly returns faults for the first request of a name only.
func firstOnly(request string, f fault) func(string) fault {
	var mu sync.Mutex
	done := false
	return func(name string) fault {
		mu.Lock()
		defer mu.Unlock()
		if name != request || done {
			return fault{}
		}
		done = true
		return f
	}
}

// onlyRecord returns the Lease of the only record.
func (p *process) onlyRecord(ctx context.Context) kubeapi.Lease {
	t := p.client.t
	t.Helper()
	leases, err := p.client.ListCachedLeases(ctx, "slipway", "")
	must.NoError(t, err)
	must.Not(t, len(leases) != 1, "%d records", len(leases))
	return leases[0]
}

func TestI11RepeatedRequestRaisesOnce(t *testing.T) {
	for name, request := range map[string]string{"size": "SetReplicas", "minimum": "SetMinSize", "record": "CreateLease", "cost": "SetPodAnnotation"} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T) *cluster {
				c := newCluster(t, 1)
				if request == "SetMinSize" {
					c.withAutoscaler(1, 6)
				}
				return c
			}, func(t *testing.T, ctx context.Context, c *cluster) {
				p := c.newProcess(ctx, "n1/1")
				p.client.faultOf = firstOnly(request, fault{repeated: true})
				_, result := p.surge(leaving, time.Time{}, func(g Progress) {
					if g.Step == AwaitingReady {
						check.Is(t, 2, c.currentField())
					}
				})
				check.Is(t, true, result.PodLeft, result)
				time.Sleep(10 * time.Minute) // an autoscaler lowers the size late
				check.Is(t, "", c.findTraces())
			})
		})
	}
}

// TestI11RaiseAfterAnOutageIsLowered has a network that delivers the raise after another process has deleted the record.
func TestI11RaiseAfterAnOutageIsLowered(t *testing.T) {
	const outage = 3 * time.Minute
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		var mu sync.Mutex
		var began time.Time
		p.client.faultOf = func(request string) fault {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case began.IsZero() && request == "SetReplicas":
				began = time.Now()
				return fault{before: outage, late: true}
			case !began.IsZero() && time.Since(began) <= outage+time.Second:
				return fault{fails: true}
			}
			return fault{}
		}
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		_, result := p.surge(leaving, time.Time{}, nil)
		check.Is(t, false, result.PodLeft, result)
		check.NoError(t, result.RestoreErr)
		check.Is(t, "", c.findTraces())
		other.client.kill()
		wait.Wait()
	})
}

func TestTakeOverGoesOnWithoutAClearAnswer(t *testing.T) {
	for name, f := range map[string]fault{
		"unanswered": {unanswered: true}, "repeated": {repeated: true}, "overloaded": {overloaded: true}, "failed": {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.neverReady = true
				p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
				time.AfterFunc(7*time.Second, p.crash)
				p.surge(leaving, time.Time{}, nil)
				check.Is(t, 2, c.currentField())
				other.client.faultOf = firstOnly("UpdateLease", f)
				lease := other.onlyRecord(ctx)
				check.NoError(t, other.restoreExpired(ctx, lease))
				check.Is(t, "", c.findI11Violation())
			})
		})
	}
}

// TestFailedRestoreIsTriedAgainAtOnce has an API server that fails for longer than one restore may take.
func TestFailedRestoreIsTriedAgainAtOnce(t *testing.T) {
	const outage = 40 * time.Second
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.neverReady = true
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		time.AfterFunc(7*time.Second, p.crash)
		p.surge(leaving, time.Time{}, nil)
		lease := other.onlyRecord(ctx)
		began, taken := time.Now(), false
		other.client.faultOf = func(request string) fault {
			isFirst := request == "UpdateLease" && !taken
			taken = taken || isFirst
			return fault{fails: !isFirst && time.Since(began) < outage}
		}
		other.restoreWithRetries(ctx, lease)
		check.Is(t, "", c.findI11Violation())
		took := time.Since(began)
		check.Not(t, took > outage+2*time.Second, "the size was restored after %s", took)
	})
}

func TestSuccessorStaysWhenTheRestOfACrashedSurgeIsCarriedOut(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.removalLag = time.Second
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		p.client.faultOf = func(request string) fault {
			if request == "SetPodAnnotation" {
				time.AfterFunc(100*time.Millisecond, p.crash)
			}
			return fault{}
		}
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		p.surge(leaving, time.Time{}, nil)
		time.Sleep(2 * time.Minute)
		check.Is(t, "", c.findTraces())
		check.Not(t, c.pod(leaving) != nil, "the leaving pod stays")
		check.Not(t, c.pod("web-1-2") == nil, "the successor was deleted")
		other.client.kill()
		wait.Wait()
	})
}

// TestNextDrainAwaitsTheControllersAfterACrash has slow controllers. While they have not yet removed the surplus pod, the next process must
// not evict the leaving pod because of the successor, which the controllers may remove.
func TestNextDrainAwaitsTheControllersAfterACrash(t *testing.T) {
	crash := func(p *process) { p.crash() }
	for name, tt := range map[string]struct {
		stop                      func(p *process)
		at                        Step
		deploymentLag, removalLag time.Duration
	}{
		"crash":              {stop: crash, at: AwaitingEndpoint, removalLag: 8 * time.Second},
		"end of the process": {stop: func(p *process) { p.client.kill() }, at: AwaitingEndpoint, removalLag: 8 * time.Second},
		"size not seen yet":  {stop: crash, at: AwaitingReady, deploymentLag: 18 * time.Second, removalLag: 10 * time.Second},
		"slow controllers":   {stop: crash, at: AwaitingEndpoint, deploymentLag: 18 * time.Second, removalLag: 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.startup, c.deploymentLag, c.removalLag = time.Second, tt.deploymentLag, tt.removalLag
				p, next := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n1/2")
				p.surge(leaving, time.Time{}, func(g Progress) {
					if g.Step == tt.at {
						tt.stop(p)
					}
				})
				var wait sync.WaitGroup
				wait.Go(func() { next.RestoreExpired(next.ctx) })
				for range 200 {
					if c.pod(leaving) == nil {
						break
					}
					d, result := next.surge(leaving, time.Time{}, nil)
					tries := 1
					if d.Verdict != NotNeeded {
						tries = 30 // until the drain decides again
					}
					for range tries {
						if !result.PodLeft && c.pod(leaving) != nil {
							c.evictOnce(leaving)
						}
						time.Sleep(time.Second)
					}
				}
				check.Not(t, c.pod(leaving) != nil, "the pod stays")
				ready, serving := c.leastCounts()
				check.Is(t, 1, ready)
				check.Is(t, 1, serving)
				time.Sleep(time.Minute)
				check.Is(t, "", c.findTraces())
				next.client.kill()
				wait.Wait()
			})
		})
	}
}

// TestRestartsKeepAReadyPod drains a node with one process after another, on a slow control plane. Each but the last crashes or is stopped,
// perhaps while it takes back what the one before has left.
func TestRestartsKeepAReadyPod(t *testing.T) {
	for seed := range 150 {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 8))
			seconds := func(n int) time.Duration { return time.Duration(r.IntN(1000*n)) * time.Millisecond }
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.noService = seed%2 == 0
				c.startup, c.deploymentLag, c.removalLag = seconds(10), seconds(20), seconds(40)
				c.stallEndpoints(seconds(60))
				const last = 3
				for n := range last + 1 {
					p := c.newProcess(ctx, fmt.Sprintf("n1/%d", n))
					delays := rand.New(rand.NewPCG(uint64(seed), uint64(9+n)))
					var mu sync.Mutex
					p.client.nextFault = func(int) fault {
						mu.Lock()
						defer mu.Unlock()
						return fault{before: time.Duration(delays.IntN(1500)) * time.Millisecond}
					}
					stop := p.client.kill
					if r.IntN(2) == 0 {
						stop = p.crash
					}
					if n < last {
						time.AfterFunc(seconds(90), stop)
					}
					var wait sync.WaitGroup
					wait.Go(func() { p.RestoreExpired(p.ctx) })
					p.drain()
					if n == last {
						time.Sleep(3 * time.Minute) // for records that stay for a late request
					}
					p.client.kill()
					wait.Wait()
				}
				pod := c.pod(leaving)
				check.Not(t, pod != nil && pod.DeletionTimestamp == nil, "the pod stays")
				ready, _ := c.leastCounts()
				check.Is(t, 1, ready)
				check.Is(t, "", c.findTraces())
			})
		})
		if !ok {
			return
		}
	}
}

// drain makes the leaving pod leave as a drain does, until the process ends.
func (p *process) drain() {
	c := p.client.cluster
	for {
		pod := c.pod(leaving)
		if pod == nil || pod.DeletionTimestamp != nil {
			return
		}
		d, err := p.Decide(p.ctx, *pod, nil, time.Time{}, time.Time{})
		if err == nil && d.Verdict == Needed {
			result := p.Run(p.ctx, Request{Pod: *pod, Node: "n1", Decision: d, OnProgress: func(g Progress) {
				if g.Step == Evictable {
					time.AfterFunc(time.Second, func() { c.evict(leaving) })
				}
			}})
			isExpected := result.PodLeft || result.Reason == ReasonNotNeeded || p.ctx.Err() != nil
			check.Not(c.t, !isExpected, "result %+v", result)
		}
		switch {
		case p.ctx.Err() != nil:
			return
		case err != nil: // it is tried again
			time.Sleep(time.Second)
		default:
			c.evict(leaving)
		}
	}
}

// TestRecordStaysUntilTheRaiseIsSeen has a controller that sees the raise after the size was lowered again. It then starts a successor, and
// removes it later.
func TestRecordStaysUntilTheRaiseIsSeen(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		c.startup, c.deploymentLag = time.Second, 40*time.Second
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		time.AfterFunc(7*time.Second, p.crash)
		p.surge(leaving, time.Time{}, nil)
		must.NoError(t, other.restoreExpired(ctx, other.onlyRecord(ctx)))
		check.Is(t, 0, len(c.unseen))
		check.Is(t, 1, c.countReady())
		check.Is(t, 2, c.created)
	})
}

// TestFailedSurgeEndsAfterTheControllersHaveActed has a control plane on which each size takes 30 s to become pods. A drain that goes on
// evicts the pod after the surge has ended. The successor must not be counted then, because the controllers remove it.
func TestFailedSurgeEndsAfterTheControllersHaveActed(t *testing.T) {
	for name, isCancelled := range map[string]bool{"no room": false, "cancelled": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
				c.noRoom, c.deploymentLag = true, 30*time.Second
				draining, cancel := context.WithCancel(ctx)
				defer cancel()
				p := c.newProcess(draining, "n1/1")
				began := time.Now()
				if isCancelled {
					time.AfterFunc(40*time.Second, cancel)
				}
				result := p.Run(draining, c.request(startDecision(), time.Time{}))
				check.Is(t, false, result.PodLeft, result)
				if isCancelled {
					took := time.Since(began)
					check.Not(t, took > 40*time.Second+restoreTimeout, "it ended after %s", took)
					return
				}
				check.Is(t, ReasonUnschedulable, result.Reason)
				check.Is(t, "", c.findTraces())
				check.Not(t, c.pod("web-1-2") != nil && c.pod("web-1-2").DeletionTimestamp == nil, "the successor is still there")
			})
		})
	}
}

func TestRecordWithoutAnAnswerIsDeletedWhenTheDrainEnds(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p := c.newProcess(ctx, "n1/1")
		draining, end := context.WithCancel(ctx)
		p.client.faultOf = firstOnly("CreateLease", fault{unanswered: true})
		time.AfterFunc(200*time.Millisecond, end)
		result := p.Run(draining, c.request(startDecision(), time.Time{}))
		check.Is(t, ReasonCancelled, result.Reason, result)
		check.Is(t, "", c.findTraces())
	})
}

// TestFailedRestoreKeepsTheRecordForALateRequest has no answer to the request that keeps the record.
func TestFailedRestoreKeepsTheRecordForALateRequest(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		p.client.faultOf = func(request string) fault {
			if request != "SetReplicas" {
				return fault{}
			}
			time.AfterFunc(time.Second, p.crash)
			return fault{before: slowWebhook, late: true}
		}
		updates := 0
		other.client.faultOf = func(request string) fault {
			if request == "UpdateLease" {
				updates++
			}
			// The take-over succeeds, and the next write has no answer for longer than the restore may take.
			return fault{unanswered: request == "UpdateLease" && updates == 2, fails: request == "UpdateLease" && updates > 2 && updates < 40}
		}
		p.surge(leaving, time.Time{}, nil)
		lease := other.onlyRecord(ctx)
		other.restoreWithRetries(ctx, lease)
		kept, err := other.client.ListCachedLeases(ctx, "slipway", "")
		must.NoError(t, err)
		check.Not(t, len(kept) != 1, "%d records are kept", len(kept))
	})
}

// TestI11SizeOfTheUserStaysAfterALongSuspension ends a surge long after another process has restored the size. Its user has set the raised
// size since then, and another surge has written it.
func TestI11SizeOfTheUserStaysAfterALongSuspension(t *testing.T) {
	simulate(t, single, func(t *testing.T, ctx context.Context, c *cluster) {
		p, other := c.newProcess(ctx, "n1/1"), c.newProcess(ctx, "n2/1")
		x := &surgeRun{s: p.Surger, request: c.request(startDecision(), time.Time{}), pods: newPodWatch()}
		var err error
		x.record, err = x.plan(ctx)
		must.NoError(t, err)
		x.hold, err = p.acquireRecord(ctx, x.record)
		must.NoError(t, err)
		must.NoError(t, x.raise(ctx))
		check.Is(t, 2, c.currentField())
		var wait sync.WaitGroup
		wait.Go(func() { other.RestoreExpired(other.ctx) })
		time.Sleep(3 * time.Minute)
		check.Is(t, "", c.findTraces())
		c.scaleByUser(2)
		c.mu.Lock()
		c.sized().ManagedFields = managedBy(FieldManager, "replicas")
		c.mu.Unlock()
		_ = x.end(ctx, nil)
		check.Is(t, "", c.findTraces())
		other.client.kill()
		wait.Wait()
	})
}

// TestI11SuspendedProcessDoesNotRelyOnItsRecord suspends the machine after a renewal, so that only the wall clock goes on.
func TestI11SuspendedProcessDoesNotRelyOnItsRecord(t *testing.T) {
	for _, tt := range []struct {
		suspended       time.Duration
		held, isDeleted bool
	}{
		{0, true, true},
		{ownershipTimeout, false, true},
		{leaseDuration, false, false},
	} {
		h := (&Surger{}).newHold(kubeapi.Lease{}, elapsed.Now())
		h.renewed.Wall = h.renewed.Wall.Add(-tt.suspended)
		check.Is(t, tt.held, h.isHeld(), tt.suspended)
		h.setGone() // another process may have taken it over before
		check.Is(t, tt.isDeleted, h.isDeleted(), tt.suspended)
	}
}

func TestRecordExpiresWithinALimit(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		holder  string
		seconds int32
		want    time.Duration
	}{
		{"", math.MaxInt32, 0},
		{"n2/1", 0, leaseDuration},
		{"n2/1", -1, leaseDuration},
		{"n2/1", 1, leaseDuration},
		{"n2/1", int32(lateRequestWait / time.Second), lateRequestWait},
		{"n2/1", math.MaxInt32, maxLeaseDuration},
	} {
		var o observation
		l := kubeapi.Lease{
			ObjectMeta: kubeapi.ObjectMeta{ResourceVersion: "1"},
			Spec:       kubeapi.LeaseSpec{HolderIdentity: tt.holder, LeaseDurationSeconds: tt.seconds},
		}
		o.update(&l, now)
		check.Is(t, tt.want, o.expiry(&l).Sub(now), fmt.Sprintf("%q for %d s", tt.holder, tt.seconds))
	}
}

func TestRecordIsRestoredOnceAtATime(t *testing.T) {
	var r restores
	done, ok := r.start("a")
	must.Not(t, !ok, "the first restore may not start")
	_, ok = r.start("a")
	check.Is(t, false, ok)
	var others []func()
	for i := range maxConcurrentRestores - 1 {
		check.Is(t, false, r.isFull())
		other, ok := r.start(string(rune('b' + i)))
		must.Not(t, !ok, "restore %d may not start", i)
		others = append(others, other)
	}
	check.Is(t, true, r.isFull())
	_, ok = r.start("z")
	check.Is(t, false, ok)
	done()
	_, ok = r.start("a")
	check.Is(t, true, ok)
	for _, done := range others {
		done()
	}
}
