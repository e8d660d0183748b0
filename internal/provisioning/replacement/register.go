package replacement

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// Register adds this controller and the notice controller to a manager. Register the retirement controller first: they
// share an index.
func (c *Controller) Register(m manager.Manager) error {
	err := builder.ControllerManagedBy(m).
		Named("replacement").
		For(&v1alpha1.NodeRetirement{}, builder.WithPredicates(newOpenReplacementPredicate())).
		WithOptions(c.controllerOptions()).
		Complete(c)
	if err != nil {
		return fmt.Errorf("replacement: %w", err)
	}
	err = builder.ControllerManagedBy(m).
		Named("notices").
		For(&corev1.Node{}, builder.WithPredicates(newReportPredicate())).
		WithOptions(c.controllerOptions()).
		Complete(NoticeRetirementReconciler{c})
	if err != nil {
		return fmt.Errorf("notices: %w", err)
	}
	return nil
}

// controllerOptions allows one worker per cloud.
func (c *Controller) controllerOptions() controller.Options {
	return controller.Options{MaxConcurrentReconciles: max(1, len(c.options.Clouds))}
}

func newOpenReplacementPredicate() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		rt, ok := o.(*v1alpha1.NodeRetirement)
		return ok && rt.Spec.Notice != nil && (!replacementState(rt).IsFinal() || rt.Status.Replacement.Launch != "")
	})
}

// newReportPredicate passes Nodes whose records of notices have changed, and Nodes with such records that have become
// Ready or not Ready.
func newReportPredicate() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return len(agentAnnotations(e.Object)) > 0 },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			if !ok || !also {
				return false
			}
			was, is := agentAnnotations(before), agentAnnotations(after)
			return !maps.Equal(was, is) || len(is) > 0 && disruptionbudget.IsReady(before) != disruptionbudget.IsReady(after)
		},
	}
}

func agentAnnotations(o client.Object) map[string]string {
	records := map[string]string{}
	for key, value := range o.GetAnnotations() {
		if strings.HasPrefix(key, "cordon.slipway.dev/") {
			records[key] = value
		}
	}
	return records
}
