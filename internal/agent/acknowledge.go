package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// askPeersEvery is the pause between two looks at whether the other machines of an event are drained.
const askPeersEvery = 2 * time.Second

// NodeLister finds the other machines of an event by the label that their agents keep.
type NodeLister interface {
	ListNodes(ctx context.Context, labelSelector string) ([]kubeapi.Node, error)
}

// undrained returns the machines of an event that are not known to be drained, own excepted. Approving an event lets
// the platform begin with all of them at once, so that it must wait for the last: a machine whose Node is not there, or
// whose agent says nothing, is not drained (I7).
func undrained(resources []string, own string, drained []kubeapi.Node, machine func(string) (string, error)) []string {
	ready := map[string]bool{strings.ToLower(own): true}
	for _, n := range drained {
		if name, err := machine(n.Spec.ProviderID); err == nil {
			ready[strings.ToLower(name)] = true
		}
	}
	var left []string
	for _, r := range resources {
		if !ready[strings.ToLower(r)] {
			left = append(left, r)
		}
	}
	return left
}

// peersLeft asks the API server which machines of the event are still not drained. It costs one list of the event's
// own nodes, and nothing at all when the event names only this machine.
func (a *Agent) peersLeft(ctx context.Context, h *handling) ([]string, error) {
	alone := !slices.ContainsFunc(h.Notice.Resources, func(r string) bool { return !strings.EqualFold(r, a.o.Resource) })
	if alone {
		return nil, nil
	}
	nodes, err := a.o.API.ListNodes(ctx, drainedSelector(h.Notice.Source, h.Notice.ID))
	if err != nil {
		return nil, fmt.Errorf("which machines of %s are drained: %w", h.Notice.ID, err)
	}
	return undrained(h.Notice.Resources, a.o.Resource, nodes, a.o.Machine), nil
}

// sayWaiting logs whom the acknowledgement waits for, once for each change.
func (a *Agent) sayWaiting(h *handling, left []string) {
	if who := strings.Join(left, ", "); who != h.waitsFor {
		h.waitsFor = who
		a.log.Info("drained; the event names other machines that are not yet", "id", h.Notice.ID, "waitsFor", left)
	}
}
