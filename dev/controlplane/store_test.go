package controlplane_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestStoredObjectsLookCreated(t *testing.T) {
	c := controlplane.StartShared(t)
	ctx := t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stored", Labels: map[string]string{"stored": "yes"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stored"}, Spec: corev1.PodSpec{
		NodeName: "stored", Containers: []corev1.Container{{Name: "app", Image: "image"}},
	}}
	objects := []client.Object{node, pod}
	must.NoError(t, c.WriteToEtcd(ctx, slices.Values(objects)))
	t.Cleanup(func() {
		if err := c.Client().CoreV1().Pods("default").Delete(context.Background(), "stored", *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
		if err := c.Client().CoreV1().Nodes().Delete(context.Background(), "stored", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	gotNode, err := c.Client().CoreV1().Nodes().Get(ctx, "stored", metav1.GetOptions{})
	must.NoError(t, err)
	if gotNode.Labels["stored"] != "yes" || gotNode.UID == "" || gotNode.CreationTimestamp.IsZero() {
		t.Errorf("the node is %+v", gotNode)
	}
	gotPod, err := c.Client().CoreV1().Pods("default").Get(ctx, "stored", metav1.GetOptions{})
	must.NoError(t, err)
	if gotPod.Spec.NodeName != "stored" || gotPod.UID == "" {
		t.Errorf("the pod is %+v", gotPod)
	}
	if err := c.WriteToEtcd(ctx, slices.Values(objects)); err == nil {
		t.Error("an existing object was stored again")
	}
	if err := c.WriteToEtcd(ctx, slices.Values([]client.Object{&corev1.Secret{}})); err == nil {
		t.Error("a Secret was stored, want an error")
	}
}
