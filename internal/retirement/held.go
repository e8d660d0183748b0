package retirement

import (
	"strings"
	"time"
)

const (
	// ScaleDownDisabled makes cluster-autoscaler leave a node alone
	// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-can-i-prevent-cluster-autoscaler-from-scaling-down-a-particular-node).
	ScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// HoldsOff is the annotation that says that ScaleDownDisabled is Slipway's own, and asks nothing of Slipway.
	HoldsOff = "nodegroup.slipway.dev/holds-off-cluster-autoscaler"
)

// HeldBy is the one of a Node's annotations by which somebody asks for it to be left alone, or empty. Its value is true, or
// for how long from the Node's creation on; that of cluster-autoscaler knows only true.
func HeldBy(annotations map[string]string, created, now time.Time) string {
	for _, key := range []string{"slipway.dev/do-not-evict", "karpenter.sh/do-not-disrupt"} {
		value := annotations[key]
		if isTrue(value) {
			return key
		}
		if d, err := time.ParseDuration(value); err == nil && now.Before(created.Add(d)) {
			return key
		}
	}
	if isTrue(annotations[ScaleDownDisabled]) && !isTrue(annotations[HoldsOff]) {
		return ScaleDownDisabled
	}
	return ""
}

func isTrue(value string) bool { return strings.EqualFold(strings.TrimSpace(value), "true") }

// leftAlone refuses a node that somebody asks to leave alone, unless that is overridden.
func (p *passage) leftAlone() error {
	now := time.Now()
	if p.node == nil || p.overridden(now) {
		return nil
	}
	if by := HeldBy(p.node.Annotations, p.node.CreationTimestamp, now); by != "" {
		return end(ProtectedNode, "the Node's annotation %s asks to leave it alone; take it off, or set spec.overrideProtection", by)
	}
	return nil
}
