package pod

import "github.com/slipway-dev/slipway/internal/drainability"

const safeAnnotation = drainability.SafeToEvict + `: "true"`

// unmanaged matches pods that no controller recreates.
var unmanaged = rule{
	name: "unmanaged", match: func(f *Facts) bool { return f.Owner == None }, action: Refuse, waived: has(SafeToEvict),
	text: says("has no controller that would recreate it"), remedy: "delete the pod, or annotate it " + safeAnnotation,
}
