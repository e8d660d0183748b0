package retirement

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// groupObservedPoll is the pause between two checks whether the group's status is about its current generation. After a
// restart, the status is updated within moments.
const groupObservedPoll = time.Second

// awaitGroupObserved waits until the group's status is about its current generation. Before that, the group's faults
// and the minimum size in its cloud are unknown (invariant I5). A group from a file loses its status when the process
// restarts. It does not wait for a group that this process's selector excludes. It causes no Event.
func (p *retirementScope) awaitGroupObserved(g *v1alpha1.NodeGroup) error {
	if acceptance.FromGroup(g).IsObserved() || p.controller.options.Selector != nil && !p.controller.options.Selector.Matches(labels.Set(g.Labels)) {
		return nil
	}
	return newTemporarilyBlocked(groupObservedPoll, newReason(GroupNotReady, "", "the status of the NodeGroup %s does not reflect its current generation yet", g.Name))
}

// checkGroupNotRefused ends the retirement if its group is refused.
//
// If the cloud refuses to answer for the group, the retirement waits instead: a credential may have expired and be
// renewed. If only permissions are missing, checkGroupNotRefused does nothing: admission waits for the permissions that
// this instance needs.
func (p *retirementScope) checkGroupNotRefused() error {
	switch a := acceptance.FromGroup(p.group); a.State {
	case acceptance.Refused:
		return newEnd(GroupNotAccepted, "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message)
	case acceptance.CloudRefused:
		return newBlocked(p.controller.options.Intervals.Poll, newReason(CloudRefused, "", "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message))
	}
	return nil
}

// awaitGroupAccepted waits until the group may retire nodes. It does not wait for missing permissions, because admission
// checks the permissions that this instance needs.
func (p *retirementScope) awaitGroupAccepted() error {
	if p.group == nil {
		return nil
	}
	if err := p.awaitGroupObserved(p.group); err != nil {
		return err
	}
	a := acceptance.FromGroup(p.group)
	if a.MayRetire() {
		return nil
	}
	blockedReason := newReason(GroupNotAccepted, "", "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message)
	p.setCondition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, blockedReason.Code, blockedReason.Message)
	return newBlocked(p.controller.options.Intervals.Poll, blockedReason)
}

// awaitTrustedNotFound waits until the answer "not found" of the group's cloud can be trusted; see
// [acceptance.Acceptance.CanTrustNotFound].
func (p *retirementScope) awaitTrustedNotFound(providerID string) error {
	if p.group == nil {
		return nil
	}
	deleted := p.hasReached(v1alpha1.NodeDeleted)
	if err := p.awaitGroupObserved(p.group); err != nil && !deleted {
		return err
	}
	a := acceptance.FromGroup(p.group)
	if a.CanTrustNotFound(deleted) {
		return nil
	}
	return newBlocked(p.controller.options.Intervals.Poll, newReason(GroupNotAccepted, "instance "+providerID, "the cloud does not find it, but that is not "+
		"trusted until the NodeGroup %s is accepted: %s", p.group.Name, a.Message))
}
