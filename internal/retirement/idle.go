package retirement

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// keeps tells the pods for whose sake the node of an idle retirement stays: those by which its group says that a node is
// not idle. One may have come after that was said. Placeholders do not count, and neither does what has finished.
func (p *passage) keeps() (func(kubeapi.Pod) bool, error) {
	none := func(kubeapi.Pod) bool { return false }
	if p.rt.Spec.Reason != v1alpha1.Idle || p.group == nil || p.group.Spec.ScaleDown == nil ||
		p.group.Spec.ScaleDown.IdleByLabel == nil {
		return none, nil
	}
	rule := p.group.Spec.ScaleDown.IdleByLabel
	selector, err := metav1.LabelSelectorAsSelector(&rule.PodSelector)
	if err != nil {
		return nil, fmt.Errorf("NodeGroup %s: spec.scaleDown.idleByLabel.podSelector: %w", p.group.Name, err)
	}
	selected, err := p.selected()
	if err != nil {
		return nil, err
	}
	return func(pod kubeapi.Pod) bool {
		return pod.Status.Phase != "Succeeded" && pod.Status.Phase != "Failed" &&
			(len(rule.Namespaces) == 0 || slices.Contains(rule.Namespaces, pod.Namespace)) &&
			selector.Matches(labels.Set(pod.Labels)) && selected(pod)
	}, nil
}

// policyOf is the policy of a drain, pod by pod: what keeps the node stops it.
func (p *passage) policyOf(policy drain.Policy) (func(kubeapi.Pod) drain.Policy, error) {
	keeps, err := p.keeps()
	if err != nil {
		return nil, err
	}
	stop := drain.Policy{}
	for rule := range drain.VoluntaryPolicy() {
		stop[rule] = drain.Refuse
	}
	return func(pod kubeapi.Pod) drain.Policy {
		if keeps(pod) {
			return stop
		}
		return policy
	}, nil
}
