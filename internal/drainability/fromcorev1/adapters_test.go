package fromcorev1_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability/drainabilitytest"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func TestAdaptersReadSamePodFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drainabilitytest.DrawPod(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		// DrawPod sets no scheduling group, because placement cannot place such a pod.
		switch name := rapid.SampledFrom([]string{"-", "-", "", "gang"}).Draw(t, "podGroup"); name {
		case "-":
		case "":
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
		default:
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		}
		read := drainabilitytest.ConvertViaJSON[kubeapi.Pod](t, p)
		if a, b := fromcorev1.PodFacts(p), fromkubeapi.PodFacts(read); a != b {
			t.Fatalf("%+v\n%+v", a, b)
		}
	})
}
