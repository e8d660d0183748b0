package retirement

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// judgedSoon is the pause while a group has not been looked at as it is now: after a restart that takes a moment.
const judgedSoon = time.Second

// judged waits until a group has been looked at as it is now. The status of a group of a file lives no longer than a process,
// and a group may be new: what is wrong with it, and its cloud's minimum, are not known before (I5). No Event tells of it.
// A group that this process passes over may be looked at by none: it is taken as it is.
func (p *passage) judged(g *v1alpha1.NodeGroup) error {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	if c != nil && c.ObservedGeneration == g.Generation || p.c.o.Selector != nil && !p.c.o.Selector.Matches(labels.Set(g.Labels)) {
		return nil
	}
	not := reason(GroupNotJudged, "", "the NodeGroup %s, which selects the node, has not been looked at yet as it is now: none of its nodes "+
		"leaves before", g.Name)
	return &waiting{after: judgedSoon, message: not.Message, reasons: []v1alpha1.RetirementReason{not}, quiet: true}
}

// notRefused ends the retirement of a node whose group is not accepted. One that its cloud refuses to tell of is waited for,
// before anything that this cloud says of a machine is taken for true: a credential may have expired, and is renewed. One that
// lacks but rights is not refused here: somebody may give them, and admission waits for those that this machine takes.
func (p *passage) notRefused() error {
	if why := Refused(p.group); why != "" {
		return end(GroupNotAccepted, "the NodeGroup %s is not accepted: %s", p.group.Name, why)
	}
	c := meta.FindStatusCondition(p.group.Status.Conditions, v1alpha1.GroupAccepted)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.CloudRefused {
		return blocked(p.c.o.Pace.Poll, reason(CloudRefused, "", "the NodeGroup %s is not accepted: %s", p.group.Name, c.Message))
	}
	return nil
}

// Refused says why a group is not accepted as it is configured; "" for one that is, for one of which that is not known, and for
// one that is not for what its cloud refuses, or the rights there that it lacks.
func Refused(g *v1alpha1.NodeGroup) string {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason == v1alpha1.CloudRightsMissing || c.Reason == v1alpha1.CloudRefused {
		return ""
	}
	return c.Message
}

// accepted waits until the group is one that is acted on. One that lacks but rights in its cloud is let pass: it is asked
// next which of them this machine takes.
func (p *passage) accepted() error {
	if p.group == nil {
		return nil
	}
	if err := p.judged(p.group); err != nil {
		return err
	}
	c := p.unaccepted()
	if c == nil {
		return nil
	}
	not := reason(GroupNotAccepted, "", "the NodeGroup %s is not accepted: %s", p.group.Name, c.Message)
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, not.Code, not.Message)
	return blocked(p.c.o.Pace.Poll, not)
}

// unaccepted is the condition of a group that is not acted on; nil of one that is.
func (p *passage) unaccepted() *metav1.Condition {
	c := meta.FindStatusCondition(p.group.Status.Conditions, v1alpha1.GroupAccepted)
	if c == nil || c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.CloudRightsMissing {
		return nil
	}
	return c
}

// believed waits to take a machine for gone until its group is accepted: a credential of another project, say, is refused the
// group, or finds none, and finds no machine either (I7). Once the Node is deleted only a refusal is waited for: its cloud group
// may well be gone with its last machine.
func (p *passage) believed(providerID string) error {
	if p.group == nil {
		return nil
	}
	deleted := p.reached(v1alpha1.NodeDeleted)
	if err := p.judged(p.group); err != nil && !deleted {
		return err
	}
	c := p.unaccepted()
	if c == nil || deleted && c.Reason != v1alpha1.CloudRefused {
		return nil
	}
	return blocked(p.c.o.Pace.Poll, reason(GroupNotAccepted, "machine "+providerID, "the cloud says that there is none, which is not taken for "+
		"true while the NodeGroup %s is not accepted: %s", p.group.Name, c.Message))
}
