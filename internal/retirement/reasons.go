package retirement

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Codes for status.reasons[].code, which say why a retirement ended early or is blocked. Package disruptionbudget has
// further codes.
const (
	NodeNotFound      = "NodeNotFound"
	NodeReplaced      = "NodeReplaced"
	ControlPlane      = "ControlPlane"
	NoProviderID      = "NoProviderID"
	ProviderMismatch  = "ProviderIDMismatch"
	ForeignMachine    = "ForeignInstance"
	UnknownCloud      = "UnknownCloud"
	NotConfirmed      = "InstanceNotConfirmed"
	GroupNotFound     = "GroupNotFound"
	NotInGroup        = "NotInGroup"
	InstanceNotOwned  = "InstanceNotOwned"
	SeveralGroups     = "MultipleGroups"
	GroupNotAccepted  = "GroupNotAccepted"
	GroupNotReady     = "GroupNotReady"
	AlreadyRetiring   = "AlreadyRetiring"
	BeingRemoved      = "BeingRemoved"
	ProtectedNode     = "ProtectedNode"
	ProtectedPod      = "ProtectedPod"
	KeepingPod        = "MatchingPod"
	PodBlocked        = "PodBlocked"
	DrainTimeout      = "DrainTimeout"
	VolumesAttached   = "VolumesAttached"
	Cancelled         = "Cancelled"
	RestoreFailed     = "RestoreFailed"
	InstanceRecovered = "InstanceRecovered"
	NoticeOver        = "NoticeEnded"
	NodeReady         = "NodeReady"
	Disagreement      = "CloudNodeMismatch"
	CloudFailed       = "CloudFailed"
	CloudRefused      = "CloudRefused"
	CloudRights       = v1alpha1.CloudRightsMissing
	CloudBusy         = "CloudBusy"
	ReadFailed        = "Error"
)

// Reasons of conditions that are not codes.
const (
	admittedReason  = "Admitted"  // the retirement may start
	unblockedReason = "Unblocked" // nothing blocks the retirement any more

	deletingReason = "Deleting" // the Node's deletion was accepted, and its finalizers delay it
)

// endError is the error of a step that ends the retirement early. The phase decides whether the retirement is then
// Refused, Aborted or Failed.
type endError struct{ reasons []v1alpha1.RetirementReason }

func (e *endError) Error() string { return joinReasons(e.reasons) }

// newEnd returns an endError with one reason for the node as a whole.
func newEnd(code, format string, a ...any) error {
	return &endError{[]v1alpha1.RetirementReason{newReason(code, "", format, a...)}}
}

// waitError is the error of a step that is not done yet. It is not a failure.
type waitError struct {
	// after is when to retry at the latest.
	after   time.Duration
	message string
	// reasons are what blocks the retirement; none if it progresses normally.
	reasons []v1alpha1.RetirementReason
	// noEvent is for obstacles that end on their own.
	noEvent bool
}

func (w *waitError) Error() string { return w.message }

func newWait(after time.Duration, format string, a ...any) error {
	return &waitError{after: after, message: fmt.Sprintf(format, a...)}
}

// newBlocked returns a waitError for an obstacle that a person may have to remove.
func newBlocked(after time.Duration, reasons ...v1alpha1.RetirementReason) error {
	return &waitError{after: after, message: joinReasons(reasons), reasons: reasons}
}

// newTemporarilyBlocked returns a waitError for an obstacle that ends on its own, and that may come back often.
func newTemporarilyBlocked(after time.Duration, reason v1alpha1.RetirementReason) error {
	return &waitError{after: after, message: reason.Message, reasons: []v1alpha1.RetirementReason{reason}, noEvent: true}
}

func asWaitError(err error) *waitError {
	var w *waitError
	if errors.As(err, &w) {
		return w
	}
	return nil
}

// Limits of the CustomResourceDefinition.
const (
	maxReasons = 64
	maxDetail  = 1024
	maxMessage = 4096
)

func newReason(code, object, format string, a ...any) v1alpha1.RetirementReason {
	return v1alpha1.RetirementReason{Code: code, Object: observe.ClipChars(object, 512), Message: observe.ClipChars(fmt.Sprintf(format, a...), maxDetail)}
}

// joinReasons returns all reasons as one message.
func joinReasons(reasons []v1alpha1.RetirementReason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		if r.Object != "" {
			all = append(all, r.Object+": "+r.Message)
			continue
		}
		all = append(all, r.Message)
	}
	return observe.ClipChars(strings.Join(all, "; "), maxMessage)
}
