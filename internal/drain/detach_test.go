package drain

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

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

func TestVolumesOfDrainedPodsAreWaitedForUntilTheyDetach(t *testing.T) {
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
		t.Run(c.name, func(t *testing.T) {
			simulate(t, func(t *testing.T, s *sim) {
				s.pod("db-0", claims("data", "log", "deleted-claim"))
				s.pod("agent", ownedBy("DaemonSet"), claims("shared"))
				c.v.began = time.Now()
				r, err := drained(t, s, Options{Terms: c.terms(), Volumes: &c.v})
				wantOutcome(t, r, err, Drained)
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
			})
		})
	}
}

func TestAVolumeThatAPodWhichStaysUsesTooIsNotWaitedFor(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.pod("web", claims("shared"))
		s.pod("agent", ownedBy("DaemonSet"), claims("shared"))
		v := &volumes{began: time.Now(), detach: map[string]time.Duration{"shared": never}}
		r, err := drained(t, s, Options{Volumes: v})
		wantOutcome(t, r, err, Drained)
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
