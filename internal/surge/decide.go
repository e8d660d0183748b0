package surge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// startupMargin allows a successor to start more slowly than the pods before it.
	startupMargin = 1.2
	// reversalMemory is how long an owner is left alone after another client took a raise back.
	reversalMemory = 10 * time.Minute
	// scalerInterval is how often a HorizontalPodAutoscaler is evaluated, by default.
	scalerInterval = 15 * time.Second
	// minDenialTime is how long a PodDisruptionBudget has to deny the eviction of a pod without a break until the pod gets a successor.
	// In this time, most replacements of evicted pods become Ready, and then the PodDisruptionBudget allows the next eviction.
	minDenialTime = time.Minute
	// decisionLead is the time for the last decision and the requests until the size is raised. A surge because of a denial starts so
	// much earlier than its time limit demands.
	decisionLead = 5 * time.Second
)

// Decide reads the pod's owner and says whether the pod gets a successor first. It changes nothing. pdbs are the
// PodDisruptionBudgets that select the pod, as far as they were read. deniedSince is since when they have denied the eviction without a
// break; zero means that they have not. until is the latest time to evict or delete the pod; zero means without limit. An error means
// that the owner could not be read.
func (s *Surger) Decide(
	ctx context.Context, pod kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince, until time.Time,
) (Decision, error) {
	d, err := s.decide(ctx, &pod, pdbs, deniedSince, until)
	if err == nil && d.Verdict == Refused {
		s.options.Metrics.SurgeRefused(d.Reason)
	}
	return d, err
}

func (s *Surger) decide(
	ctx context.Context, pod *kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince, until time.Time,
) (Decision, error) {
	d := Decision{Verdict: NotNeeded}
	if !toPodState(pod).isActive() {
		d.Reason, d.Detail = ReasonLeaving, "the pod is terminating or has finished"
		return d, nil
	}
	wish := pod.Annotations[Annotation]
	c := fromkubeapi.FindController(pod)
	mayAsk := c != nil && isPodController(c) // the owner may have the annotation
	if !s.options.Mode.Enabled() || s.options.Mode != On && wish != "true" && (wish != "" || !mayAsk) {
		return toOff(d), nil
	}
	now := time.Now()
	o, ownerErr := s.readSettledOwners(ctx, pod)
	var refused *refusal
	if ownerErr != nil && !errors.As(ownerErr, &refused) {
		return Decision{}, ownerErr
	}
	var sized *owners
	if ownerErr == nil {
		sized = &o
		d.Owner = o.toOwner()
		if wish == "" {
			wish = o.top.Annotations[Annotation]
		}
	}
	if s.options.Mode != On && wish != "true" {
		return toOff(d), nil
	}
	siblings, err := s.listSiblings(ctx, pod, o.replicaSet)
	if err != nil {
		return d.toRefused(err)
	}
	d.StartupSeconds = s.startup(d.Owner.UID, siblings).Seconds()
	if d.Reason, d.Detail, err = s.findNeed(ctx, pod, pdbs, deniedSince, siblings, sized); err != nil {
		return d.toRefused(err)
	}
	if !slices.Contains(neededReasons, d.Reason) {
		return d, nil
	}
	need := d
	if err = ownerErr; err == nil {
		err = s.checkPossible(ctx, pod, pdbs, o, wish, &d, until)
	}
	d, err = d.toVerdict(err, &seenOwners{at: now, owners: o, siblings: siblings})
	if err == nil && need.Reason == ReasonPDBDenies {
		d = d.postpone(need.Detail, d.successorTime(deniedSince, until, countOnNode(siblings, pod.Spec.NodeName)))
	}
	return d, err
}

// neededReasons are the reasons for a successor.
var neededReasons = []string{ReasonPDBNeverAllows, ReasonLastReady, ReasonPDBDenies}

// successorTime returns when a pod with a denied eviction gets a successor: once a replacement that starts after the first denial should
// be Ready, or as late as the successors of all pods of the owner on the node still are in time.
func (d *Decision) successorTime(deniedSince, until time.Time, pods int) time.Time {
	at := deniedSince.Add(max(minDenialTime, d.timeToReady()))
	if until.IsZero() {
		return at
	}
	latest := until.Add(-decisionLead - time.Duration(pods)*d.timeToReady())
	if half := deniedSince.Add(until.Sub(deniedSince) / 2); d.StartupSeconds == 0 && half.Before(latest) {
		latest = half
	}
	if latest.Before(at) {
		return latest
	}
	return at
}

// postpone turns the decision into NotYet if it is made before at. need says what the pod needs a successor for.
func (d Decision) postpone(need string, at time.Time) Decision {
	left := time.Until(at)
	if left <= 0 {
		return d
	}
	outcome := "the pod gets a successor"
	if d.Verdict == Refused {
		outcome = "the pod still gets no successor: " + d.Detail
	}
	d.Detail = fmt.Sprintf("%s; if it still does after %s, %s", need, (left + time.Second - 1).Truncate(time.Second), outcome)
	d.Verdict, d.Reason, d.DecideAgainAt, d.seen = NotYet, ReasonPDBDenies, at, nil
	return d
}

// maxSeenAge is how old seenOwners may be at the start of a surge. The raise is refused anyway if the size has changed
// since, and a rollout that has begun since ends the surge.
const maxSeenAge = 2 * time.Second

// seenOwners is what was read of a pod's owners at a time.
type seenOwners struct {
	at       time.Time
	owners   owners
	siblings []podState
}

// take returns what was seen, and false if there is none or it is too old. It returns it once, so that the memory is free.
func (o *seenOwners) take() (seen seenOwners, ok bool) {
	if o == nil {
		return seen, false
	}
	seen, *o = *o, seenOwners{}
	return seen, time.Since(seen.at) < maxSeenAge
}

func toOff(d Decision) Decision {
	d.Reason, d.Detail = ReasonOff, "surging is off for this pod"
	return d
}

// toVerdict returns the decision that the pod gets a successor, or that err refuses it. It returns any other error unchanged.
func (d Decision) toVerdict(err error, seen *seenOwners) (Decision, error) {
	if err == nil {
		d.Verdict, d.seen = Needed, seen
		return d, nil
	}
	return d.toRefused(err)
}

// toRefused returns the decision for a refusal, and any other error unchanged.
func (d Decision) toRefused(err error) (Decision, error) {
	var r *refusal
	if !errors.As(err, &r) {
		return Decision{}, err
	}
	d.Verdict, d.Reason, d.Detail = Refused, r.reason, r.detail
	return d, nil
}

// findNeed says whether the pod needs a successor before it leaves. deniedSince is as in Decide. sized are the owners if
// another surge may have raised their size, or nil.
func (s *Surger) findNeed(
	ctx context.Context, pod *kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince time.Time, siblings []podState, sized *owners,
) (reason, detail string, err error) {
	var names []string
	_, ready := pod.ReadyTime()
	for _, b := range pdbs {
		names = append(names, b.Name)
		if !ready && len(pdbs) == 1 && b.Spec.UnhealthyPodEvictionPolicy == "AlwaysAllow" {
			break
		}
		if kubeapi.CanNeverAllowEviction(b.Status.DesiredHealthy, b.Status.ExpectedPods) {
			return ReasonPDBNeverAllows, fmt.Sprintf("the PodDisruptionBudget %s wants %d of %d pods healthy, so it never allows an eviction",
				b.Name, b.Status.DesiredHealthy, b.Status.ExpectedPods), nil
		}
	}
	if len(pdbs) > 1 {
		// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/: the answer is always 500.
		slices.Sort(names)
		return ReasonPDBNeverAllows, fmt.Sprintf("the PodDisruptionBudgets %s both select the pod, so an eviction always fails",
			strings.Join(names, " and ")), nil
	}
	denial := ""
	if len(pdbs) == 1 && !deniedSince.IsZero() && deniesEviction(pdbs[0], ready) {
		b := pdbs[0].Status
		denial = fmt.Sprintf("the PodDisruptionBudget %s denies the eviction: %d of %d pods are healthy, and %d must be", pdbs[0].Name,
			b.CurrentHealthy, b.ExpectedPods, b.DesiredHealthy)
	}
	if !ready {
		if denial != "" {
			return ReasonPDBDenies, denial, nil
		}
		return ReasonNotReady, "the pod is not Ready", nil
	}
	staying, leavingNodes, err := s.findStayingPods(ctx, siblings, pod.Spec.NodeName)
	switch {
	case err != nil:
		return "", "", err
	case len(staying) > 0 && denial != "":
		return ReasonPDBDenies, denial, nil
	case len(staying) == 1: // another surge costs the owner one pod at most
		detail, err := s.findEndOfStay(ctx, pod, staying[0], sized)
		if err != nil {
			return "", "", err
		}
		if detail != "" {
			return ReasonLastReady, detail, nil
		}
		fallthrough
	case len(staying) > 1:
		return ReasonOthersReady, fmt.Sprintf("the pod %s of the owner is Ready on node %s", staying[0].name, staying[0].node), nil
	case len(leavingNodes) > 0:
		return ReasonLastReady, fmt.Sprintf("the other Ready pods of the owner are on nodes that are cordoned or being removed: %s",
			strings.Join(leavingNodes, ", ")), nil
	}
	return ReasonLastReady, "no other pod of the owner is Ready on another node", nil
}

// findEndOfStay returns why the only staying pod of the owner may go; empty if it stays. A successor goes when its surge ends without
// success, for example after a crash of its process. If the pod was evicted at that time, the owner would have no Ready pod.
func (s *Surger) findEndOfStay(ctx context.Context, pod *kubeapi.Pod, staying podState, sized *owners) (detail string, err error) {
	if sized == nil {
		return "", nil
	}
	raised, err := s.isRaised(ctx, sized.top.UID)
	switch {
	case err != nil:
		return "", err
	case raised:
		return fmt.Sprintf("the Ready pod %s of the owner may go with another surge of the owner that has not ended", staying.name), nil
	}
	// That surge may have ended since the pods were listed, and its pod with it.
	pods, err := s.listSiblings(ctx, pod, sized.replicaSet)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(pods, func(p podState) bool { return p.uid == staying.uid && p.isActive() && p.ready }) {
		return fmt.Sprintf("the other pod %s of the owner is no longer Ready", staying.name), nil
	}
	return "", nil
}

// isRaised reports whether the size of the owner may be raised for a surge that has not ended. It returns false if the records may not be
// read.
func (s *Surger) isRaised(ctx context.Context, ownerUID string) (bool, error) {
	name := leaseNamePrefix + ownerUID
	l, err := call(ctx, func(ctx context.Context) (*kubeapi.Lease, error) {
		return s.api.GetLease(ctx, s.options.Namespace, name)
	})
	switch {
	case kubeapi.IsNotFound(err), kubeapi.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the record %s/%s: %w", s.options.Namespace, name, err)
	}
	r, err := parseRecord(l)
	return err == nil && !r.AwaitsLateRequest, nil
}

// checkSteadyBesideSurges is checkSteady, but returns errBusy if another surge of the owner may be why the owner is not steady. o are the
// owners of the pod.
func (s *Surger) checkSteadyBesideSurges(ctx context.Context, pod *kubeapi.Pod, o owners) error {
	steadyErr := o.checkSteady()
	var refused *refusal
	if !errors.As(steadyErr, &refused) || refused.reason != ReasonRollout {
		return steadyErr
	}
	raised, err := s.isRaised(ctx, o.top.UID)
	switch {
	case err != nil:
		return err
	case raised:
		return errBusy
	}
	// That surge may have ended since the owners were read: it deletes its record once their controllers have seen the size.
	if o, err = s.readOwners(ctx, pod); err != nil {
		return err
	}
	return o.checkSteady()
}

// checkPossible returns a refusal if the pod needs a successor but cannot get one. It stores the autoscaler in d.
func (s *Surger) checkPossible(
	ctx context.Context, pod *kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, o owners, wish string, d *Decision, until time.Time,
) error {
	if wish == "false" {
		return refuse(ReasonOptedOut, "the annotation %s is \"false\"", Annotation)
	}
	if d.Reason == ReasonPDBDenies {
		_, ready := pod.ReadyTime()
		if err := checkOneMoreHelps(pdbs[0], ready); err != nil {
			return err
		}
	}
	// A surge that needs a successor waits until the other surge of the owner has ended.
	if err := s.checkSteadyBesideSurges(ctx, pod, o); err != nil && !errors.Is(err, errBusy) {
		return err
	}
	if o.top.Spec.Strategy.Type == "Recreate" && wish != "true" {
		return refuse(ReasonRecreate, "the strategy of %s %s is Recreate, so two of its pods may not run at once; "+
			"the annotation %s \"true\" allows it", o.ref.Kind, o.ref.Name, Annotation)
	}
	if err := s.checkReversal(o.top.UID); err != nil {
		return err
	}
	if err := s.checkVolumes(ctx, pod); err != nil {
		return err
	}
	size, err := s.findTarget(ctx, o)
	d.Owner.Scaler = size.scaler
	if err != nil {
		return err
	}
	_, err = s.checkTimeAndRoom(ctx, pod, d, until, false)
	return err
}

// checkTimeAndRoom returns a refusal if the successor would not be ready before until, or fits nowhere. The grace period of the
// pod begins after until. It stores the time for a new instance in d. It may reserve the room until release is called; without a
// reservation, release is nil.
func (s *Surger) checkTimeAndRoom(ctx context.Context, pod *kubeapi.Pod, d *Decision, until time.Time, reserve bool) (release func(), err error) {
	d.LaunchSeconds = 0
	if err := checkTime(d, until); err != nil || s.options.CheckRoom == nil {
		return nil, err
	}
	room := s.options.CheckRoom(ctx, *pod, reserve)
	if !room.Fits {
		return nil, refuse(ReasonNoRoom, "%s", room.Detail)
	}
	d.LaunchSeconds = room.LaunchTime.Seconds()
	return room.Release, checkTime(d, until)
}

// checkTime returns a refusal if a successor would not be ready before until.
func checkTime(d *Decision, until time.Time) error {
	if until.IsZero() {
		return nil
	}
	left, needed := time.Until(until), d.timeToReady()
	if left <= 0 || needed > left {
		with := ""
		if d.LaunchSeconds > 0 {
			with = " with a new instance"
		}
		return refuse(ReasonNoTime, "a successor needs about %s to become Ready%s, and %s are left",
			needed.Round(time.Second), with, max(0, left).Round(time.Second))
	}
	return nil
}

// timeToReady returns how long a successor takes from the raise until it is Ready.
func (d *Decision) timeToReady() time.Duration {
	if d.Owner.Scaler != "" {
		return d.ExpectedStartTime() + scalerInterval
	}
	return d.ExpectedStartTime()
}

func (s *Surger) checkReversal(uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.reverted[uid]; ok && time.Since(r.at) < reversalMemory {
		return refuse(ReasonReverted, "%s took the last raise back %s ago", r.by, time.Since(r.at).Round(time.Second))
	}
	delete(s.reverted, uid)
	return nil
}

// checkVolumes returns a refusal if a volume of the pod cannot be used by a second pod on another node.
func (s *Surger) checkVolumes(ctx context.Context, pod *kubeapi.Pod) error {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue // each pod has its own claim for an ephemeral volume
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim, err := call(ctx, func(ctx context.Context) (*kubeapi.PersistentVolumeClaim, error) {
			return s.api.GetPersistentVolumeClaim(ctx, pod.Namespace, name)
		})
		if err != nil {
			return toRefusal(fmt.Sprintf("read the PersistentVolumeClaim %s/%s", pod.Namespace, name), err)
		}
		modes := claim.Spec.AccessModes
		if !isUsableOnSeveralNodes(modes, v.PersistentVolumeClaim.ReadOnly) {
			return refuse(ReasonReadWriteOnce, "the PersistentVolumeClaim %s has the access modes %s, so the successor cannot "+
				"use it beside the pod", name, strings.Join(modes, ", "))
		}
	}
	return nil
}

// isUsableOnSeveralNodes reports whether pods on several nodes can mount a volume at once. A volume that is ReadOnlyMany and
// ReadWriteOnce is mounted for writing, unless the pod says otherwise.
func isUsableOnSeveralNodes(accessModes []string, readOnly bool) bool {
	isWritable := slices.Contains(accessModes, "ReadWriteOnce") || slices.Contains(accessModes, "ReadWriteOncePod")
	return slices.Contains(accessModes, "ReadWriteMany") || slices.Contains(accessModes, "ReadOnlyMany") && (readOnly || !isWritable)
}

// startup returns how long a pod of the owner takes to become Ready on its node, or 0. It is the time of the last
// successor, or else the lower median of the present pods. A pod that was not Ready for some minutes shows too long a time.
func (s *Surger) startup(uid string, pods []podState) time.Duration {
	s.mu.Lock()
	learned := s.startups[uid]
	s.mu.Unlock()
	if learned > 0 {
		return learned
	}
	var times []time.Duration
	for _, p := range pods {
		if took, known := p.startup(); known {
			times = append(times, took)
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[(len(times)-1)/2]
}
