package retirement

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of an Event of a retirement.
type eventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// eventBegun is Normal, on Node and NodeRetirement: the node is cordoned to be retired.
	eventBegun eventReason = "RetirementStarted"
	// eventBlocked is Warning, on NodeRetirement: something holds the retirement up; the message says what.
	eventBlocked eventReason = "RetirementBlocked"
	// eventOverridden is Warning, on Node and NodeRetirement: somebody lets protected pods be evicted, until when.
	eventOverridden eventReason = "ProtectionOverridden"
	// eventDeletionFailed is Warning, on Node and NodeRetirement: the machine could not be deleted; it is tried again.
	eventDeletionFailed eventReason = "RetirementDeletionFailed"
	// eventRetired is Normal, on Node and NodeRetirement: the node is out of service, and its machine gone.
	eventRetired eventReason = "Retired"
	// eventRetirementRefused is Warning, on Node and NodeRetirement: nothing was begun; the message says why.
	eventRetirementRefused eventReason = "RetirementRefused"
	// eventRetirementAborted is Warning, on Node and NodeRetirement: it was given up, and the node was given back.
	eventRetirementAborted eventReason = "RetirementAborted"
	// eventRetirementFailed is Warning, on Node and NodeRetirement: it was given up too late to give the node back; its
	// status says what is left to do.
	eventRetirementFailed eventReason = "RetirementFailed"
	// eventReplacementGivenUp is Warning, on Node and NodeRetirement: the machine in the place of one that its cloud took away
	// has not come in a week, and the record of it is deleted.
	eventReplacementGivenUp eventReason = "ReplacementAbandoned"
)

// announcer makes the Events of a retirement, on its NodeRetirement and on its Node. The stages between its begin and its end are
// conditions, and no Events: each would be two writes of each node.
type announcer struct{ to events.EventRecorder }

func (a announcer) emit(rt *v1alpha1.NodeRetirement, kind string, reason eventReason, note string) {
	note = observe.Note(note)
	node := nodeOf(rt)
	a.to.Eventf(rt, node, kind, string(reason), "Retire", "%s", note)
	if node.UID != "" && reason != eventBlocked {
		a.to.Eventf(node, rt, kind, string(reason), "Retire", "%s", note)
	}
}

// nodeOf is the Node as far as an Event needs it.
func nodeOf(rt *v1alpha1.NodeRetirement) *corev1.Node {
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName},
	}
	if rt.Status.Captured != nil {
		n.UID = rt.Status.Captured.NodeUID
	}
	return n
}

func (a announcer) cordoned(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, eventBegun, "cordoned to be retired ("+string(rt.Spec.Reason)+")")
}

func (a announcer) blocked(rt *v1alpha1.NodeRetirement, code, message string) {
	a.emit(rt, corev1.EventTypeWarning, eventBlocked, code+": "+message)
}

func (a announcer) overridden(rt *v1alpha1.NodeRetirement) {
	o := rt.Spec.OverrideProtection
	a.emit(rt, corev1.EventTypeWarning, eventOverridden, "protected pods may be evicted until "+
		o.Until.UTC().Format(time.RFC3339)+", says "+o.By+": "+o.Why)
}

func (a announcer) deletionFailed(rt *v1alpha1.NodeRetirement, err error, pause time.Duration) {
	a.emit(rt, corev1.EventTypeWarning, eventDeletionFailed, "deleting the machine failed, again in "+pause.String()+
		": "+err.Error())
}

func (a announcer) finished(rt *v1alpha1.NodeRetirement, phase v1alpha1.Phase, code, message string) {
	switch phase {
	case v1alpha1.Succeeded:
		a.emit(rt, corev1.EventTypeNormal, eventRetired, message)
	case v1alpha1.Refused:
		a.emit(rt, corev1.EventTypeWarning, eventRetirementRefused, code+": "+message)
	case v1alpha1.Aborted:
		a.emit(rt, corev1.EventTypeWarning, eventRetirementAborted, code+": "+message)
	default:
		a.emit(rt, corev1.EventTypeWarning, eventRetirementFailed, code+": "+message)
	}
}

func (a announcer) replacementGivenUp(rt *v1alpha1.NodeRetirement) {
	note := "no machine has come in the place of this one, and none is waited for any more"
	if r := rt.Status.Replacement; r != nil {
		note += " (" + string(r.State) + "): " + sentence(r.Reasons)
	}
	a.emit(rt, corev1.EventTypeWarning, eventReplacementGivenUp, note)
}
