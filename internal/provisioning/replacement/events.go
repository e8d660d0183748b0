package replacement

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

type eventReason string

// The reasons. The comment of each says the type of its Events, their objects, and when they are written.
const (
	// eventLaunched is Normal, on Node and NodeRetirement: an instance is launched to replace another that its cloud takes
	// away, by Slipway or by the cloud.
	eventLaunched eventReason = "ReplacementLaunched"
	// eventReady is Normal, on Node and NodeRetirement: the Node of the new instance is Ready and takes pods.
	eventReady eventReason = "ReplacementReady"
	// eventFailed is Warning, on Node and NodeRetirement: the launch has failed; it is repeated if it created no
	// instance.
	eventFailed eventReason = "ReplacementFailed"
)

// eventEmitter writes the Events of a replacement, on its NodeRetirement and on the replaced Node.
type eventEmitter struct{ recorder events.EventRecorder }

func (a eventEmitter) emit(rt *v1alpha1.NodeRetirement, eventType string, reason eventReason, note string) {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName, UID: rt.Spec.NodeUID},
	}
	note = observe.ClipEventNote(note)
	a.recorder.Eventf(rt, node, eventType, string(reason), "Replace", "%s", note)
	a.recorder.Eventf(node, rt, eventType, string(reason), "Replace", "%s", note)
}

func (a eventEmitter) emitLaunched(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, eventLaunched, "an instance is launched: "+joinMessages(rt.Status.Replacement.Reasons))
}

func (a eventEmitter) emitReady(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, eventReady, "the Node of instance "+rt.Status.Replacement.Instance+" is Ready")
}

func (a eventEmitter) emitFailed(rt *v1alpha1.NodeRetirement, why v1alpha1.RetirementReason) {
	a.emit(rt, corev1.EventTypeWarning, eventFailed, why.Code+": "+why.Message)
}

func joinMessages(reasons []v1alpha1.RetirementReason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		text := r.Message
		if r.Object != "" {
			text = r.Object + " " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
