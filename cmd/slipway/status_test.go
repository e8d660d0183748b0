package main

import (
	"bytes"
	"errors"
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
