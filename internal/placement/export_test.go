package placement

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetBuilders hands the tests of the inside the builders of clusters, which they cannot import.
func SetBuilders(snapshot func(uint64) (*Snapshot, []*corev1.Node, []*corev1.Pod), node func(*rand.Rand, int) *corev1.Node,
	pending func(uint64) []*corev1.Pod) {
	randomSnapshot, randomNode, pendingOf = snapshot, node, pending
}

func metaNamed(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: labels}
}
