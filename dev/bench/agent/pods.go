package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// settleTimeout bounds the wait for pods to run.
const settleTimeout = 2 * time.Minute

// place is the node selector of a workload's pods; see settle.
func place(name string) map[string]string { return map[string]string{"bench.slipway.dev/" + name: ""} }

// settle makes a workload, whose pods have the selector of place(name), and waits until all of them run on one machine.
// From then on the machines of the refuge take them too, so that those that have to leave find a home.
func (b *bench) settle(ctx context.Context, name string, instance, pods int, objects ...runtime.Object) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := b.label(ctx, instance, name); err != nil {
		return nil, err
	}
	if err := workload.CreateSettled(ctx, b.Client(), objects...); err != nil {
		return nil, err
	}
	for i := range refugeMachines {
		if err := b.label(ctx, firstRefuge+i, name); err != nil {
			return nil, err
		}
	}
	node := b.pool.NodeName(instance)
	list, err := b.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("pods on %s: %w", node, err)
	}
	if len(list.Items) != pods {
		return nil, fmt.Errorf("%d pods run on %s, want %d", len(list.Items), node, pods)
	}
	return list.Items, nil
}

func (b *bench) label(ctx context.Context, instance int, name string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": place(name)}})
	if err != nil {
		return err
	}
	node := b.pool.NodeName(instance)
	if _, err := b.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

// takeAway announces that a machine is taken away, by a Preempt or with the longer notice of a Terminate, and waits until
// its agent has let it go.
func (b *bench) takeAway(ctx context.Context, instance int, how azure.EventType) (azure.Record, error) {
	what := azure.Announcement{Type: how, Resources: []string{b.pool.Resource(instance)}}
	announced, err := b.Azure.Announce(what) //nolint:contextcheck // an event outlives whoever announces it
	if err != nil {
		return azure.Record{}, err
	}
	record, err := b.awaitEvent(ctx, announced.EventID, func(r azure.Record) bool {
		return len(r.Approvals) > 0 || r.Status == azure.Started
	})
	if err != nil {
		return azure.Record{}, err
	}
	if len(record.Approvals) == 0 {
		return azure.Record{}, fmt.Errorf("event %s began before the node was drained:\n%s", record.EventID,
			b.Azure.Ledger().Summary(testbed.CutTolerance))
	}
	return record, nil
}

// awaitEvent waits until an event is as wanted.
func (b *bench) awaitEvent(ctx context.Context, id string, wanted func(azure.Record) bool) (azure.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*azure.MinimumNotice(azure.Preempt))
	defer cancel()
	state, err := b.Azure.Wait(ctx, func(s azure.State) bool {
		r, ok := s.Event(id)
		return ok && wanted(r)
	})
	record, _ := state.Event(id)
	return record, err
}

// gone waits until a machine has been taken away, and returns what became of its pods.
func (b *bench) gone(ctx context.Context, id string) (azure.EventLedger, error) {
	if _, err := b.awaitEvent(ctx, id, func(r azure.Record) bool { return !r.Listed() }); err != nil {
		return azure.EventLedger{}, err
	}
	ledger, ok := b.Azure.Ledger().Event(id)
	if !ok {
		return azure.EventLedger{}, fmt.Errorf("event %s is not in the ledger", id)
	}
	return ledger, nil
}

// allFinished checks that as many pods were on the machine and all of them ended in peace.
func allFinished(l azure.EventLedger, pods int) error {
	if len(l.Pods) != pods || l.Count(azure.OutcomeFinished) != pods {
		return fmt.Errorf("not all of the %d pods finished: %s", pods, l.Summary(testbed.CutTolerance))
	}
	return nil
}
