package agent

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// nodeWatch follows the agent's own Node while a notice is being handled: somebody may uncordon it, or begin to take
// it out of service too. Otherwise it is followed only where a source reads notices off it.
type nodeWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	open   bool // the last state seen takes pods
}

// uncordoned reports that the node was last seen taking pods.
func (w *nodeWatch) uncordoned() bool { return w != nil && w.open }

// cordonedNow notes that the node was cordoned after what the watch last saw.
func (w *nodeWatch) cordonedNow() {
	if w != nil {
		w.open = false
	}
}

// watchNode watches while there is something to guard, and not otherwise.
func (a *Agent) watchNode(ctx context.Context) {
	needed := len(a.nodeSources()) > 0
	for _, h := range a.handled {
		needed = needed || h.claim.isWritten() || h.claim.cordons || h.Phase == Yielded
	}
	switch {
	case needed && a.node == nil:
		a.startWatching(ctx)
	case !needed:
		a.stopWatching()
	}
}

func (a *Agent) startWatching(ctx context.Context) {
	w := &nodeWatch{done: make(chan struct{})}
	ctx, w.cancel = context.WithCancel(ctx)
	a.node = w
	since := a.since
	if len(a.nodeSources()) > 0 {
		since = "" // they have not seen it
	}
	see := func(n kubeapi.Node) {
		a.tell(ctx, func(context.Context) {
			if a.node == w {
				a.see(&n)
			}
		})
	}
	go func() {
		defer close(w.done)
		_ = a.o.API.FollowNode(ctx, a.o.Node, since, kubeapi.Handler[kubeapi.Node]{
			Replaced: func(all []kubeapi.Node) {
				for _, n := range all {
					see(n)
				}
			},
			Changed: see,
			Failed:  func(err error) { a.log.Warn("cannot follow the node", "err", err) },
		})
	}()
}

// see takes in a newer state of the Node.
func (a *Agent) see(n *kubeapi.Node) {
	a.node.open, a.unschedulable = !n.Spec.Unschedulable, n.Spec.Unschedulable
	a.keeper.See(n)
	a.others, a.looked = cordon.Others(n), true
	for _, source := range a.nodeSources() {
		source.See(n)
	}
}

func (a *Agent) stopWatching() {
	if a.node == nil {
		return
	}
	a.node.cancel()
	<-a.node.done
	a.node, a.looked, a.unschedulable = nil, false, false
}
