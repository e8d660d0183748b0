package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// createPodWithEmptyDir creates a running pod with local storage on a node.
func (s *sim) createPodWithEmptyDir(namespace, node string) {
	s.t.Helper()
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "web-" + node, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o", Controller: &yes,
		}},
	}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if _, err := s.kube.CoreV1().Pods(namespace).Create(s.t.Context(), p, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// allowPods sets the node's allocatable pods.
func (s *sim) allowPods(node string) {
	s.t.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err == nil {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
		_, err = s.kube.CoreV1().Nodes().Update(s.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestSystemLocalStorageOptionAllowsRemoval(t *testing.T) {
	for name, tt := range map[string]struct {
		namespace string
		option    bool
		removable bool
	}{
		"kube-system":                    {metav1.NamespaceSystem, true, true},
		"kube-system without the option": {metav1.NamespaceSystem, false, false},
		"another namespace":              {"shop", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 2, func(t *testing.T, s *sim) {
				for _, node := range []string{"n1", "n2"} {
					s.allowPods(node)
					s.createPodWithEmptyDir(tt.namespace, node)
				}
				a := s.startReplica("a", func(o *UpdaterOptions) { o.SystemLocalStorage = tt.option })
				d, err := a.PlanShrinkTo(t.Context(), 1)
				if err != nil || (len(d.Victims) == 1) != tt.removable {
					t.Errorf("%+v, %v; want a victim: %t", d, err, tt.removable)
				}
			})
		})
	}
}
