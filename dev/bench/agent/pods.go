package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// settleTimeout is how long runWorkload waits until its pods run.
const settleTimeout = 2 * time.Minute

// podSelector returns the node selector that the pods of a workload must have. See runWorkload.
func podSelector(name string) map[string]string {
	return map[string]string{"bench.slipway.dev/" + name: ""}
}

// place is a node that a workload runs on, and the nodes for the replacements of its evicted pods.
type place struct {
	node    string
	refuges []string
}

// place returns a machine of the Azure pool.
func (b *agentBench) place(machine int) place {
	return newPlace(b.pool, machine, firstRefuge, refugeMachines)
}

// newPlace returns a machine of a pool. The refuges are the count machines from first on.
func newPlace(pool controlplane.AKSPool, machine, first, count int) place {
	p := place{node: pool.NodeName(machine)}
	for i := range count {
		p.refuges = append(p.refuges, pool.NodeName(first+i))
	}
	return p
}

// runWorkload creates a workload, and waits until all its pods run on the node. The pods must have the node selector
// podSelector(name). Then runWorkload labels the refuges, so that evicted pods can be scheduled there. It returns the
// pods.
func (b *agentBench) runWorkload(ctx context.Context, name string, p place, pods int, objects ...runtime.Object) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := b.labelNode(ctx, p.node, name); err != nil {
		return nil, err
	}
	if err := workload.CreateAndAwait(ctx, b.Client(), objects...); err != nil {
		return nil, err
	}
	for _, refuge := range p.refuges {
		if err := b.labelNode(ctx, refuge, name); err != nil {
			return nil, err
		}
	}
	list, err := b.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("pods on %s: %w", p.node, err)
	}
	if len(list.Items) != pods {
		return nil, fmt.Errorf("%d pods run on %s, want %d", len(list.Items), p.node, pods)
	}
	return list.Items, nil
}

// deleteWorkload deletes the namespace of a workload, and waits until it is gone, so that its pods use no room or time of
// later measurements.
func (b *agentBench) deleteWorkload(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	namespaces := b.Client().CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	var failed error
	err := testbed.PollUntil(ctx, "namespace "+name+" is deleted", func() bool {
		_, failed = namespaces.Get(ctx, name, metav1.GetOptions{})
		return failed != nil
	})
	if err == nil && !apierrors.IsNotFound(failed) {
		err = fmt.Errorf("namespace %s: %w", name, failed)
	}
	return err
}

func (b *agentBench) labelNode(ctx context.Context, node, name string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": podSelector(name)}})
	if err != nil {
		return err
	}
	if _, err := b.Client().CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

// announceAndAwaitApproval announces an event of the given type for an instance, and waits until the agent has
// approved it. It returns an error if the event starts without an approval.
func (b *agentBench) announceAndAwaitApproval(ctx context.Context, instance int, eventType azure.EventType) (azure.EventRecord, error) {
	announcement := azure.Announcement{Type: eventType, Resources: []string{b.pool.ResourceName(instance)}}
	announced, err := b.Azure.Announce(announcement) //nolint:contextcheck // an event outlives its announcer
	if err != nil {
		return azure.EventRecord{}, err
	}
	record, err := b.awaitEvent(ctx, announced.EventID, func(r azure.EventRecord) bool {
		return len(r.Approvals) > 0 || r.Status == azure.Started
	})
	if err != nil {
		return azure.EventRecord{}, err
	}
	if len(record.Approvals) == 0 {
		return azure.EventRecord{}, fmt.Errorf("event %s started before the node was drained:\n%s", record.EventID,
			b.Azure.Ledger().Summary(testbed.CutTolerance))
	}
	return record, nil
}

// awaitEvent waits until matches returns true for an event, and returns the event.
func (b *agentBench) awaitEvent(ctx context.Context, id string, matches func(azure.EventRecord) bool) (azure.EventRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*azure.MinimumNotice(azure.Preempt))
	defer cancel()
	state, err := b.Azure.AwaitState(ctx, func(s azure.State) bool {
		r, ok := s.Event(id)
		return ok && matches(r)
	})
	record, _ := state.Event(id)
	return record, err
}

// awaitLedger waits until an event has vanished from the document, and returns the event's ledger.
func (b *agentBench) awaitLedger(ctx context.Context, id string) (azure.EventLedger, error) {
	if _, err := b.awaitEvent(ctx, id, func(r azure.EventRecord) bool { return !r.IsListed() }); err != nil {
		return azure.EventLedger{}, err
	}
	ledger, ok := b.Azure.Ledger().Event(id)
	if !ok {
		return azure.EventLedger{}, fmt.Errorf("event %s is not in the ledger", id)
	}
	return ledger, nil
}

// checkAllFinished returns an error unless the ledger has the given number of pods and all of them finished.
func checkAllFinished(l azure.EventLedger, pods int) error {
	if len(l.Pods) != pods || l.CountOutcome(azure.OutcomeFinished) != pods {
		return fmt.Errorf("not all of the %d pods finished: %s", pods, l.Summary(testbed.CutTolerance))
	}
	return nil
}
