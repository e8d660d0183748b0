package pod

import "github.com/slipway-dev/slipway/internal/drainability"

const safeAnnotation = drainability.SafeToEvict + `: "true"`

// unmanagedRule matches pods that no controller recreates.
var unmanagedRule = rule{
	name: "unmanaged", matches: func(f *Facts) bool { return f.Owner == NoOwner }, action: RefuseDrain, isWaived: hasFlag(SafeToEvict),
	describe: fixedText("has no controller that would recreate it"), remedy: "delete the pod, or annotate it " + safeAnnotation,
}
