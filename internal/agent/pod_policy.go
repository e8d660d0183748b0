package agent

import (
	"slices"
	"strings"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
)

// EvictOn is the label by which a pod asks to be evicted for what other pods bear. Its value names the kinds, in lower
// case, with dots between: freeze, live-migration, reboot, redeploy, preempt, terminate, condition, or any. A live
// migration is a freeze too.
const EvictOn = "slipway.dev/evict-on"

// onFreeze is the label of the same meaning, for freezes, that AKS's own node auto-drain reads
// (https://learn.microsoft.com/azure/aks/node-auto-drain-evict-on-freeze).
const onFreeze = "remediator.kubernetes.azure.com/onFreeze"

// asksToLeave reports that a pod asks to be evicted for a notice.
func asksToLeave(p *kubeapi.Pod, kind notice.Type, liveMigration bool) bool {
	if value, ok := p.Labels[onFreeze]; ok && kind == notice.Freeze && value != "false" {
		return true
	}
	words := strings.Split(strings.ToLower(p.Labels[EvictOn]), ".")
	return slices.Contains(words, "any") || slices.Contains(words, strings.ToLower(string(kind))) ||
		liveMigration && slices.Contains(words, "live-migration")
}

// gravity orders the types by what of a node they leave.
var gravity = map[notice.Type]int{
	notice.Freeze: 0, notice.Condition: 1, notice.Reboot: 2, notice.Redeploy: 3, notice.Preempt: 3, notice.Terminate: 3,
}

// demand is what one notice asks of the pods.
type demand struct {
	kind          notice.Type
	marked        bool // only of those that mind
	liveMigration bool
}

func demandOf(h *noticeState) demand {
	marked := h.Decision.Action == DrainMarked
	return demand{kind: h.Notice.Kind(), marked: marked, liveMigration: marked && h.Notice.LiveMigration}
}

func (c demand) concerns(p *kubeapi.Pod) bool {
	return !c.marked || asksToLeave(p, c.kind, c.liveMigration)
}

// governingType returns the gravest type of the demands that concern a pod, and whether there is one.
func governingType(demands []demand, p *kubeapi.Pod) (notice.Type, bool) {
	var kind notice.Type
	found := false
	for _, c := range demands {
		if c.concerns(p) && (!found || gravity[c.kind] > gravity[kind]) {
			kind, found = c.kind, true
		}
	}
	return kind, found
}

// drainPolicy says what the pods get, by what survives the interruption.
func drainPolicy(t notice.Type) podrules.Policy {
	p := podrules.Forced()
	switch t {
	case notice.Reboot:
		// The kubelet starts the pods that it finds after a reboot again; one that nobody would replace is better off
		// restarted in place than deleted for good.
		p = p.With(podrules.ByUnmanaged, podrules.Leave)
	case notice.Condition:
		// The node stays, so that what nobody would replace, or somebody wants left alone, is better off where it is.
		p = p.With(podrules.ByUnmanaged, podrules.Leave).With(podrules.ByProtected, podrules.Leave)
	case notice.Freeze:
		// Everything survives a pause, so that only what can move without loss does.
		for _, rule := range []podrules.Rule{podrules.ByUnmanaged, podrules.ByProtected, podrules.ByLocalStorage, podrules.ByHostPath} {
			p = p.With(rule, podrules.Leave)
		}
	}
	return p
}
