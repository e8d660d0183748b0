package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// preview prints what a drain would do about each pod, and does nothing.
func (d *nodeDrain) preview(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pods []kubeapi.Pod
	listed := false
	err := d.api.FollowPodsOn(ctx, d.o.Node, kubeapi.Handler[kubeapi.Pod]{
		Replaced: func(all []kubeapi.Pod) { pods, listed = all, true; cancel() },
	})
	if !listed {
		return err
	}
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tPOD\tACTION\tRULE\tDETAIL")
	for i := range pods {
		v := drain.Classify(&pods[i], time.Now())
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", pods[i].Namespace, pods[i].Name, d.o.Policy.Of(v.Rule), v.Rule, v.Detail)
	}
	return w.Flush()
}
