package agent

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// nodeWatch watches the agent's own Node while a notice has a claim on it. Somebody may uncordon the Node, or another
// tool may begin to remove it. Without a claim, the Node is watched only if a source reads notices from it.
type nodeWatch struct {
	cancel      context.CancelFunc
	done        chan struct{}
	schedulable bool // the last state seen was schedulable
}

// isUncordoned reports that the node was schedulable when last seen.
func (w *nodeWatch) isUncordoned() bool { return w != nil && w.schedulable }

// markCordoned records a cordon that the watch has not seen yet.
func (w *nodeWatch) markCordoned() {
	if w != nil {
		w.schedulable = false
	}
}

// startOrStopNodeWatch starts the watch if it is needed, and stops it otherwise.
func (a *Agent) startOrStopNodeWatch(ctx context.Context) {
	needed := len(a.nodeSources()) > 0
	for _, h := range a.notices {
		needed = needed || h.claim.isWritten() || h.claim.hasCordon || h.Phase == Yielded
	}
	switch {
	case needed && a.nodeWatch == nil:
		a.startNodeWatch(ctx)
	case !needed:
		a.stopNodeWatch()
	}
}

func (a *Agent) startNodeWatch(ctx context.Context) {
	w := &nodeWatch{done: make(chan struct{})}
	ctx, w.cancel = context.WithCancel(ctx)
	a.nodeWatch = w
	since := a.nodeVersion
	if len(a.nodeSources()) > 0 {
		since = "" // the sources have not seen it
	}
	see := func(n kubeapi.Node) {
		a.enqueueUpdate(ctx, func(context.Context) {
			if a.nodeWatch == w {
				a.recordObservedNode(&n)
			}
		})
	}
	go func() {
		defer close(w.done)
		_ = a.options.API.WatchNode(ctx, a.options.Node, since, kubeapi.Handler[kubeapi.Node]{
			Replaced: func(all []kubeapi.Node) {
				for _, n := range all {
					see(n)
				}
			},
			Changed: see,
			Failed:  func(err error) { a.log.Warn("cannot watch the node, will retry", "err", err) },
		})
	}()
}

// recordObservedNode handles a newer state of the Node.
func (a *Agent) recordObservedNode(n *kubeapi.Node) {
	a.nodeWatch.schedulable, a.unschedulable = !n.Spec.Unschedulable, n.Spec.Unschedulable
	a.claimWriter.ObserveNode(n)
	a.otherTools, a.otherToolsKnown = cordon.RemovingTools(n), true
	for _, source := range a.nodeSources() {
		source.ObserveNode(n)
	}
}

func (a *Agent) stopNodeWatch() {
	if a.nodeWatch == nil {
		return
	}
	a.nodeWatch.cancel()
	<-a.nodeWatch.done
	a.nodeWatch, a.otherToolsKnown, a.unschedulable = nil, false, false
}
