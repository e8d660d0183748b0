package agent

import (
	"slices"
	"strings"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// EvictOnLabel is a pod label. A pod with it is evicted even for notices that other pods may stay for. Its value lists
// notice types in lower case, separated by dots: freeze, live-migration, reboot, redeploy, preempt, terminate,
// condition, or any. The type freeze includes live migrations.
const EvictOnLabel = "slipway.dev/evict-on"

// aksFreezeLabel is the pod label of AKS node auto-drain for eviction before a Freeze. For freezes the agent treats it
// like EvictOnLabel (https://learn.microsoft.com/azure/aks/node-auto-drain-evict-on-freeze).
const aksFreezeLabel = "remediator.kubernetes.azure.com/onFreeze"

// isMarkedForEviction reports whether a label of the pod requests its eviction before a notice of this type.
func isMarkedForEviction(p *kubeapi.Pod, kind notice.Type, liveMigration bool) bool {
	if value, ok := p.Labels[aksFreezeLabel]; ok && kind == notice.Freeze && value != "false" {
		return true
	}
	words := strings.Split(strings.ToLower(p.Labels[EvictOnLabel]), ".")
	return slices.Contains(words, "any") || slices.Contains(words, strings.ToLower(string(kind))) ||
		liveMigration && slices.Contains(words, "live-migration")
}

// severity orders the notice types by how much of the node they destroy; a higher value destroys more.
var severity = map[notice.Type]int{
	notice.Freeze: 0, notice.Condition: 1, notice.Rebalance: 1, notice.Reboot: 2, notice.Redeploy: 3, notice.Preempt: 3, notice.Terminate: 3,
}

// demand says which pods have to leave the node for one notice.
type demand struct {
	noticeType    notice.Type
	markedOnly    bool // only pods with the label
	liveMigration bool
}

func newDemand(h *noticeState) demand {
	marked := h.Decision.Action == DrainMarked
	return demand{noticeType: h.Notice.EffectiveType(), markedOnly: marked, liveMigration: marked && h.Notice.LiveMigration}
}

func (c demand) matchesPod(p *kubeapi.Pod) bool {
	return !c.markedOnly || isMarkedForEviction(p, c.noticeType, c.liveMigration)
}

// mostSevereType returns the most severe notice type among the demands that include the pod. It returns false if no
// demand includes the pod.
func mostSevereType(demands []demand, p *kubeapi.Pod) (mostSevere notice.Type, found bool) {
	var kind notice.Type
	for _, c := range demands {
		if c.matchesPod(p) && (!found || severity[c.noticeType] > severity[kind]) {
			kind, found = c.noticeType, true
		}
	}
	return kind, found
}

// policyForType returns the pod policy for a notice type. It depends on what survives the interruption, such as the
// disk.
func policyForType(t notice.Type) podrules.Policy {
	p := podrules.ForcedPolicy()
	switch t {
	case notice.Reboot:
		// After a reboot the kubelet restarts the pods it finds. A pod without a controller should be restarted in
		// place, because nothing would replace it.
		p = p.WithAction(podrules.RuleUnmanaged, podrules.Skip)
	case notice.Condition, notice.Rebalance:
		// The node stays, so unmanaged and protected pods stay where they are.
		p = p.WithAction(podrules.RuleUnmanaged, podrules.Skip).WithAction(podrules.RuleProtected, podrules.Skip)
	case notice.Freeze:
		// Everything survives a pause, so only pods that can move without loss are evicted.
		for _, rule := range []podrules.Rule{podrules.RuleUnmanaged, podrules.RuleProtected, podrules.RuleLocalStorage, podrules.RuleHostPath} {
			p = p.WithAction(rule, podrules.Skip)
		}
	}
	return p
}
