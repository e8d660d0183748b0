package retirement

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// judgedSoon is the pause while a group has not been looked at as it is now: after a restart that takes a moment.
const judgedSoon = time.Second

// judged waits until a group has been looked at as it is now. The status of a group of a file lives no longer than a process,
// and a group may be new: what is wrong with it, and its cloud's minimum, are not known before (I5). No Event tells of it.
// A group that this process passes over may be looked at by none: it is taken as it is.
func (p *passage) judged(g *v1alpha1.NodeGroup) error {
	if acceptance.Of(g).IsObserved() || p.c.o.Selector != nil && !p.c.o.Selector.Matches(labels.Set(g.Labels)) {
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
	switch a := acceptance.Of(p.group); a.State {
	case acceptance.Refused:
		return end(GroupNotAccepted, "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message)
	case acceptance.CloudRefused:
		return blocked(p.c.o.Pace.Poll, reason(CloudRefused, "", "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message))
	}
	return nil
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
	a := acceptance.Of(p.group)
	if a.MayRetire() {
		return nil
	}
	not := reason(GroupNotAccepted, "", "the NodeGroup %s is not accepted: %s", p.group.Name, a.Message)
	p.condition(v1alpha1.RetirementAdmitted, metav1.ConditionFalse, not.Code, not.Message)
	return blocked(p.c.o.Pace.Poll, not)
}

// believed waits to take a machine for gone until its group is accepted: see [acceptance.Acceptance.TrustsNotFound].
func (p *passage) believed(providerID string) error {
	if p.group == nil {
		return nil
	}
	deleted := p.reached(v1alpha1.NodeDeleted)
	if err := p.judged(p.group); err != nil && !deleted {
		return err
	}
	a := acceptance.Of(p.group)
	if a.TrustsNotFound(deleted) {
		return nil
	}
	return blocked(p.c.o.Pace.Poll, reason(GroupNotAccepted, "machine "+providerID, "the cloud says that there is none, which is not taken for "+
		"true while the NodeGroup %s is not accepted: %s", p.group.Name, a.Message))
}
