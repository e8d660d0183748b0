package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
)

func master(name, label string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""}}}
}

func TestANodeOfTheControlPlaneThatComesLaterIsCounted(t *testing.T) {
	labels := openstackautoscaler.ControlPlaneLabels()
	both := master("cp-0", labels[0])
	both.Labels[labels[1]] = ""
	kube := fake.NewClientset(both)
	var said bytes.Buffer
	p := &controlPlane{
		tool: &openstackautoscaler.Config{MinNodeCount: new(2), MaxNodeCount: new(3)}, nodes: kube,
		log: slog.New(slog.NewTextHandler(&said, nil)),
	}
	want := func(minimum, maximum int32) {
		t.Helper()
		p.recount(t.Context())
		if g := p.groups()[0]; g.Spec.Minimum != minimum || *g.Spec.Maximum != maximum {
			t.Errorf("bounds are %d and %d, want %d and %d", g.Spec.Minimum, *g.Spec.Maximum, minimum, maximum)
		}
	}
	add := func(name, label string) {
		t.Helper()
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), master(name, label), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want(1, 2)
	add("cp-1", labels[1])
	want(0, 1)
	if strings.Contains(said.String(), "MaxNodeCount") {
		t.Errorf("said %q while there is room", said.String())
	}
	add("cp-2", labels[0])
	want(0, 0)
	if !strings.Contains(said.String(), "MaxNodeCount: 3: the control plane alone has 3 nodes") {
		t.Errorf("said %q", said.String())
	}
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("503") })
	want(0, 0)
	if !strings.Contains(said.String(), "503") {
		t.Errorf("said %q", said.String())
	}
}

func TestI10ACountOfTheControlPlaneIsMinusOneOrMore(t *testing.T) {
	if _, err := parseOSA([]string{"-control-plane-nodes", "-2"}, io.Discard); err == nil || !strings.Contains(err.Error(), "-control-plane-nodes: -2") {
		t.Errorf("%v", err)
	}
	if f, err := parseOSA([]string{"-control-plane-nodes", "3"}, io.Discard); err != nil || f.controlPlane != 3 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestI4TheClusterOfTheOpenStackAutoscalerHasANameOfItsOwn(t *testing.T) {
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "0b5f6c1e-3f0e-4b7c-9a58-0d8e5a1f2c3d"}}
	f := osaFlags{}
	if name, err := f.clusterName(t.Context(), fake.NewClientset(system)); err != nil || name != string(system.UID) {
		t.Errorf("%q, %v", name, err)
	}
	if name, err := f.clusterName(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "-cluster-name") {
		t.Errorf("%q, %v", name, err)
	}
	f.cluster = "shop"
	if name, err := f.clusterName(t.Context(), fake.NewClientset()); err != nil || name != "shop" {
		t.Errorf("%q, %v", name, err)
	}
}
