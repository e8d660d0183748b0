package filter

import (
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/placement"
)

// remedies maps the text of a reason, or else its predicate, to an action that lets the pod onto the refused nodes.
var remedies = map[string]string{
	"NodeUnschedulable":                "uncordon a node",
	"TaintToleration":                  "add a toleration of the taint to the pod",
	"NodeAffinity":                     "add a node that the pod's selector matches, or relax the selector",
	"NodePorts":                        "free the host port, or add a node",
	fitPredicate:                       "add a node with room for the pod, or lower its requests",
	restrictionsPredicate:              "delete the pod that uses the volume",
	limitsPredicate:                    "add a node that can attach more volumes",
	bindingPredicate:                   "add a node that can reach the volume",
	zonePredicate:                      "add a node in the volume's zone",
	spreadPredicate:                    "add a node in the domain with the fewest pods, or raise maxSkew",
	podAffinityPredicate:               "add a node that meets the pod's affinity, or relax the affinity",
	"NodeDeclaredFeatures":             "add a node with the feature",
	reasonTooManyPods.Message:          "add a node, or raise the pod limit of a node",
	reasonNameConflict.Message:         "correct the pod's node affinity",
	reasonExistingAntiAffinity.Message: "add a node in another topology domain",
	reasonPodAntiAffinity.Message:      "add a node in another topology domain",
}

// maxRemedies is the largest number of remedies to name. Remedies for the most nodes come first.
const maxRemedies = 2

// FindRemedy returns an action that lets the pod onto one of the nodes. It is empty if no simple action helps, or if
// the scheduler itself might not refuse.
func FindRemedy(t placement.ReasonCounts) string {
	var list []string
	for _, tally := range t {
		if tally.Reason.Scheduler == "" {
			continue
		}
		text, ok := remedies[strings.TrimSuffix(tally.Reason.Message, NominatedSuffix)]
		if !ok {
			text = remedies[tally.Reason.Predicate]
		}
		if text != "" && !slices.Contains(list, text) && len(list) < maxRemedies {
			list = append(list, text)
		}
	}
	return strings.Join(list, "; or ")
}

// FindPreFilterRemedy returns an action that makes the scheduler consider nodes for a pod that PreFilter rejects.
func FindPreFilterRemedy(r *placement.Reason) string {
	switch r.Predicate {
	case gatesPredicate:
		return "remove the scheduling gates"
	case restrictionsPredicate, bindingPredicate, zonePredicate:
		return "correct the pod's claims"
	default:
		return "correct the pod's specification"
	}
}
