package snapshot_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestSelfAffinityFollowsNamespaceLabels places the first pod of a group with affinity to itself in all namespaces of
// its team.
func TestSelfAffinityFollowsNamespaceLabels(t *testing.T) {
	s, err := placementtest.NewTwoNodeCluster().BuildSnapshot()
	must.NoError(t, err)
	p := placementtest.NewPod("new", 0, "", 100, 128)
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}},
		}},
	}}
	must.NoError(t, s.SetPod(p))
	steps := []struct {
		event func() error
		want  placement.Outcome
	}{
		{func() error { return nil }, placement.Blocked}, // the namespace is not known yet
		{func() error { return s.SetNamespace(newTeamNamespace("x")) }, placement.Fits},
		{func() error { return s.SetNamespace(newTeamNamespace("y")) }, placement.Blocked},
		{func() error { return s.SetNamespace(newTeamNamespace("x")) }, placement.Fits},
		{func() error { return s.DeleteNamespace("default") }, placement.Blocked},
	}
	for i, step := range steps {
		must.NoError(t, step.event())
		v, err := s.JudgeRecreatedPod(placement.PodKey{Namespace: "default", Name: "new-0"}, "second")
		if err != nil || v.Outcome != step.want {
			t.Errorf("step %d: %s, %v; want %s", i, v, err, step.want)
		}
	}
}

func newTeamNamespace(team string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": team}}}
}
