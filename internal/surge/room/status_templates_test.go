package room_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/surge/room"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestTemplatesFromStatusAreThoseThatTheGroupMayLaunch(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	allocatable := placementtest.NewNode("", "", 4, 8, 110).Status.Allocatable
	learned := []v1alpha1.LearnedTemplate{{Name: "large", Allocatable: allocatable}, {Name: "small", Allocatable: allocatable}}
	backOff := func(until time.Duration) []v1alpha1.BackOff {
		return []v1alpha1.BackOff{{Template: "LARGE", Reason: "NoQuota", Until: metav1.NewTime(now.Add(until))}}
	}
	for name, c := range map[string]struct {
		wanted []string // spec.scaleUp.templates
		status *v1alpha1.ProvisioningStatus
		want   string
		known  bool
	}{
		"all observed, none in the spec":  {nil, &v1alpha1.ProvisioningStatus{Learned: learned}, "large small ", false},
		"one in the spec":                 {[]string{"SMALL"}, &v1alpha1.ProvisioningStatus{Learned: learned}, "small ", true},
		"in the order of the spec":        {[]string{"small", "large"}, &v1alpha1.ProvisioningStatus{Learned: learned}, "small large ", true},
		"one of the spec is not observed": {[]string{"huge", "large"}, &v1alpha1.ProvisioningStatus{Learned: learned}, "large ", false},
		"backed off":                      {[]string{"large"}, &v1alpha1.ProvisioningStatus{Learned: learned, BackOffs: backOff(time.Minute)}, "large(closed) ", true},
		"back-off is over":                {[]string{"large"}, &v1alpha1.ProvisioningStatus{Learned: learned, BackOffs: backOff(-time.Minute)}, "large ", true},
		"no status":                       {[]string{"large"}, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup()
			g.Status.Provisioning = c.status
			for _, template := range c.wanted {
				g.Spec.ScaleUp.Templates = append(g.Spec.ScaleUp.Templates, v1alpha1.InstanceTemplate{Name: template})
			}
			templates, known := room.TemplatesFromStatus(&g, now)
			got := ""
			for _, template := range templates {
				got += template.Name
				if template.ClosedReason != nil {
					got += "(closed)"
				}
				got += " "
				check.Is(t, int64(4), template.Node.Status.Allocatable.Cpu().Value())
			}
			check.Is(t, c.want, got)
			check.Is(t, c.known, known)
		})
	}
	g := newGroup()
	g.Spec.ScaleUp = nil
	templates, known := room.TemplatesFromStatus(&g, now)
	check.Is(t, 0, len(templates))
	check.Is(t, true, known)
}
