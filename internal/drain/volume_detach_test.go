package drain

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// fakeVolumes is a VolumeAPI with volumes that detach after some time. Claim c is bound to volume pv-c.
type fakeVolumes struct {
	began       time.Time
	detachAfter map[string]time.Duration // by claim; or never
	brokenFor   time.Duration            // no answers before this
	refusing    bool
	asked       []string
}

func (v *fakeVolumes) unavailableErr() error {
	switch {
	case v.refusing:
		return newForbidden("cannot list volumeattachments")
	case time.Since(v.began) < v.brokenFor:
		return errors.New("connection refused")
	}
	return nil
}

func (v *fakeVolumes) GetPersistentVolumeClaim(_ context.Context, _, name string) (*kubeapi.PersistentVolumeClaim, error) {
	v.asked = append(v.asked, name)
	if _, ok := v.detachAfter[name]; !ok && v.unavailableErr() == nil {
		return nil, newNotFound("persistentvolumeclaims", name)
	}
	c := &kubeapi.PersistentVolumeClaim{}
	c.Spec.VolumeName = "pv-" + name
	return c, v.unavailableErr()
}

func (v *fakeVolumes) ListVolumeAttachments(context.Context) ([]kubeapi.VolumeAttachment, error) {
	var all []kubeapi.VolumeAttachment
	add := func(node, volume string) {
		var a kubeapi.VolumeAttachment
		a.Spec.NodeName = node
		a.Spec.Source.PersistentVolumeName = &volume
		all = append(all, a)
	}
	for claim, after := range v.detachAfter {
		if after == never || time.Since(v.began) < after {
			add(node, "pv-"+claim)
		}
		add(otherNode, "pv-"+claim) // attached where its pod moved to
	}
	return all, v.unavailableErr()
}

func withClaims(names ...string) podOption {
	return func(p *simPod) {
		for _, n := range names {
			p.Spec.Volumes = append(p.Spec.Volumes, kubeapi.Volume{Name: n, PersistentVolumeClaim: &kubeapi.ClaimVolume{ClaimName: n}})
		}
	}
}

func TestDrainWaitsUntilVolumesDetach(t *testing.T) {
	for _, c := range []struct {
		name                string
		v                   fakeVolumes
		terms               func() TimeLimits
		detached, attached  []string
		problem             bool
		earliest, atTheMost time.Duration
	}{
		{
			"detach in time",
			fakeVolumes{detachAfter: map[string]time.Duration{"data": 9 * time.Second, "log": 0}},
			func() TimeLimits { return TimeLimits{} },
			[]string{"pv-data", "pv-log"},
			nil, false, 9 * time.Second, 12 * time.Second,
		},
		{
			"never, until the deadline",
			fakeVolumes{detachAfter: map[string]time.Duration{"data": never, "log": 0}},
			func() TimeLimits { return deadlineIn(20 * time.Second) },
			[]string{"pv-log"},
			[]string{"pv-data"},
			false, 20 * time.Second, 20 * time.Second,
		},
		{
			"never, until it gives up",
			fakeVolumes{detachAfter: map[string]time.Duration{"data": never, "log": 0}},
			func() TimeLimits { return TimeLimits{TimeoutAt: time.Now().Add(20 * time.Second)} },
			[]string{"pv-log"},
			[]string{"pv-data"},
			false, 20 * time.Second, 20 * time.Second,
		},
		{
			"I7: an API server that is away is not an answer",
			fakeVolumes{detachAfter: map[string]time.Duration{"data": 0, "log": 0}, brokenFor: 15 * time.Second},
			func() TimeLimits { return TimeLimits{} },
			[]string{"pv-data", "pv-log"},
			nil, false, 15 * time.Second, 18 * time.Second,
		},
		{
			"a missing permission ends the wait and is reported",
			fakeVolumes{detachAfter: map[string]time.Duration{"data": never}, refusing: true},
			func() TimeLimits { return TimeLimits{} }, nil, nil, true, 0, 5 * time.Second,
		},
	} {
		t.Run(c.name, simulateFunc(func(t *testing.T, s *sim) {
			s.addPod("db-0", withClaims("data", "log", "deleted-claim"))
			s.addPod("agent", withOwner("DaemonSet"), withClaims("shared"))
			c.v.began = time.Now()
			r := runDrainTo(t, s, Drained, Options{TimeLimits: c.terms(), Volumes: &c.v})
			if !slices.Equal(r.Volumes.Detached, c.detached) || !slices.Equal(r.Volumes.Attached, c.attached) ||
				(r.Volumes.Problem != "") != c.problem {
				t.Errorf("%+v", r.Volumes)
			}
			if took := r.EndedAt.Sub(r.StartedAt); took < c.earliest || took > c.atTheMost {
				t.Errorf("took %s", took)
			}
			check.Not(t, slices.Contains(c.v.asked, "shared"), "waited for a volume of a skipped pod")
		}))
	}
}

func TestVolumeSharedWithSkippedPodIsNotAwaited(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web", withClaims("shared"))
		s.addPod("agent", withOwner("DaemonSet"), withClaims("shared"))
		v := &fakeVolumes{began: time.Now(), detachAfter: map[string]time.Duration{"shared": never}}
		r := runDrainTo(t, s, Drained, Options{Volumes: v})
		checkTookAbout(t, r, 2*time.Second)
	})
}

func TestVolumeWaitEndsWithTheTerms(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("web", withClaims("data"))
		v := &fakeVolumes{began: time.Now(), detachAfter: map[string]time.Duration{"data": never}}
		d, wait := startDrain(t.Context(), t, s, Options{Volumes: v})
		time.Sleep(time.Minute)
		d.SetTimeLimits(deadlineIn(10 * time.Second))
		r, err := wait()
		checkOutcome(t, r, err, Drained)
		if took := r.EndedAt.Sub(r.StartedAt); took != 70*time.Second || len(r.Volumes.Attached) != 1 {
			t.Errorf("took %s: %+v", took, r.Volumes)
		}
	})
}

func TestI7PodArrivingDuringVolumeWaitIsEvicted(t *testing.T) {
	for _, hasOnDrained := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			s.addPod("db-0", withClaims("data"))
			v := &fakeVolumes{began: time.Now(), detachAfter: map[string]time.Duration{"data": 30 * time.Second}}
			time.AfterFunc(10*time.Second, func() { s.addPod("late", withStopTime(25*time.Second), withGrace(time.Minute)) })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := Options{Volumes: v}
			var report Report
			if hasOnDrained {
				o.OnDrained = func(r Report) {
					report = r
					if n := s.countRemainingPods(); n > 0 {
						t.Errorf("OnDrained is called with %d pods on the node", n)
					}
					cancel()
				}
			}
			_, wait := startDrain(ctx, t, s, o)
			r, err := wait()
			if !hasOnDrained {
				checkOutcome(t, r, err, Drained)
				report = r
			}
			if n := s.countRemainingPods(); n > 0 {
				t.Errorf("%d pods are left", n)
			}
			if len(report.Pods) != 2 || len(s.findRequests("evict", nil)) != 2 || !slices.Equal(report.Volumes.Detached, []string{"pv-data"}) {
				t.Errorf("OnDrained set %t: %d pods, volumes %+v; want both pods evicted and the volume detached", hasOnDrained, len(report.Pods), report.Volumes)
			}
			if took := report.EndedAt.Sub(report.StartedAt); took < 35*time.Second || took > 40*time.Second {
				t.Errorf("OnDrained set %t: took %s, want the 35 s until the second pod has stopped", hasOnDrained, took)
			}
		})
	}
}

// slowVolumes answers late for claims.
type slowVolumes struct {
	*fakeVolumes
	takes time.Duration
}

func (v slowVolumes) GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*kubeapi.PersistentVolumeClaim, error) {
	elapsed.Sleep(ctx, v.takes)
	return v.fakeVolumes.GetPersistentVolumeClaim(ctx, namespace, name)
}

func TestI7SilentWatchHidesNoPodDuringVolumeWait(t *testing.T) {
	for name, tc := range map[string]struct {
		detach, answers, giveUp time.Duration
		fails                   bool // the lists fail, too
		want                    Outcome
	}{
		"detached":      {detach: time.Minute, want: Drained},
		"slow to say":   {answers: 15 * time.Second, want: Drained},
		"timed out":     {detach: never, giveUp: time.Minute, want: TimedOut},
		"lists fail":    {detach: never, giveUp: time.Minute, fails: true, want: TimedOut},
		"lists recover": {detach: time.Minute, fails: true, want: Drained},
	} {
		t.Run(name, simulateFunc(func(t *testing.T, s *sim) {
			began := time.Now()
			s.addPod("db-0", withClaims("data"))
			time.AfterFunc(11*time.Second, func() {
				s.mu.Lock()
				s.watchSilentUntil = began.Add(90 * time.Second)
				s.mu.Unlock()
				s.addPod("late")
			})
			s.failWhen(fault{err: errors.New("connection refused")}, func(c call) bool {
				at := time.Since(began)
				return tc.fails && c.verb == "list" && at > 10*time.Second && at < 70*time.Second
			})
			o := Options{Volumes: slowVolumes{&fakeVolumes{began: began, detachAfter: map[string]time.Duration{"data": tc.detach}}, tc.answers}}
			if tc.giveUp > 0 {
				o.TimeLimits.TimeoutAt = began.Add(tc.giveUp)
			}
			r, err := runDrain(t, s, o)
			checkOutcome(t, r, err, tc.want)
			if n := s.countRemainingPods(); n > 0 && r.Outcome == Drained {
				t.Errorf("%s with %d pods on the node", r.Outcome, n)
			}
			if took, n := r.EndedAt.Sub(r.StartedAt), s.calls["list"]; n > 4+int(took/maxRetryPause) {
				t.Errorf("%d lists in %s", n, took)
			}
		}))
	}
}

func TestArrivingPodIsEvictedDespiteHangingVolumeRead(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.addPod("db-0", withClaims("data"))
		time.AfterFunc(10*time.Second, func() { s.addPod("late") })
		r := runDrainTo(t, s, Drained, Options{Volumes: hangingVolumes{}, TimeLimits: deadlineIn(30 * time.Second)})
		if n := s.countRemainingPods(); n > 0 || len(r.Pods) != 2 {
			t.Errorf("%d pods are left, %d in the report", n, len(r.Pods))
		}
	})
}

// hangingVolumes never answers.
type hangingVolumes struct{}

func (hangingVolumes) GetPersistentVolumeClaim(ctx context.Context, _, _ string) (*kubeapi.PersistentVolumeClaim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingVolumes) ListVolumeAttachments(ctx context.Context) ([]kubeapi.VolumeAttachment, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
