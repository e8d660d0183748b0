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

// nodePods holds the pods that are bound to the node, grouped by what the drain policy decides about each.
type nodePods struct {
	// protected are the pods that forbid the retirement, each with its rule.
	protected []v1alpha1.RetirementReason
	// toEvict are the pods that must be removed. skipped are the pods that are deleted with the instance.
	toEvict, skipped []kubeapi.Pod
	// overridden is true if spec.overrideProtection makes protected pods evictable.
	overridden bool
}

// listAndClassifyPods reads the node's pods from the API server.
func (p *retirementScope) listAndClassifyPods(ctx context.Context) (nodePods, error) {
	all, err := p.controller.options.API.ListPodsOnNode(ctx, p.rt.Spec.NodeName)
	if err != nil {
		return nodePods{}, fmt.Errorf("listing the node's pods: %w", err)
	}
	marks, err := p.newPodSelection()
	if err != nil {
		return nodePods{}, err
	}
	now := time.Now()
	policy := p.podPolicy(now)
	var on nodePods
	for i := range all {
		pod := &all[i]
		facts := fromkubeapi.PodFacts(pod)
		marks.AddFacts(&facts, pod.Namespace, pod.Labels)
		switch v := policy.Decide(&facts, now); v.Action {
		case podrules.RefuseDrain:
			on.protected = append(on.protected, toProtectedReason(pod.Namespace, pod.Name, v.Rule, v.Reason(&facts)))
		case podrules.Skip:
			on.skipped = append(on.skipped, *pod)
		default:
			on.overridden = on.overridden || v.Rule == podrules.RuleProtected && p.groupDrainPolicy().Protection != v1alpha1.EvictProtected
			on.toEvict = append(on.toEvict, *pod)
		}
	}
	return on, nil
}

// toProtectedReason returns why a pod forbids the retirement.
func toProtectedReason(namespace, name string, rule podrules.Rule, text string) v1alpha1.RetirementReason {
	code := ProtectedPod
	if rule == podrules.RuleKeepsNode {
		code = KeepingPod
	}
	return newReason(code, "pod "+namespace+"/"+name, "%s (%s)", text, rule)
}

func (p *retirementScope) podPolicy(now time.Time) podrules.Policy {
	return grouppolicy.NewPodPolicy(p.group, p.isProtectionOverridden(now))
}

// newPodSelection returns which pods the group selects as work and as placeholders. Pods that count as work stop only a
// retirement with the reason Idle: such a pod may have arrived after the node was found idle.
func (p *retirementScope) newPodSelection() (grouppolicy.PodSelection, error) {
	read := grouppolicy.NewPlaceholderSelection
	if p.rt.Spec.Reason == v1alpha1.Idle {
		read = grouppolicy.NewIdleSelection
	}
	s, err := read(p.group)
	s.SystemLocalStorage = p.controller.options.SystemLocalStorage
	return s, err
}

func (p *retirementScope) groupDrainPolicy() v1alpha1.DrainPolicy {
	if p.group == nil {
		return v1alpha1.DrainPolicy{}
	}
	return p.group.Spec.Drain
}

// isProtectionOverridden reports whether a user's override of protections is active.
func (p *retirementScope) isProtectionOverridden(now time.Time) bool {
	o := p.rt.Spec.OverrideProtection
	return o != nil && now.Before(o.Until.Time)
}

func (p *retirementScope) drainTimeout() time.Duration { return GroupDrainTimeout(p.group) }

// GroupDrainTimeout returns the drain timeout of a group's nodes. A nil group means the default.
func GroupDrainTimeout(g *v1alpha1.NodeGroup) time.Duration {
	if g != nil && g.Spec.Drain.Timeout != nil && g.Spec.Drain.Timeout.Duration > 0 {
		return g.Spec.Drain.Timeout.Duration
	}
	return defaultDrainTimeout
}
