package manager

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// addUnselectedRetirementReport adds a report of the NodeRetirements that another process has to carry out. It is logged
// when the manager begins to lead.
func (a *components) addUnselectedRetirementReport(context.Context) error {
	return a.Add(manager.RunnableFunc(func(ctx context.Context) error {
		logUnselectedRetirements(ctx, a.GetAPIReader(), a.config.parsedSelector, a.Log)
		return nil
	}))
}

// logUnselectedRetirements logs each NodeRetirement in progress that the selector excludes. For example, its compatibility
// mode may have been stopped too early. Its node then stays cordoned, or its instance stays without a Node.
func logUnselectedRetirements(ctx context.Context, live client.Reader, selector labels.Selector, log *slog.Logger) {
	if selector.Empty() {
		return
	}
	var all v1alpha1.NodeRetirementList
	if err := live.List(ctx, &all); err != nil {
		log.Warn("cannot list the NodeRetirements that --selector excludes", "err", err)
		return
	}
	for i := range all.Items {
		if rt := &all.Items[i]; !rt.Status.Phase.IsFinal() && !selector.Matches(labels.Set(rt.Labels)) {
			log.Warn("this manager does not carry out a NodeRetirement in progress, because its selector excludes the labels: "+
				"if no other process carries it out, change the labels",
				"retirement", rt.Name, "node", rt.Spec.NodeName, "phase", rt.Status.Phase, "labels", rt.Labels, "selector", selector.String())
		}
	}
}
