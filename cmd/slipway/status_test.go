package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
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
