package drain

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// volumes is a VolumeAPI whose volumes detach some time after the beginning. Claim c is bound to volume pv-c.
type volumes struct {
	began    time.Time
	detach   map[string]time.Duration // by claim; never for ever
	broken   time.Duration            // no answers before this
	refusing bool
	asked    []string
}

func (v *volumes) fault() error {
	switch {
	case v.refusing:
		return forbidden("cannot list volumeattachments")
	case time.Since(v.began) < v.broken:
		return errors.New("connection refused")
	}
	return nil
}

func (v *volumes) GetClaim(_ context.Context, _, name string) (*kubeapi.PersistentVolumeClaim, error) {
	v.asked = append(v.asked, name)
	if _, ok := v.detach[name]; !ok && v.fault() == nil {
		return nil, notFound("persistentvolumeclaims", name)
	}
	c := &kubeapi.PersistentVolumeClaim{}
	c.Spec.VolumeName = "pv-" + name
	return c, v.fault()
}

func (v *volumes) ListVolumeAttachments(context.Context) ([]kubeapi.VolumeAttachment, error) {
	var all []kubeapi.VolumeAttachment
	add := func(node, volume string) {
		var a kubeapi.VolumeAttachment
		a.Spec.NodeName = node
		a.Spec.Source.PersistentVolumeName = &volume
		all = append(all, a)
	}
	for claim, after := range v.detach {
		if after == never || time.Since(v.began) < after {
			add(node, "pv-"+claim)
		}
		add(elsewhere, "pv-"+claim) // attached where its pod went
	}
	return all, v.fault()
}

func claims(names ...string) change {
	return func(p *simPod) {
		for _, n := range names {
			v := kubeapi.Volume{Name: n}
			v.PersistentVolumeClaim = &struct {
				ClaimName string `json:"claimName"`
			}{n}
			p.Spec.Volumes = append(p.Spec.Volumes, v)
		}
	}
}

func TestDrainWaitsUntilVolumesDetach(t *testing.T) {
	for _, c := range []struct {
		name                string
		v                   volumes
		terms               func() Terms
		detached, attached  []string
		problem             bool
		earliest, atTheMost time.Duration
	}{
		{
			"detach in time",
			volumes{detach: map[string]time.Duration{"data": 9 * time.Second, "log": 0}},
			func() Terms { return Terms{} },
			[]string{"pv-data", "pv-log"},
			nil, false, 9 * time.Second, 12 * time.Second,
		},
		{
			"never, until the deadline",
			volumes{detach: map[string]time.Duration{"data": never, "log": 0}},
			func() Terms { return within(20 * time.Second) },
			[]string{"pv-log"},
			[]string{"pv-data"},
			false, 20 * time.Second, 20 * time.Second,
		},
		{
			"never, until it gives up",
			volumes{detach: map[string]time.Duration{"data": never, "log": 0}},
			func() Terms { return Terms{GiveUp: time.Now().Add(20 * time.Second)} },
			[]string{"pv-log"},
			[]string{"pv-data"},
			false, 20 * time.Second, 20 * time.Second,
		},
		{
			"I7: an API server that is away is not an answer",
			volumes{detach: map[string]time.Duration{"data": 0, "log": 0}, broken: 15 * time.Second},
			func() Terms { return Terms{} },
			[]string{"pv-data", "pv-log"},
			nil, false, 15 * time.Second, 18 * time.Second,
		},
		{
			"a missing right ends the wait and is said",
			volumes{detach: map[string]time.Duration{"data": never}, refusing: true},
			func() Terms { return Terms{} }, nil, nil, true, 0, 5 * time.Second,
		},
	} {
		t.Run(c.name, simulated(func(t *testing.T, s *sim) {
			s.pod("db-0", claims("data", "log", "deleted-claim"))
			s.pod("agent", ownedBy("DaemonSet"), claims("shared"))
			c.v.began = time.Now()
			r := drainTo(t, s, Drained, Options{Terms: c.terms(), Volumes: &c.v})
			if !slices.Equal(r.Volumes.Detached, c.detached) || !slices.Equal(r.Volumes.Attached, c.attached) ||
				(r.Volumes.Problem != "") != c.problem {
				t.Errorf("%+v", r.Volumes)
			}
			if took := r.Ended.Sub(r.Began); took < c.earliest || took > c.atTheMost {
				t.Errorf("took %s", took)
			}
			if slices.Contains(c.v.asked, "shared") {
				t.Error("asked for a volume of a pod that stays")
			}
		}))
	}
}

func TestVolumeOfAStayingPodIsNotAwaited(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", claims("shared"))
		s.pod("agent", ownedBy("DaemonSet"), claims("shared"))
		v := &volumes{began: time.Now(), detach: map[string]time.Duration{"shared": never}}
		r := drainTo(t, s, Drained, Options{Volumes: v})
		tookAbout(t, r, 2*time.Second)
	})
}

func TestTheWaitForVolumesFollowsTheTerms(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", claims("data"))
		v := &volumes{began: time.Now(), detach: map[string]time.Duration{"data": never}}
		d, wait := start(t.Context(), t, s, Options{Volumes: v})
		time.Sleep(time.Minute)
		d.SetTerms(within(10 * time.Second))
		r, err := wait()
		wantOutcome(t, r, err, Drained)
		if took := r.Ended.Sub(r.Began); took != 70*time.Second || len(r.Volumes.Attached) != 1 {
			t.Errorf("took %s: %+v", took, r.Volumes)
		}
	})
}

func TestI7PodArrivingDuringVolumeWaitIsEvicted(t *testing.T) {
	for _, standsBy := range []bool{false, true} {
		simulate(t, func(t *testing.T, s *sim) {
			s.pod("db-0", claims("data"))
			v := &volumes{began: time.Now(), detach: map[string]time.Duration{"data": 30 * time.Second}}
			time.AfterFunc(10*time.Second, func() { s.pod("late", stopsIn(25*time.Second), grace(time.Minute)) })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := Options{Volumes: v}
			var said Receipt
			if standsBy {
				o.OnDrained = func(r Receipt) {
					said = r
					if n := s.bound(); n > 0 {
						t.Errorf("OnDrained is called with %d pods on the node", n)
					}
					cancel()
				}
			}
			_, wait := start(ctx, t, s, o)
			r, err := wait()
			if !standsBy {
				wantOutcome(t, r, err, Drained)
				said = r
			}
			if n := s.bound(); n > 0 {
				t.Errorf("%d pods are left", n)
			}
			if len(said.Pods) != 2 || len(s.asked("evict", nil)) != 2 || !slices.Equal(said.Volumes.Detached, []string{"pv-data"}) {
				t.Errorf("standing by %t: %d pods, volumes %+v; want both pods evicted and the volume detached", standsBy, len(said.Pods), said.Volumes)
			}
			if took := said.Ended.Sub(said.Began); took < 35*time.Second || took > 40*time.Second {
				t.Errorf("standing by %t: took %s, want the 35 s until the second pod has stopped", standsBy, took)
			}
		})
	}
}

// slowVolumes answers for claims late.
type slowVolumes struct {
	*volumes
	takes time.Duration
}

func (v slowVolumes) GetClaim(ctx context.Context, namespace, name string) (*kubeapi.PersistentVolumeClaim, error) {
	elapsed.Sleep(ctx, v.takes)
	return v.volumes.GetClaim(ctx, namespace, name)
}

func TestI7SilentWatchHidesNoPodDuringVolumeWait(t *testing.T) {
	for name, tc := range map[string]struct {
		detach, answers, giveUp time.Duration
		fails                   bool // the lists do, too
	}{
		"detached":      {detach: time.Minute},
		"slow to say":   {answers: 15 * time.Second},
		"given up":      {detach: never, giveUp: time.Minute},
		"lists fail":    {detach: never, giveUp: time.Minute, fails: true},
		"lists recover": {detach: time.Minute, fails: true},
	} {
		t.Run(name, simulated(func(t *testing.T, s *sim) {
			began := time.Now()
			s.pod("db-0", claims("data"))
			time.AfterFunc(11*time.Second, func() {
				s.mu.Lock()
				s.silent = began.Add(90 * time.Second)
				s.mu.Unlock()
				s.pod("late")
			})
			s.failWhen(fault{err: errors.New("connection refused")}, func(c call) bool {
				at := time.Since(began)
				return tc.fails && c.verb == "list" && at > 10*time.Second && at < 70*time.Second
			})
			o := Options{Volumes: slowVolumes{&volumes{began: began, detach: map[string]time.Duration{"data": tc.detach}}, tc.answers}}
			if tc.giveUp > 0 {
				o.Terms.GiveUp = began.Add(tc.giveUp)
			}
			r, _ := drained(t, s, o)
			if n := s.bound(); n > 0 && r.Outcome == Drained {
				t.Errorf("%s with %d pods on the node", r.Outcome, n)
			}
			if took, n := r.Ended.Sub(r.Began), s.calls["list"]; n > 4+int(took/lastPause) {
				t.Errorf("%d lists in %s", n, took)
			}
		}))
	}
}

func TestHangingAPIServerHidesNoArrival(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("db-0", claims("data"))
		time.AfterFunc(10*time.Second, func() { s.pod("late") })
		r := drainTo(t, s, Drained, Options{Volumes: hungVolumes{}, Terms: within(30 * time.Second)})
		if n := s.bound(); n > 0 || len(r.Pods) != 2 {
			t.Errorf("%d pods are left, %d in the report", n, len(r.Pods))
		}
	})
}

// hungVolumes never answers.
type hungVolumes struct{}

func (hungVolumes) GetClaim(ctx context.Context, _, _ string) (*kubeapi.PersistentVolumeClaim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hungVolumes) ListVolumeAttachments(ctx context.Context) ([]kubeapi.VolumeAttachment, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
