package manager

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestUnselectedRetirementsInProgressAreLogged stops a compatibility mode before its NodeRetirements have finished.
func TestUnselectedRetirementsInProgressAreLogged(t *testing.T) {
	scheme := runtime.NewScheme()
	must.NoError(t, v1alpha1.AddToScheme(scheme))
	record := func(name string, phase v1alpha1.Phase, set labels.Set) *v1alpha1.NodeRetirement {
		return &v1alpha1.NodeRetirement{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "of-" + name},
			Status: v1alpha1.NodeRetirementStatus{Phase: phase},
		}
	}
	theirs := labels.Set{"slipway.dev/agentpool": "ci"}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		record("new", "", theirs), record("left", v1alpha1.NodeDeleted, theirs), record("finished", v1alpha1.Succeeded, theirs),
		record("selected", v1alpha1.Draining, nil),
	).Build()
	for selector, want := range map[string][]string{"!slipway.dev/agentpool": {"left", "new"}, "slipway.dev/agentpool=gpu": {"left", "new", "selected"}, "": nil} {
		parsed, err := labels.Parse(selector)
		must.NoError(t, err)
		var said bytes.Buffer
		logUnselectedRetirements(t.Context(), live, parsed, slog.New(slog.NewTextHandler(&said, nil)))
		check.Is(t, len(want), strings.Count(said.String(), "level=WARN"), selector)
		for _, name := range want {
			check.Contains(t, said.String(), "retirement="+name+" node=of-"+name)
		}
	}
}
