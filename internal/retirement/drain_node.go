package retirement

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
)

// drain moves the pods off the node, as package drain does. A machine that goes meanwhile is found out.
func (p *passage) drain(ctx context.Context) error {
	if p.reached(v1alpha1.Drained) {
		return nil
	}
	if p.nodeGoing() && p.node == nil {
		return nil // it went with the pods that had come
	}
	if p.rt.Status.MachineGone {
		return p.release(ctx)
	}
	if !p.reached(v1alpha1.Draining) {
		if err := p.pass(ctx, v1alpha1.Draining, &p.rt.Status.Times.Draining, "", "draining"); err != nil {
			return err
		}
	}
	gone, unknown := p.machineGone(ctx)
	if gone {
		if unknown != nil { // it is not written down
			return unknown
		}
		return wait(freshLook, "the machine is gone")
	}
	if err := p.leftAlone(); err != nil {
		return err
	}
	run := p.c.drains.of(p.rt, p.drainTerms(time.Now()))
	if run == nil {
		var err error
		if run, err = p.startDrain(ctx); err != nil {
			return err
		}
	}
	if run.over() {
		return p.drained(ctx, run)
	}
	going := p.draining(run)
	if unknown != nil { // the drain goes on meanwhile, and ends in its time
		return unknown
	}
	return going
}

// machineGone asks the cloud when the Node is not ready, and notes when both say that the machine is gone (I7: two
// proofs that do not depend on each other). With an error, true is a machine that is gone and not written down as such,
// and false one of which nobody can tell.
func (p *passage) machineGone(ctx context.Context) (bool, error) {
	if ready(p.node) {
		return false, nil
	}
	_, err := p.confirmed(ctx, p.rt.Status.Captured.ProviderID)
	if !cloud.IsNotFound(err) {
		return false, err
	}
	if err := p.confirmSilence(ctx); err != nil || ready(p.node) {
		return false, err
	}
	p.c.drains.stop(p.rt.Name)
	p.rt.Status.MachineGone = true
	p.note("", "the cloud says that the machine is gone, and the Node is not Ready", nil)
	return true, p.save(ctx)
}

func (p *passage) startDrain(ctx context.Context) (*drainRun, error) {
	if err := p.confirmRecord(ctx); err != nil {
		return nil, err
	}
	marks, err := p.selection()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	policy := p.policy(now)
	terms := p.drainTerms(now)
	if !terms.until.IsZero() {
		p.sayOverridden()
	}
	d := p.drainPolicy()
	return p.c.drains.start(ctx, p.rt, p.c.o.API, drain.Options{
		Node: p.rt.Spec.NodeName, Policy: &policy, GraceSeconds: d.GraceSeconds,
		Mark:   func(f *podrules.Facts, pod *kubeapi.Pod) { marks.Mark(f, pod.Namespace, pod.Labels) },
		Terms:  drain.Terms{GiveUp: p.giveUp()},
		Logger: p.log,
	}, terms), nil
}

// drainTerms are what a drain that is begun now is held to.
func (p *passage) drainTerms(now time.Time) drainTerms {
	terms := drainTerms{drain: p.drainPolicy()}
	if p.group != nil && p.group.Spec.ScaleDown != nil {
		terms.idle = p.group.Spec.ScaleDown.IdleByLabel
	}
	if p.overridden(now) { // what the policy is after that is another drain's matter
		terms.until = p.rt.Spec.OverrideProtection.Until.Time
	}
	return terms
}

// giveUp is when the drain has lasted for long enough, restarts included.
func (p *passage) giveUp() time.Time {
	return p.rt.Status.Times.Draining.Add(p.timeout())
}

// draining writes down how far the drain is, at most once in each poll interval, and when something begins or ceases to hold it up.
func (p *passage) draining(run *drainRun) error {
	progress := run.soFar()
	stuck := blockedPods(progress.Obstructed())
	if !run.isReportDue(p.c.o.Pace.Poll, len(stuck) > 0) {
		return &waiting{after: p.c.o.Pace.Poll, message: p.rt.Status.Message, reasons: p.rt.Status.Reasons}
	}
	p.rt.Status.Drain = summary(progress)
	message := "draining: " + progress.String()
	if len(stuck) > 0 {
		return &waiting{after: p.c.o.Pace.Poll, message: message, reasons: stuck}
	}
	return wait(p.c.o.Pace.Poll, "%s", message)
}

// drained looks at how the drain ended.
func (p *passage) drained(ctx context.Context, run *drainRun) error {
	p.rt.Status.Drain = summary(run.soFar())
	var refused *drain.Refused
	var unfinished *drain.Unfinished
	switch err := run.err; {
	case err == nil:
		p.recounted = run.ended
		return nil
	case errors.As(err, &refused):
		var kept []v1alpha1.RetirementReason
		switch on, err := p.pods(ctx); {
		case err != nil:
			return err
		case len(on.kept) > 0:
			return &ending{on.kept}
		}
		for _, pod := range refused.Pods { // they have gone meanwhile
			kept = append(kept, keptReason(pod.Namespace, pod.Name, pod.Verdict.Rule, pod.Verdict.Detail))
		}
		return &ending{kept}
	case errors.As(err, &unfinished) && unfinished.Outcome == drain.GaveUp:
		why := fmt.Sprintf("the drain took longer than %s", p.timeout())
		if unfinished.Unknown != nil {
			why += ": " + unfinished.Unknown.Error()
		}
		return &ending{append([]v1alpha1.RetirementReason{reason(DrainTimeout, "", "%s", why)}, blockedPods(unfinished.Blocked)...)}
	default: // it was cut off: an override has ended, or the process does
		p.c.drains.stop(p.rt.Name)
		return wait(freshLook, "the drain is begun anew: %s", err)
	}
}

func summary(p drain.Progress) *v1alpha1.DrainProgress {
	return &v1alpha1.DrainProgress{
		Total: int32(p.Total), Gone: int32(p.Gone), Stopping: int32(p.Asked), Waiting: int32(p.Waiting),
		Summary: observe.Cut(p.String(), maxDetail),
	}
}

func blockedPods(blocked []drain.Blocked) []v1alpha1.RetirementReason {
	var all []v1alpha1.RetirementReason
	for _, b := range blocked {
		all = append(all, reason(PodBlocked, "pod "+b.Namespace+"/"+b.Pod, "%s: %s", b.Reason, b.Detail))
	}
	return all
}

// detach waits, where asked, until no volume is attached to the machine but those of the pods that go with it. It
// looks at the attachments and not at what this process has drained, so that a restart forgets none.
func (p *passage) detach(ctx context.Context) error {
	if p.reached(v1alpha1.Drained) {
		return nil
	}
	if p.drainPolicy().WaitForDetach && !p.rt.Status.MachineGone {
		attached, err := p.attached(ctx)
		inTime := time.Now().Before(p.giveUp())
		switch {
		case err != nil && !inTime:
			return end(DrainTimeout, "the drain took longer than %s: whether volumes are attached is not known: %s", p.timeout(), err)
		case err != nil:
			return err
		case len(attached) == 0:
		case inTime:
			return blocked(p.c.o.Pace.Cloud, attached...)
		default:
			return &ending{attached}
		}
	}
	p.c.drains.stop(p.rt.Name) // its result is written down now
	message := "drained"
	if p.rt.Status.MachineGone {
		message = "the machine is gone, and its pods are released"
	}
	return p.pass(ctx, v1alpha1.Drained, &p.rt.Status.Times.Drained, v1alpha1.RetirementDrained, message)
}

// attached names the volumes that are still attached to the machine, and that no pod which stays uses.
func (p *passage) attached(ctx context.Context) ([]v1alpha1.RetirementReason, error) {
	attachments, err := p.c.o.API.ListVolumeAttachments(ctx)
	if err != nil {
		return nil, fmt.Errorf("volume attachments: %w", err)
	}
	on, err := p.pods(ctx)
	if err != nil {
		return nil, err
	}
	staying := map[string]bool{}
	for _, pod := range on.staying {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
				continue
			}
			name := pod.Name + "-" + v.Name
			if v.PersistentVolumeClaim != nil {
				name = v.PersistentVolumeClaim.ClaimName
			}
			claim, err := p.c.o.API.GetClaim(ctx, pod.Namespace, name)
			if kubeapi.IsNotFound(err) {
				continue // it names no volume any more
			}
			if err != nil {
				return nil, fmt.Errorf("claim %s/%s: %w", pod.Namespace, name, err)
			}
			staying[claim.Spec.VolumeName] = true
		}
	}
	var attached []v1alpha1.RetirementReason
	for _, a := range attachments {
		volume := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName != p.rt.Spec.NodeName || volume == nil || staying[*volume] {
			continue
		}
		attached = append(attached, reason(VolumesAttached, "volume "+*volume, "is still attached to the machine"))
	}
	return attached, nil
}

// release lets the control plane release the pods of a machine that is gone, which their kubelet cannot do any more. The
// taint that hold has set makes it so. What tolerates the taint goes when the Node does.
func (p *passage) release(ctx context.Context) error {
	if err := p.beginRelease(ctx); err != nil {
		return err
	}
	if p.node == nil {
		return nil
	}
	if err := p.stillGone(ctx); err != nil {
		return err
	}
	on, err := p.pods(ctx)
	if err != nil {
		return err
	}
	// What policy protects cannot be protected any more: its machine is gone.
	left := len(on.leaving) + len(on.kept)
	if left == 0 || elapsed.Over(p.rt.Status.Times.Releasing.Time, time.Now(), p.c.o.Pace.Release) {
		return nil
	}
	return wait(min(p.c.o.Pace.Cloud, p.c.o.Pace.Release), "the machine is gone: %d pods are being released", left)
}

// beginRelease writes down since when the pods are released, which may be long after the drain has begun: the control plane
// has its time from the taint on, to detach the volumes in good order.
func (p *passage) beginRelease(ctx context.Context) error {
	if p.rt.Status.Times.Releasing != nil {
		return nil
	}
	p.rt.Status.Times.Releasing = sinceThen(time.Now())
	const message = "the machine is gone: its pods are being released"
	if !p.reached(v1alpha1.Draining) {
		return p.pass(ctx, v1alpha1.Draining, &p.rt.Status.Times.Draining, "", message)
	}
	p.note("", message, nil)
	return p.save(ctx)
}

// stillGone asks for both proofs anew: the machine may have been only out of sight (I7).
func (p *passage) stillGone(ctx context.Context) error {
	if err := p.confirmSilence(ctx); err != nil {
		return err
	}
	if ready(p.node) {
		return end(MachineBack, "the machine was taken for gone, and its Node is Ready again")
	}
	_, err := p.confirmed(ctx, p.rt.Status.Captured.ProviderID)
	switch {
	case err == nil:
		return end(MachineBack, "the machine was taken for gone, and its cloud has it again")
	case cloud.IsNotFound(err):
		return nil
	}
	return err
}

// sinceThen is a time as the API server keeps it.
func sinceThen(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}
