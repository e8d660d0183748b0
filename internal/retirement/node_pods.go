package retirement

import (
	"context"
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/drainability/grouppolicy"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// podsOn are the pods bound to the node, as policy sees them.
type podsOn struct {
	// kept are those for whose sake the node stays, each with its rule.
	kept []v1alpha1.RetirementReason
	// leaving are those that have to leave, and staying those that go with the machine.
	leaving, staying []kubeapi.Pod
	// overridden reports that some would be kept but for spec.overrideProtection.
	overridden bool
}

// pods lists the node's pods past all caches.
func (p *passage) pods(ctx context.Context) (podsOn, error) {
	all, err := p.c.o.API.ListPodsOn(ctx, p.rt.Spec.NodeName)
	if err != nil {
		return podsOn{}, fmt.Errorf("pods on the node: %w", err)
	}
	marks, err := p.selection()
	if err != nil {
		return podsOn{}, err
	}
	now := time.Now()
	policy := p.policy(now)
	var on podsOn
	for i := range all {
		pod := &all[i]
		facts := fromkubeapi.Pod(pod)
		marks.Mark(&facts, pod.Namespace, pod.Labels)
		switch v := policy.Judge(&facts, now); v.Action {
		case podrules.Refuse:
			on.kept = append(on.kept, keptReason(pod.Namespace, pod.Name, v.Rule, v.Text(&facts)))
		case podrules.Leave:
			on.staying = append(on.staying, *pod)
		default:
			on.overridden = on.overridden || v.Rule == podrules.ByProtected && p.drainPolicy().Protection != v1alpha1.EvictProtected
			on.leaving = append(on.leaving, *pod)
		}
	}
	return on, nil
}

// keptReason says why the node stays for a pod's sake.
func keptReason(namespace, name string, rule podrules.Rule, text string) v1alpha1.RetirementReason {
	code := ProtectedPod
	if rule == podrules.ByKeepsNode {
		code = KeepingPod
	}
	return reason(code, "pod "+namespace+"/"+name, "%s (%s)", text, rule)
}

func (p *passage) policy(now time.Time) podrules.Policy {
	return grouppolicy.For(p.group, p.overridden(now))
}

// selection is which pods the group selects. Only an idle retirement stops for the pods that keep a node: one may have
// come after the node was found idle.
func (p *passage) selection() (grouppolicy.Selection, error) {
	read := grouppolicy.Placeholders
	if p.rt.Spec.Reason == v1alpha1.Idle {
		read = grouppolicy.Idle
	}
	s, err := read(p.group)
	s.SystemLocalStorage = p.c.o.SystemLocalStorage
	return s, err
}

func (p *passage) drainPolicy() v1alpha1.DrainPolicy {
	if p.group == nil {
		return v1alpha1.DrainPolicy{}
	}
	return p.group.Spec.Drain
}

// overridden reports that somebody's word to evict protected pods is in force.
func (p *passage) overridden(now time.Time) bool {
	o := p.rt.Spec.OverrideProtection
	return o != nil && now.Before(o.Until.Time)
}

func (p *passage) timeout() time.Duration { return DrainTime(p.group) }

// DrainTime is how long the drain of a group's node may take; nil is a node of no group.
func DrainTime(g *v1alpha1.NodeGroup) time.Duration {
	if g != nil && g.Spec.Drain.Timeout != nil && g.Spec.Drain.Timeout.Duration > 0 {
		return g.Spec.Drain.Timeout.Duration
	}
	return defaultTimeout
}
