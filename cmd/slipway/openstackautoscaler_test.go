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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func newControlPlaneNode(name, label string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""}}}
}

func TestLateControlPlaneNodeIsCounted(t *testing.T) {
	names := openstackautoscaler.ControlPlaneLabels()
	both := newControlPlaneNode("cp-0", names[0])
	both.Labels[names[1]] = ""
	kube := fake.NewClientset(both)
	var logs bytes.Buffer
	p := &controlPlaneCounter{
		tool: &openstackautoscaler.Config{MinNodeCount: new(2), MaxNodeCount: new(3)}, nodes: kube,
		log: slog.New(slog.NewTextHandler(&logs, nil)),
	}
	want := func(minimum, maximum int32) {
		t.Helper()
		p.updateCount(t.Context())
		if g := p.nodeGroups()[0]; g.Spec.MinSize != minimum || *g.Spec.MaxSize != maximum {
			t.Errorf("limits are %d and %d, want %d and %d", g.Spec.MinSize, *g.Spec.MaxSize, minimum, maximum)
		}
	}
	add := func(name, label string) {
		t.Helper()
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), newControlPlaneNode(name, label), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want(1, 2)
	add("cp-1", names[1])
	want(0, 1)
	if strings.Contains(logs.String(), "MaxNodeCount") {
		t.Errorf("logged %q although nodes fit", logs.String())
	}
	add("cp-2", names[0])
	want(0, 0)
	check.Contains(t, logs.String(), "MaxNodeCount: 3: the control plane alone has 3 nodes")
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("503") })
	want(0, 0)
	check.Contains(t, logs.String(), "503")
}

func TestI10ControlPlaneCountIsAtLeastMinusOne(t *testing.T) {
	check.ErrorContains(t, check.Err(parseOpenStackAutoscalerFlags([]string{"-control-plane-nodes", "-2"}, io.Discard)), "-control-plane-nodes: -2")
	if f, err := parseOpenStackAutoscalerFlags([]string{"-control-plane-nodes", "3"}, io.Discard); err != nil || f.controlPlane != 3 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestI10ClusterNameMustFitServerMetadata(t *testing.T) {
	if _, err := parseOpenStackAutoscalerFlags([]string{"-cluster-name", "shop floor!!"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), `-cluster-name: "shop floor!!": want a name of up to 63`) {
		t.Errorf("%v", err)
	}
	if f, err := parseOpenStackAutoscalerFlags([]string{"-cluster-name", "shop-floor"}, io.Discard); err != nil || f.cluster != "shop-floor" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestI4OpenStackAutoscalerHasItsOwnClusterName(t *testing.T) {
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "0b5f6c1e-3f0e-4b7c-9a58-0d8e5a1f2c3d"}}
	f := openStackAutoscalerFlags{}
	if name, err := f.findClusterName(t.Context(), fake.NewClientset(system)); err != nil || name != string(system.UID) {
		t.Errorf("%q, %v", name, err)
	}
	if name, err := f.findClusterName(t.Context(), fake.NewClientset()); err == nil || !strings.Contains(err.Error(), "-cluster-name") {
		t.Errorf("%q, %v", name, err)
	}
	f.cluster = "shop"
	if name, err := f.findClusterName(t.Context(), fake.NewClientset()); err != nil || name != "shop" {
		t.Errorf("%q, %v", name, err)
	}
}

func TestOpenStackAutoscalerAndManagerShareNoGroup(t *testing.T) {
	c := openstackautoscaler.Config{CloudType: openstackautoscaler.OpenStack, MinNodeCount: new(2), MaxNodeCount: new(3)}
	m, err := newOpenStackAutoscalerManagerConfig(openStackAutoscalerFlags{}, &c)
	must.NoError(t, err)
	its, own := parseSelector(t, m.Selector), labels.Set(c.ToNodeGroup(1).Labels)
	theirs := parseSelector(t, newManagerCommand().Flag("selector").DefValue)
	if !its.Matches(own) || theirs.Matches(own) {
		t.Errorf("own group with labels %s: %q selects it: %t, the manager's %q: %t", own, its, its.Matches(own), theirs, theirs.Matches(own))
	}
	for _, other := range []labels.Set{nil, {"team": "a"}} {
		if its.Matches(other) || !theirs.Matches(other) {
			t.Errorf("group with labels %s: %q selects it: %t, the manager's %q: %t", other, its, its.Matches(other), theirs, theirs.Matches(other))
		}
	}
	check.Is(t, "slipway-openstack-autoscaler", m.LeaseName)
	// The labels that slipway retire sets on a NodeRetirement of such a node.
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"nodegroup.slipway.dev/scope": its.String()}}}
	if got := labels.Set(nodegroup.RetirementLabels(nil, n)); !its.Matches(got) {
		t.Errorf("retirement with labels %s is not selected", got)
	}
}

func parseSelector(t *testing.T, selector string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(selector)
	must.NoError(t, err)
	return s
}
