package retirement

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of a retirement's Event.
type eventReason string

// The reasons. The comment of each states the type of its Events, their objects, and when they are written.
const (
	// eventBegun is Normal, on Node and NodeRetirement: the node is cordoned to be retired.
	eventBegun eventReason = "RetirementStarted"
	// eventBlocked is Warning, on NodeRetirement: the retirement is blocked; the message says why.
	eventBlocked eventReason = "RetirementBlocked"
	// eventOverridden is Warning, on Node and NodeRetirement: a user allows the eviction of protected pods until a
	// given time.
	eventOverridden eventReason = "ProtectionOverridden"
	// eventDeletionFailed is Warning, on Node and NodeRetirement: the instance could not be deleted; the deletion is
	// retried.
	eventDeletionFailed eventReason = "RetirementDeletionFailed"
	// eventRetired is Normal, on Node and NodeRetirement: the node and its instance are deleted.
	eventRetired eventReason = "Retired"
	// eventRetirementRefused is Warning, on Node and NodeRetirement: nothing was changed; the message says why.
	eventRetirementRefused eventReason = "RetirementRefused"
	// eventRetirementAborted is Warning, on Node and NodeRetirement: the retirement ended early, and the node was
	// restored.
	eventRetirementAborted eventReason = "RetirementAborted"
	// eventRetirementFailed is Warning, on Node and NodeRetirement: the retirement ended too late to restore the node;
	// its status says what is left to do.
	eventRetirementFailed eventReason = "RetirementFailed"
	// eventReplacementGivenUp is Warning, on Node and NodeRetirement: the replacement of a lost instance has not joined
	// within a week, and the record is deleted.
	eventReplacementGivenUp eventReason = "ReplacementAbandoned"
)

// eventRecorder writes the Events of a retirement, on its NodeRetirement and its Node. The phases in between are
// conditions and not Events, because each Event would cost two writes per node.
type eventRecorder struct{ recorder events.EventRecorder }

func (a eventRecorder) emitOnRetirementAndNode(rt *v1alpha1.NodeRetirement, kind string, reason eventReason, note string) {
	note = observe.ClipEventNote(note)
	node := toEventNode(rt)
	a.recorder.Eventf(rt, node, kind, string(reason), "Retire", "%s", note)
	if node.UID != "" && reason != eventBlocked {
		a.recorder.Eventf(node, rt, kind, string(reason), "Retire", "%s", note)
	}
}

func toEventNode(rt *v1alpha1.NodeRetirement) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName, UID: targetNodeUID(rt)},
	}
}

func (a eventRecorder) recordCordoned(rt *v1alpha1.NodeRetirement) {
	a.emitOnRetirementAndNode(rt, corev1.EventTypeNormal, eventBegun, "cordoned the node to retire it ("+string(rt.Spec.Reason)+")")
}

func (a eventRecorder) recordBlocked(rt *v1alpha1.NodeRetirement, code, message string) {
	a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventBlocked, code+": "+message)
}

func (a eventRecorder) recordOverride(rt *v1alpha1.NodeRetirement) {
	o := rt.Spec.OverrideProtection
	a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventOverridden, "protected pods may be evicted until "+
		o.Until.UTC().Format(time.RFC3339)+", set by "+o.By+": "+o.Why)
}

func (a eventRecorder) recordDeletionFailed(rt *v1alpha1.NodeRetirement, err error, pause time.Duration) {
	a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventDeletionFailed, "cannot delete the instance, retry in "+pause.String()+
		": "+err.Error())
}

func (a eventRecorder) recordFinished(rt *v1alpha1.NodeRetirement, phase v1alpha1.Phase, code, message string) {
	switch phase {
	case v1alpha1.Succeeded:
		a.emitOnRetirementAndNode(rt, corev1.EventTypeNormal, eventRetired, message)
	case v1alpha1.Refused:
		a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventRetirementRefused, code+": "+message)
	case v1alpha1.Aborted:
		a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventRetirementAborted, code+": "+message)
	default:
		a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventRetirementFailed, code+": "+message)
	}
}

func (a eventRecorder) recordReplacementAbandoned(rt *v1alpha1.NodeRetirement) {
	note := "the replacement of this instance has not joined: Slipway stops waiting for it"
	if r := rt.Status.Replacement; r != nil {
		note += " (" + string(r.State) + "): " + joinReasons(r.Reasons)
	}
	a.emitOnRetirementAndNode(rt, corev1.EventTypeWarning, eventReplacementGivenUp, note)
}
