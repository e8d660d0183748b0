package filter

import (
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/placement"
)

// remedies says, per text of a reason or else per predicate, what would let a pod onto the nodes that are refused.
var remedies = map[string]string{
	"NodeUnschedulable":             "uncordon a node",
	"TaintToleration":               "let the pod tolerate the taint",
	"NodeAffinity":                  "add a node that the pod's selector matches, or widen the selector",
	"NodePorts":                     "free the host port, or add a node",
	fitPredicate:                    "add a node with room for the pod, or lower what it requests",
	restrictionsPredicate:           "let go of the volume elsewhere",
	limitsPredicate:                 "add a node that can attach more volumes",
	bindingPredicate:                "add a node that the volume can be reached from",
	zonePredicate:                   "add a node in the volume's zone",
	spreadPredicate:                 "add a node where the pods are fewest, or allow more skew",
	podAffinityPredicate:            "add a node where the pod's affinity holds, or loosen it",
	"NodeDeclaredFeatures":          "add a node with the feature",
	reasonTooManyPods.Text:          "add a node, or let a node take more pods",
	reasonNameConflict.Text:         "correct the pod's node affinity",
	reasonExistingAntiAffinity.Text: "add a node that no such pod is on or near",
	reasonPodAntiAffinity.Text:      "add a node that no such pod is on or near",
}

// maxRemedies is how many remedies are named at most; those for the most nodes come first.
const maxRemedies = 2

// RemedyOf says what would let a pod onto one of the nodes; empty when nothing simple would, as where the scheduler itself
// might not refuse.
func RemedyOf(t placement.Tallies) string {
	var list []string
	for _, tally := range t {
		if tally.Reason.Scheduler == "" {
			continue
		}
		text, ok := remedies[strings.TrimSuffix(tally.Reason.Text, BesideNominated)]
		if !ok {
			text = remedies[tally.Reason.Predicate]
		}
		if text != "" && !slices.Contains(list, text) && len(list) < maxRemedies {
			list = append(list, text)
		}
	}
	return strings.Join(list, "; or ")
}

// RemedyOfRefusal says what would let the scheduler look at nodes for a pod for which it looks at none.
func RemedyOfRefusal(r *placement.Reason) string {
	switch r.Predicate {
	case gatesPredicate:
		return "have the gates removed"
	case restrictionsPredicate, bindingPredicate, zonePredicate:
		return "make the pod's claims usable"
	default:
		return "correct the pod's specification"
	}
}
