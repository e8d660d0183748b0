package placement

import "github.com/slipway-dev/slipway/internal/protection"

// ruleLocalStorage keeps the node of a pod that would lose what it has stored there, unless it is said to be safe.
var ruleLocalStorage = podRule{
	name: "local-storage",
	decide: func(p *pod, o *Options) (podFate, bool) {
		return fateBlocked, p.eviction.localVolume != "" && !p.eviction.safe && !o.LocalStorage
	},
	text:   func(p *pod) string { return "keeps data on the node in volume " + p.eviction.localVolume },
	remedy: "annotate the pod " + protection.SafeToEvict + `: "true"`,
}
