package retirement

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
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
	selected, err := p.selected()
	if err != nil {
		return podsOn{}, err
	}
	keeps, err := p.keeps()
	if err != nil {
		return podsOn{}, err
	}
	now := time.Now()
	policy := p.policy(now)
	var on podsOn
	for i := range all {
		pod := &all[i]
		if keeps(*pod) {
			on.kept = append(on.kept, reason(KeepingPod, "pod "+pod.Namespace+"/"+pod.Name, "keeps the node, which is not idle"))
			continue
		}
		verdict, action := policy.Judge(pod, now)
		if verdict.Rule != drain.Mirror && !selected(*pod) {
			action = policy.Of(drain.Excluded)
		}
		switch action {
		case drain.Refuse:
			on.kept = append(on.kept, reason(ProtectedPod, "pod "+pod.Namespace+"/"+pod.Name, "%s (%s)", verdict.Detail, verdict.Rule))
		case drain.Leave:
			on.staying = append(on.staying, *pod)
		default:
			on.overridden = on.overridden || verdict.Rule == drain.Protected && p.drainPolicy().Protection != v1alpha1.EvictProtected
			on.leaving = append(on.leaving, *pod)
		}
	}
	return on, nil
}

// policy is what the group's drain policy and the retirement's override make of each rule.
func (p *passage) policy(now time.Time) drain.Policy {
	policy := drain.VoluntaryPolicy()
	d := p.drainPolicy()
	if d.DeleteLocalStorage {
		policy[drain.LocalStorage] = drain.Evict
	}
	if d.EvictUnmanaged {
		policy[drain.Unmanaged] = drain.Evict
	}
	if d.Protection == v1alpha1.EvictProtected || p.overridden(now) {
		policy[drain.Protected] = drain.Evict
	}
	return policy
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

// selected tells the pods that are to be drained from placeholders, which go with the machine.
func (p *passage) selected() (func(kubeapi.Pod) bool, error) {
	if p.group == nil {
		return func(kubeapi.Pod) bool { return true }, nil
	}
	placeholders, err := Placeholders(p.group)
	if err != nil {
		return nil, err
	}
	return func(pod kubeapi.Pod) bool { return !placeholders.Matches(labels.Set(pod.Labels)) }, nil
}

// Placeholders selects the pods of a group that but hold room, by spec.drain.placeholderPods. A selector that says
// nothing names none. The error names the group and the field; with one, nothing is selected.
func Placeholders(g *v1alpha1.NodeGroup) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(g.Spec.Drain.PlaceholderPods)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("NodeGroup %s: spec.drain.placeholderPods: %w", g.Name, err)
	}
	if selector.Empty() {
		return labels.Nothing(), nil
	}
	return selector, nil
}
