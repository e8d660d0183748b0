package manager

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestI4CachedNodeKeepsSystemUUID(t *testing.T) {
	n := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud:///a"}}
	n.Name, n.Status.NodeInfo.SystemUUID = "a", "uuid"
	o, err := trimNode(n)
	kept, ok := o.(*corev1.Node)
	if err != nil || !ok || kept.Name != "a" || kept.Spec.ProviderID != "cloud:///a" || kept.Status.NodeInfo.SystemUUID != "uuid" {
		t.Errorf("%+v, %v", o, err)
	}
}
