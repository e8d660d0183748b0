package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestStatusShowsGroupsKnownOnlyByTheirMarks(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	marked := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"nodegroup.slipway.dev/name": "ci"}}}
	left := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "gone"},
		Status: v1alpha1.NodeRetirementStatus{Phase: v1alpha1.NodeDeleted, Captured: &v1alpha1.Captured{Group: "gpu"}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(marked, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, left).Build()
	status, err := readStatus(t.Context(), c, nil)
	must.NoError(t, err)
	var out bytes.Buffer
	must.NoError(t, status.printTable(&out, false))
	var rows []string
	for _, line := range strings.Split(out.String(), "\n")[1:3] {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	if got := strings.Join(rows, "\n"); got != "ci Unknown - - - 1 1 0 -\ngpu Unknown - - - 0 0 0 -" {
		t.Errorf("%s", out.String())
	}
}

func TestI5StatusCountsTheMinimumOfTheCloud(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	for name, c := range map[string]struct {
		accepted              metav1.ConditionStatus
		minSize, cloudMinSize int32
		want                  string // the columns from ACCEPTED on
	}{
		"no minimum":           {metav1.ConditionTrue, 0, 0, "True azure/ci 0 - 2 0 0 1"},
		"minimum of the cloud": {metav1.ConditionTrue, 0, 2, "True azure/ci 2 (cloud) - 2 0 0 0"},
		"minimum of the group": {metav1.ConditionTrue, 2, 1, "True azure/ci 2 - 2 0 0 0"},
		"not accepted":         {metav1.ConditionFalse, 0, 0, "False azure/ci 0 - 2 0 0 0"},
	} {
		g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}
		g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": "ci"}
		g.Spec.Cloud.Provider, g.Spec.Cloud.Group, g.Spec.MinSize, g.Status.CloudMinSize = "azure", "ci", c.minSize, c.cloudMinSize
		g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: c.accepted, Reason: "any", Message: "any"}}
		objects := []client.Object{g}
		for _, name := range []string{"a", "b"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "ci"}}}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			objects = append(objects, n)
		}
		status, err := readStatus(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), nil)
		must.NoError(t, err)
		var out bytes.Buffer
		must.NoError(t, status.printTable(&out, false))
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), " ci "+c.want) {
			t.Errorf("%s: want %q in\n%s", name, c.want, out.String())
		}
	}
}

func TestStatusSaysThatNoManagerIsReady(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	newPod := func(part string, ready corev1.ConditionStatus) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "slipway-" + part + "-x", Labels: map[string]string{"app.kubernetes.io/name": "slipway-" + part}}}
		p.Spec.Containers = []corev1.Container{{Name: part, Image: "slipway:v1"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return p
	}
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}
	marked := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"nodegroup.slipway.dev/name": "file"}}}
	for name, c := range map[string]struct {
		objects    []client.Object
		want, wide string // what follows MISSING; empty for no such section
	}{
		"manager is Ready": {[]client.Object{group, newPod("manager", corev1.ConditionTrue), newPod("agent", corev1.ConditionTrue)}, "", ""},
		"manager is not Ready": {[]client.Object{group, newPod("manager", corev1.ConditionFalse)},
			"no manager is Ready (1 pod; kubectl -n slipway describe pod slipway-manager-x): ", "no pod of an agent was found "},
		"no manager":         {[]client.Object{group, newPod("agent", corev1.ConditionTrue)}, "no pod of a manager was found ", "no pod of a manager was found "},
		"agent is not Ready": {[]client.Object{group, newPod("agent", corev1.ConditionFalse), newPod("manager", corev1.ConditionTrue)}, "", "no agent is Ready (1 pod; "},
		"group of a file":    {[]client.Object{marked}, "", "no pod of an agent was found "},
	} {
		status, err := readStatus(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build(), nil)
		must.NoError(t, err)
		for wide, want := range map[bool]string{false: c.want, true: c.wide} {
			var out bytes.Buffer
			must.NoError(t, status.printTable(&out, wide))
			if _, missing, found := strings.Cut(out.String(), "\nMISSING\n"); found != (want != "") || !strings.HasPrefix(missing, want) {
				t.Errorf("%s, wide %t: want %q after MISSING in\n%s", name, wide, want, out.String())
			}
		}
	}
}

func TestWideStatusShowsPricesAsTopDoes(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	newGroup := func(name, cost string) *v1alpha1.NodeGroup {
		g := &v1alpha1.NodeGroup{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.NodeGroupSpec{NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": name}}},
			Status:     v1alpha1.NodeGroupStatus{Provisioning: &v1alpha1.ProvisioningStatus{Learned: []v1alpha1.LearnedTemplate{{Name: "d4", Cost: cost}}}},
		}
		g.Spec.Cloud.Provider, g.Spec.Cloud.Group = "azure", name
		return g
	}
	newNode := func(name, group, price string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": group}}}
		if price != "" {
			n.Labels["eks-node-viewer/instance-price"] = price
		}
		return n
	}
	for name, c := range map[string]struct {
		cost, price string // of the type, and on one Node of the group mixed
		want        map[string]string
	}{
		"costs of the groups": {"0.0416", "", map[string]string{"ci": "0.0832", "mixed": "-"}},
		"one label":           {"", "0.3", map[string]string{"ci": "-", "mixed": "-"}},
		"no price":            {"", "", nil},
	} {
		objects := []client.Object{newGroup("ci", c.cost), newNode("a", "ci", ""), newNode("b", "ci", ""), newGroup("mixed", ""), newNode("c", "mixed", c.price), newNode("d", "mixed", "")}
		status, err := readStatus(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), nil)
		must.NoError(t, err)
		for wide, want := range map[bool]map[string]string{true: c.want, false: nil} {
			var out bytes.Buffer
			must.NoError(t, status.printTable(&out, wide))
			if shows := strings.Contains(out.String(), "ALLOWED DISRUPTIONS   PRICE\n"); shows != (want != nil) {
				t.Errorf("%s, wide %t: the price is shown: %t, want %t:\n%s", name, wide, shows, want != nil, out.String())
			}
			for _, line := range strings.Split(out.String(), "\n") {
				cells := strings.Fields(line)
				if len(cells) > 2 && cells[1] == "Unknown" && want[cells[0]] != "" && cells[len(cells)-1] != want[cells[0]] {
					t.Errorf("%s: %q, want the price %s", name, line, want[cells[0]])
				}
			}
		}
	}
	since := metav1.Now()
	s := clusterStatus{Groups: []groupStatus{{
		Name: "ci", idleStatus: idleStatus{Idle: []nodegroup.Decision{{Node: "a", IdleSince: &since.Time, RemovableAt: &since.Time}, {Node: "b", IdleSince: &since.Time, RemovableAt: &since.Time}}},
		scalingStatus: scalingStatus{Underutilized: []underutilizedNode{{Node: "a"}}},
		priceStatus:   priceStatus{NodePrices: map[string]string{"a": "0.04"}},
	}}}
	for wide, want := range map[bool]int{false: 0, true: 2} {
		var out bytes.Buffer
		must.NoError(t, s.printTable(&out, wide))
		if got := strings.Count(out.String(), "0.04"); got != want {
			t.Errorf("wide %t: %d prices of nodes, want %d:\n%s", wide, got, want, out.String())
		}
	}
}

func TestStatusDoesNotPromiseTheRetirementOfUnderutilizedNodes(t *testing.T) {
	now := time.Now()
	s := clusterStatus{Groups: []groupStatus{{Name: "ci", scalingStatus: scalingStatus{Underutilized: []underutilizedNode{
		{Node: "past", Since: now.Add(-time.Hour), RemovableAt: now.Add(-time.Minute)}, {Node: "cooling", Since: now.Add(-time.Minute), RemovableAt: now.Add(time.Hour)},
	}}}}}
	var out bytes.Buffer
	must.NoError(t, s.printTable(&out, false))
	for _, want := range []string{"past ci 60m cooldown passed", "cooling ci 60s 59m"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestStatusShortensListOfUnavailableNodes(t *testing.T) {
	s := clusterStatus{Nodes: nodesStatus{Total: 1000, Unavailable: map[string]string{}}, Missing: []string{"no agent"}}
	for i := range 1000 {
		s.Nodes.Unavailable[fmt.Sprintf("node-%03d.eu.internal", i)] = "is not Ready"
	}
	for wide, want := range map[bool]int{false: 10, true: 1000} {
		var out bytes.Buffer
		must.NoError(t, s.printTable(&out, wide))
		if got := strings.Count(out.String(), "is not Ready"); got != want || strings.Contains(out.String(), "and 990 more") == wide {
			t.Errorf("wide %t: %d nodes are listed, want %d:\n%.2000s", wide, got, want, out.String())
		}
	}
	s.Groups = []groupStatus{{Name: "ci"}}
	for wide, want := range map[bool]int{false: 0, true: 1} {
		var out bytes.Buffer
		must.NoError(t, s.printTable(&out, wide))
		if got := strings.Count(out.String(), "\nMISSING\nno agent\n"); got != want {
			t.Errorf("wide %t, with a group: the missing parts are printed %d times, want %d", wide, got, want)
		}
	}
}
