package drain

import "github.com/slipway-dev/slipway/internal/surge"

// SurgeOutcome classifies the surge of one pod for metrics.
type SurgeOutcome string

const (
	// SurgeSucceeded: the pod left after its successor was ready.
	SurgeSucceeded SurgeOutcome = "succeeded"
	// SurgeFailed: a surge was needed, and the pod left or stayed without a ready successor.
	SurgeFailed SurgeOutcome = "failed"
	// SurgeRefused: a surge was needed, and was not started.
	SurgeRefused SurgeOutcome = "refused"
)

// Outcome returns the outcome of the surge. It is empty if no surge was needed, or if nothing was decided. The reason is
// empty after a success.
func (r *SurgeReport) Outcome() (outcome SurgeOutcome, reason string) {
	switch {
	case r.hasSucceeded():
		return SurgeSucceeded, ""
	case r == nil:
		return "", ""
	case r.Decision.Verdict == surge.Refused:
		return SurgeRefused, r.Decision.Reason
	case r.Decision.Verdict == surge.Needed:
		return SurgeFailed, r.Result.Reason
	}
	return "", ""
}

// IsNotRestored reports whether the size of the owner was not restored by the drain. Another process restores it.
func (r *SurgeReport) IsNotRestored() bool { return r != nil && r.Result.RestoreErr != nil }
