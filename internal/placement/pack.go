package placement

import corev1 "k8s.io/api/core/v1"

type Flavour struct {
	Name     string
	Template *corev1.Node
	Cost     float64
	Zones    []string
}
