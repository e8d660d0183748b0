package nodegroup

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestInvalidScalingSpecIsNamed(t *testing.T) { // I10
	most, percent, few := int32(3), int32(101), int32(-1)
	below := resource.MustParse("-1")
	for want, change := range map[string]func(*v1alpha1.NodeGroupSpec){
		"":                                 func(*v1alpha1.NodeGroupSpec) {},
		"spec.scaleUp: needs spec.maxSize": func(s *v1alpha1.NodeGroupSpec) { s.MaxSize = nil },
		`spec.scaleUp.policy: "Cheapest": want LeastWaste`: func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Policy = "Cheapest" },
		"spec.scaleUp.joinTimeout: 1s: want 10s":           func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.JoinTimeout = &metav1.Duration{Duration: time.Second} },
		`spec.scaleUp.templates[1].name: "m4"`: func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "m4"}, {Name: "m4"}}
		},
		"spec.scaleUp.templates[0].allocatable: cpu: -1": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleUp.Templates = []v1alpha1.InstanceTemplate{{Name: "m4", Allocatable: corev1.ResourceList{"cpu": below}}}
		},
		"spec.scaleUp.limits.cpu: -1":                   func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Limits.CPU = &below },
		"spec.scaleUp.limits.memory: -1":                func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Limits.Memory = &below },
		"spec.scaleUp.headroom.slots: 0":                func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Headroom.Slots = 0 },
		"spec.scaleUp.headroom.requests: is":            func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Headroom.Requests = nil },
		"spec.scaleUp.headroom.requests: cpu":           func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.Headroom.Requests["cpu"] = below },
		"spec.scaleUp.startupTaints[0]":                 func(s *v1alpha1.NodeGroupSpec) { s.ScaleUp.StartupTaints = []string{""} },
		"spec.scaleDown.underutilized.cpuBelow: 101":    func(s *v1alpha1.NodeGroupSpec) { s.ScaleDown.Underutilized.CPUBelow = &percent },
		"spec.scaleDown.underutilized.memoryBelow: 101": func(s *v1alpha1.NodeGroupSpec) { s.ScaleDown.Underutilized.MemoryBelow = &percent },
		"spec.scaleDown.underutilized.podsAtMost: -1":   func(s *v1alpha1.NodeGroupSpec) { s.ScaleDown.Underutilized.PodsAtMost = &few },
		"spec.scaleDown.underutilized.allOf: is empty: want cpuAtMost": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.Underutilized.AllOf = &v1alpha1.UnderutilizedLimits{}
		},
		"spec.scaleDown.underutilized.allOf.cpuAtMost: 101": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.Underutilized.AllOf = &v1alpha1.UnderutilizedLimits{CPUAtMost: &percent}
		},
		"spec.scaleDown.underutilized.allOf.memoryAtMost: 101": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.Underutilized.AllOf = &v1alpha1.UnderutilizedLimits{MemoryAtMost: &percent}
		},
		"spec.scaleDown.underutilized.allOf.podsAtMost: -1": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.Underutilized.AllOf = &v1alpha1.UnderutilizedLimits{PodsAtMost: &few}
		},
		"spec.scaleDown.underutilized.cooldown: -1s": func(s *v1alpha1.NodeGroupSpec) {
			s.ScaleDown.Underutilized.Cooldown = &metav1.Duration{Duration: -time.Second}
		},
	} {
		g := &v1alpha1.NodeGroup{Spec: v1alpha1.NodeGroupSpec{
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "web"}}, MaxSize: &most,
			Cloud:     v1alpha1.CloudGroup{Provider: "azure", Group: "web"},
			ScaleUp:   &v1alpha1.ScaleUp{Headroom: &v1alpha1.Headroom{Slots: 1, Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}},
			ScaleDown: &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}},
		}}
		change(&g.Spec)
		errs := Validate(g)
		switch {
		case want == "" && len(errs) == 0:
		case want == "" || len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want):
			t.Errorf("%q: %v", want, errs)
		}
	}
}
