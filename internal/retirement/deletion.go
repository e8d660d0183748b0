package retirement

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// deleteNode deletes the Node object. It is the last moment at which the node can be given back.
func (p *passage) deleteNode(ctx context.Context) error {
	if p.reached(v1alpha1.NodeDeleted) {
		return nil
	}
	if p.node != nil {
		if err := p.mayDeleteNode(ctx); err != nil {
			return err
		}
	}
	if p.node != nil {
		if err := p.confirmRecord(ctx); err != nil {
			return err
		}
		// The version in the precondition is that of the Node in which look found no other tool at work (I6).
		gone, err := p.c.o.API.DeleteNode(ctx, p.node.Name, p.node.UID, p.node.ResourceVersion)
		switch {
		case kubeapi.IsNotFound(err):
		case kubeapi.IsConflict(err):
			return wait(freshLook, "the Node has changed meanwhile")
		case err != nil:
			return fmt.Errorf("deleting the Node: %w", err)
		}
		p.c.known.depart(p.node.UID)
		p.nodeGoes()
		if !gone {
			if err := p.nodeIsGone(ctx); err != nil {
				return err
			}
		}
	}
	return p.pass(ctx, v1alpha1.NodeDeleted, &p.rt.Status.Times.NodeDeleted, v1alpha1.RetirementNodeDeleted, "the Node is deleted")
}

// mayDeleteNode looks once more at the machine (I4, I7), at what asks for the node to be left alone and at the pods (I1), and
// at what hold made of the Node (I6).
func (p *passage) mayDeleteNode(ctx context.Context) error {
	if err := leftToOthers(p.node); err != nil {
		return err
	}
	if p.node.DeletionTimestamp != nil { // whether by us, before a crash, is not known; nobody can take it back
		p.nodeGoes()
	}
	if p.rt.Status.MachineGone {
		return p.stillGone(ctx)
	}
	instance, err := p.confirmed(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err) && ready(p.node):
		return blocked(p.c.o.Pace.Poll, reason(Disagreement, "", "the cloud says that the machine is gone, and the Node is Ready"))
	case err != nil && !cloud.IsNotFound(err):
		return err
	case err == nil:
		if err := p.leftAlone(); err != nil {
			return err
		}
		if !p.nodeGoing() { // another Node on it is found out again before the machine goes
			if err := p.isNoOtherNode(ctx, instance); err != nil {
				return err
			}
		}
	}
	if time.Since(p.recounted) < recountHolds {
		return nil
	}
	on, err := p.pods(ctx)
	switch {
	case err != nil:
		return err
	case len(on.kept) > 0:
		return &ending{on.kept}
	case len(on.leaving) > 0: // somebody bound them past the scheduler
		p.rt.Status.Phase = v1alpha1.Draining
		return wait(freshLook, "%d pods have come meanwhile: draining again", len(on.leaving))
	}
	return nil
}

// recountHolds is for how long the list of pods that a drain ends with serves for the deletion of the Node too.
const recountHolds = 2 * time.Second

// nodeGoes notes that the Node is being deleted, which may take long where finalizers hold it.
func (p *passage) nodeGoes() {
	p.condition(v1alpha1.RetirementNodeDeleted, metav1.ConditionFalse, nodeDeleting, "the Node is being deleted")
}

// nodeGoing reports that the Node is being deleted, or gone: there is no way back any more.
func (p *passage) nodeGoing() bool {
	return meta.FindStatusCondition(p.rt.Status.Conditions, v1alpha1.RetirementNodeDeleted) != nil
}

// heldUp reports that what would end a retirement as long as the node can be given back only holds it up, because the Node
// is going: its machine would be forgotten otherwise.
func (p *passage) heldUp(over *ending) bool {
	if !p.nodeGoing() || p.reached(v1alpha1.NodeDeleted) || len(over.reasons) == 0 {
		return false
	}
	switch over.reasons[0].Code {
	case ProtectedPod, KeepingPod, DrainTimeout, VolumesAttached:
		return true
	}
	return false
}

func (p *passage) nodeIsGone(ctx context.Context) error {
	node, err := p.c.o.API.GetNode(ctx, p.rt.Spec.NodeName)
	switch {
	case kubeapi.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case node.UID != string(p.rt.Status.Captured.NodeUID):
		p.replacement = node
		return nil
	}
	return wait(p.c.o.Pace.Cloud, "the Node is being deleted: its finalizers hold it")
}

// deleteInstance has the machine deleted, and follows that to its end.
func (p *passage) deleteInstance(ctx context.Context) error {
	if p.reached(v1alpha1.InstanceDeleted) {
		return nil
	}
	id := p.rt.Status.Captured.ProviderID
	var status cloud.Status
	var unread error
	if p.deleting() {
		if status, unread = p.poll(ctx); isWaiting(unread) != nil {
			return unread
		}
	}
	instance, err := p.confirmed(ctx, id)
	switch {
	case cloud.IsNotFound(err):
		p.isInstanceGone = true
		p.advance(v1alpha1.InstanceDeleted, &p.rt.Status.Times.InstanceDeleted, v1alpha1.RetirementInstanceDeleted, "the machine is deleted", nil)
		return nil
	case err != nil:
		return err
	case p.replacement != nil && instance.State != cloud.Deleting && !p.deleting():
		return end(NodeReplaced, "the machine %s lives on as another Node of the same name, with the UID %s: that one has to be retired "+
			"by a NodeRetirement of its own", id, p.replacement.UID)
	case p.neverSeen() && instance.UniqueID != "":
		return end(MachineBack, "there was no machine %s when the retirement began, and now there is one, of the unique ID %s: whether it "+
			"is the Node's is not known, and it stays; delete it in its cloud if it is not wanted", id, instance.UniqueID)
	}
	if p.deleting() {
		return p.follow(instance, status, unread)
	}
	if at := p.rt.Status.Times.NodeDeleted; instance.State == cloud.Deleting && p.rt.Status.Operation == nil &&
		(p.replacement != nil || at == nil || !elapsed.Over(at.Time, time.Now(), othersDelete)) {
		return wait(p.c.o.Pace.Cloud, "the machine is being deleted")
	}
	// One that is still being deleted is asked for too: its cloud may keep it until it is asked once more.
	return p.requestDeletion(ctx, instance)
}

// othersDelete is for how long a machine that somebody else deletes is left to them.
const othersDelete = 10 * time.Minute

// deleting reports that the cloud was asked to delete the machine, and has not said that it failed.
func (p *passage) deleting() bool {
	op := p.rt.Status.Operation
	return op != nil && op.RetryAfter == nil
}

// requestDeletion asks the cloud to delete the machine. Right before, it looks once more for a Node of another name that
// is on it (I4), and for pods that keep it (I1).
func (p *passage) requestDeletion(ctx context.Context, instance cloud.Instance) error {
	var attempts int32
	if op := p.rt.Status.Operation; op != nil {
		attempts = op.Attempts
		if left := elapsed.Left(op.RetryAfter.Time, time.Now(), longestRetry); left > 0 {
			return &waiting{after: left, message: p.rt.Status.Message, reasons: p.rt.Status.Reasons}
		}
	}
	if err := p.confirmRecord(ctx); err != nil {
		return err
	}
	if err := p.isNoNode(ctx, instance); err != nil {
		return err
	}
	if p.rt.Status.Captured.NodeUID == "" || p.neverSeen() { // no Node has shown that the instance is the cluster's
		if err := p.checkOwned(ctx, instance); err != nil {
			return err
		}
	}
	on, err := p.pods(ctx)
	if err != nil {
		return err
	}
	if len(on.kept) > 0 {
		return blocked(p.c.o.Pace.Poll, on.kept...)
	}
	if on.overridden {
		p.sayOverridden()
	}
	within, cancel := context.WithTimeout(ctx, cloud.ChangeTimeout)
	defer cancel()
	op, err := cloud.Delete(within, p.cloud, p.rt.Status.Captured.ProviderID, cloud.DeleteOptions{KeepSize: p.rt.Spec.KeepSize})
	p.c.o.Metrics.Cloud(p.cloud.Name(), "Delete", err)
	switch {
	case cloud.IsNotFound(err):
		return wait(freshLook, "the machine is gone")
	case cloud.IsThrottled(err):
		return err // the cloud has said when to come again
	case err != nil:
		return p.failed(attempts+1, err)
	}
	if op.Started.IsZero() {
		op.Started = time.Now()
	}
	p.rt.Status.Operation = &v1alpha1.CloudOperation{ID: op.ID, Started: *sinceThen(op.Started), Attempts: attempts + 1}
	p.c.known.pollAfter(p.rt, p.c.o.Pace.Cloud)
	return wait(p.c.o.Pace.Cloud, "the machine is being deleted")
}

// poll asks what became of the deletion, unless that is not due yet: a reconcile for another reason asks the cloud nothing. It
// waits until the cloud says that the deletion is done.
func (p *passage) poll(ctx context.Context) (cloud.Status, error) {
	const message = "the machine is being deleted"
	op, pause := p.rt.Status.Operation, p.c.o.Pace.Cloud
	if left := p.c.known.untilPoll(p.rt); left > 0 {
		return cloud.Status{}, wait(left, message)
	}
	p.c.known.pollAfter(p.rt, pause)
	if op.ID == "" { // the state of the instance says it
		return cloud.Status{}, nil
	}
	within, cancel := context.WithTimeout(ctx, cloud.ReadTimeout)
	defer cancel()
	status, err := p.cloud.Status(within, cloud.Operation{ID: op.ID, Started: op.Started.Time})
	p.c.o.Metrics.Cloud(p.cloud.Name(), "Status", err)
	switch {
	case err != nil:
		return status, fmt.Errorf("the deletion of the machine: %w", err)
	case !status.Done:
		pause = max(status.After, pause)
		p.c.known.pollAfter(p.rt, pause)
		return status, wait(pause, message)
	}
	return status, nil
}

// follow judges a deletion that the cloud does not call under way, with the instance as it is now.
func (p *passage) follow(instance cloud.Instance, status cloud.Status, unread error) error {
	op := p.rt.Status.Operation
	if op.ID == "" {
		status.Done = instance.State != cloud.Deleting
	}
	if unread != nil {
		return unread
	}
	switch {
	case !status.Done:
		return wait(status.Pause(p.c.o.Pace.Cloud), "the machine is being deleted")
	case status.Err != nil:
		return p.failed(op.Attempts, status.Err)
	case instance.State == cloud.Deleting || !elapsed.Over(op.Started.Time, time.Now(), p.c.o.Pace.Cloud):
		return wait(p.c.o.Pace.Cloud, "the machine is being deleted") // the machine's state lags behind the operation's
	}
	return p.failed(op.Attempts, fmt.Errorf("the cloud says that the deletion is done, and that the machine is %s", instance.State))
}

// failed notes that a deletion failed, and when it is asked for again. A machine is never given up: somebody pays for it.
func (p *passage) failed(attempts int32, err error) error {
	code := CloudFailed
	if refusal := cloud.RefusalOf(err); refusal != "" {
		code = CloudRefused
	}
	pause := p.c.o.Pace.Retry << min(attempts-1, 8)
	if pause > longestRetry || pause <= 0 {
		pause = longestRetry
	}
	now := time.Now()
	p.rt.Status.Operation = &v1alpha1.CloudOperation{
		Started: *sinceThen(now), Attempts: attempts, RetryAfter: sinceThen(now.Add(pause)),
	}
	p.c.events.deletionFailed(p.rt, err, pause)
	return blocked(pause, reason(code, "machine "+p.rt.Status.Captured.ProviderID, "deletion %d failed, and is tried again after %s: %s",
		attempts, pause, err))
}

// verify looks at both once more: no Node, no machine.
func (p *passage) verify(ctx context.Context) error {
	if err := p.nodeIsGone(ctx); err != nil {
		return err
	}
	if p.isInstanceGone {
		return nil
	}
	instance, err := p.confirmed(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case cloud.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	p.rt.Status.Phase = v1alpha1.NodeDeleted
	p.rt.Status.Times.InstanceDeleted = nil
	return wait(freshLook, "the machine was gone, and its cloud has it again (%s)", instance.State)
}

// farewell says how a retirement ended that came to its end.
func (p *passage) farewell() string {
	s := "the Node and its machine are gone"
	if p.replacement != nil {
		s += fmt.Sprintf("; another Node of the same name is there, with the UID %s", p.replacement.UID)
	}
	return s
}
