package placement

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Builders is what the tests of the inside need of placementtest, which imports this package and so cannot be imported
// by them.
type Builders struct {
	Snapshot  func(seed uint64) (*Snapshot, []*corev1.Node, []*corev1.Pod)
	Node      func(g *rand.Rand, i int) *corev1.Node
	Pending   func(seed uint64) []*corev1.Pod
	CarryOut  func(*Snapshot, []Evacuation) error
	LaunchAll func(*Snapshot, []Flavour, *Packing) error
}

var builders Builders

// SetBuilders is called by TestMain.
func SetBuilders(b Builders) { builders = b }

func metaNamed(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: labels}
}
