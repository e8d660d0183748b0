package retirement

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Codes of what ends a retirement early or blocks it, in status.reasons[].code. Budgets have codes of their own.
const (
	NodeNotFound     = "NodeNotFound"
	NodeReplaced     = "NodeReplaced"
	ControlPlane     = "ControlPlane"
	NoProviderID     = "NoProviderID"
	ProviderMismatch = "ProviderIDMismatch"
	ForeignMachine   = "ForeignMachine"
	UnknownCloud     = "UnknownCloud"
	NotConfirmed     = "MachineNotConfirmed"
	GroupNotFound    = "GroupNotFound"
	NotInGroup       = "NotInGroup"
	InstanceNotOwned = "InstanceNotOwned"
	SeveralGroups    = "SeveralGroups"
	GroupNotAccepted = "GroupNotAccepted"
	GroupNotJudged   = "GroupNotJudged"
	AlreadyRetiring  = "AlreadyRetiring"
	BeingRemoved     = "BeingRemoved"
	ProtectedNode    = "ProtectedNode"
	ProtectedPod     = "ProtectedPod"
	KeepingPod       = "KeepingPod"
	PodBlocked       = "PodBlocked"
	DrainTimeout     = "DrainTimeout"
	VolumesAttached  = "VolumesAttached"
	CalledOff        = "CalledOff"
	NotGivenBack     = "NotGivenBack"
	MachineBack      = "MachineBack"
	NoticeOver       = "NoticeOver"
	NodeReady        = "NodeReady"
	Disagreement     = "CloudAndNodeDisagree"
	CloudFailed      = "CloudFailed"
	CloudRefused     = "CloudRefused"
	CloudRights      = v1alpha1.CloudRightsMissing
	CloudBusy        = "CloudBusy"
	ReadFailed       = "Error"
)

// Reasons of conditions that are no codes.
const (
	admitted = "Admitted" // the retirement may begin
	goesOn   = "GoesOn"   // nothing holds it up any more

	nodeDeleting = "Deleting" // the API server has taken the Node's deletion, and finalizers hold the Node
)

// ending is why a retirement ends early. What becomes of it (refused, aborted, failed) depends on how far it came.
type ending struct{ reasons []v1alpha1.RetirementReason }

func (e *ending) Error() string { return sentence(e.reasons) }

// end is an ending for one reason that is about the node as a whole.
func end(code, format string, a ...any) error {
	return &ending{[]v1alpha1.RetirementReason{reason(code, "", format, a...)}}
}

// waiting is why a step is not done yet. It is no failure.
type waiting struct {
	// after is when to look again, at the latest.
	after   time.Duration
	message string
	// reasons are what blocks; none when all goes its way.
	reasons []v1alpha1.RetirementReason
	// quiet is for what passes by itself: no Event tells of it.
	quiet bool
}

func (w *waiting) Error() string { return w.message }

func wait(after time.Duration, format string, a ...any) error {
	return &waiting{after: after, message: fmt.Sprintf(format, a...)}
}

// blocked is a wait for something that may need a person.
func blocked(after time.Duration, reasons ...v1alpha1.RetirementReason) error {
	return &waiting{after: after, message: sentence(reasons), reasons: reasons}
}

func isWaiting(err error) *waiting {
	var w *waiting
	if errors.As(err, &w) {
		return w
	}
	return nil
}

// Limits of the CRD.
const (
	maxReasons = 64
	maxDetail  = 1024
	maxMessage = 4096
)

func reason(code, object, format string, a ...any) v1alpha1.RetirementReason {
	return v1alpha1.RetirementReason{Code: code, Object: observe.Cut(object, 512), Message: observe.Cut(fmt.Sprintf(format, a...), maxDetail)}
}

// sentence is all the reasons in one message.
func sentence(reasons []v1alpha1.RetirementReason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		if r.Object != "" {
			all = append(all, r.Object+": "+r.Message)
			continue
		}
		all = append(all, r.Message)
	}
	return observe.Cut(strings.Join(all, "; "), maxMessage)
}
