package main

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const poolSubscription = "00000000-0000-0000-0000-000000000001"

func newProviderID(scaleSet string) string {
	return "azure:///subscriptions/" + poolSubscription + "/resourceGroups/mc/providers/Microsoft.Compute/virtualMachineScaleSets/" +
		scaleSet + "/virtualMachines/0"
}

func newPoolNode(scaleSet string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: scaleSet + "000000", Labels: map[string]string{vmsspodwatcher.PoolLabel: "ci"}},
		Spec:       corev1.NodeSpec{ProviderID: newProviderID(scaleSet)},
	}
}

func newPoolRetirement(pool string, phase v1alpha1.Phase, captured *v1alpha1.Captured) *v1alpha1.NodeRetirement {
	return &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "r", Labels: map[string]string{vmsspodwatcher.GroupLabel: pool}},
		Status:     v1alpha1.NodeRetirementStatus{Phase: phase, Captured: captured},
	}
}

func TestI8EmptyPoolIsFoundByItsRemainingRetirements(t *testing.T) {
	left := &v1alpha1.Captured{ProviderID: newProviderID("left")}
	for name, tt := range map[string]struct {
		want    string
		objects []client.Object
	}{
		"empty":                      {"", nil},
		"node":                       {"has", []client.Object{newPoolNode("has"), newPoolRetirement("ci", v1alpha1.NodeDeleted, left)}},
		"machine only":               {"left", []client.Object{newPoolRetirement("ci", v1alpha1.NodeDeleted, left)}},
		"finished retirement":        {"", []client.Object{newPoolRetirement("ci", v1alpha1.Succeeded, left)}},
		"retirement of other pool":   {"", []client.Object{newPoolRetirement("gpu", v1alpha1.NodeDeleted, left)}},
		"retirement without machine": {"", []client.Object{newPoolRetirement("ci", v1alpha1.Pending, nil)}},
	} {
		scheme := runtime.NewScheme()
		must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
		w := &vmssPodWatcher{
			tool:    vmsspodwatcher.Config{NodePool: "ci"},
			cluster: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.objects...).Build(),
		}
		got, err := w.findPoolScaleSet(context.Background())
		if err != nil || got.ScaleSet != tt.want {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, tt.want)
		}
	}
}

func TestClientIsCreatedWithoutAPIServer(t *testing.T) {
	if _, err := newObjectClientFor(&rest.Config{Host: "http://127.0.0.1:1"}); err != nil {
		t.Error(err)
	}
}

func TestPoolsUseSeparateLeases(t *testing.T) {
	var ci, gpu manager.Config
	limitToPool(&ci, "ci")
	limitToPool(&gpu, "gpu")
	if ci.LeaseName != "slipway-vmss-pod-watcher-ci" || gpu.LeaseName == ci.LeaseName || gpu.Selector == ci.Selector {
		t.Errorf("%q and %q, %q and %q", ci.LeaseName, gpu.LeaseName, ci.Selector, gpu.Selector)
	}
}
