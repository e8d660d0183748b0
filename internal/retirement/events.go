package retirement

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// announcer makes the Events of a retirement, each on its NodeRetirement and on its Node.
type announcer struct{ to events.EventRecorder }

func (a announcer) emit(rt *v1alpha1.NodeRetirement, kind, reason, note string) {
	note = observe.Note(note)
	node := nodeOf(rt)
	a.to.Eventf(rt, node, kind, reason, "Retire", "%s", note)
	if node.UID != "" {
		a.to.Eventf(node, rt, kind, reason, "Retire", "%s", note)
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
	a.emit(rt, corev1.EventTypeNormal, "RetirementBegun", "cordoned to be retired ("+string(rt.Spec.Reason)+")")
}

func (a announcer) blocked(rt *v1alpha1.NodeRetirement, code, message string) {
	a.emit(rt, corev1.EventTypeWarning, "RetirementBlocked", code+": "+message)
}

func (a announcer) overridden(rt *v1alpha1.NodeRetirement) {
	o := rt.Spec.OverrideProtection
	a.emit(rt, corev1.EventTypeWarning, "ProtectionOverridden", "protected pods may be evicted until "+
		o.Until.UTC().Format(time.RFC3339)+", says "+o.By+": "+o.Why)
}

func (a announcer) drained(rt *v1alpha1.NodeRetirement, message string) {
	a.emit(rt, corev1.EventTypeNormal, "RetirementDrained", message)
}

func (a announcer) nodeDeleted(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, "RetirementNodeDeleted", "the Node is deleted; its machine is next")
}

func (a announcer) instanceDeleted(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, "RetirementInstanceDeleted", "the machine is deleted")
}

func (a announcer) deletionFailed(rt *v1alpha1.NodeRetirement, err error, pause time.Duration) {
	a.emit(rt, corev1.EventTypeWarning, "RetirementDeletionFailed", "deleting the machine failed, again in "+pause.String()+
		": "+err.Error())
}

func (a announcer) finished(rt *v1alpha1.NodeRetirement, phase v1alpha1.Phase, code, message string) {
	if phase == v1alpha1.Succeeded {
		a.emit(rt, corev1.EventTypeNormal, "Retired", message)
		return
	}
	a.emit(rt, corev1.EventTypeWarning, "Retirement"+string(phase), code+": "+message)
}
