package replacement

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// announcer makes the Events of a replacement, each on its NodeRetirement and on the Node that is replaced.
type announcer struct{ to events.EventRecorder }

func (a announcer) emit(rt *v1alpha1.NodeRetirement, kind, reason, note string) {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName, UID: rt.Spec.NodeUID},
	}
	note = observe.Note(note)
	a.to.Eventf(rt, node, kind, reason, "Replace", "%s", note)
	a.to.Eventf(node, rt, kind, reason, "Replace", "%s", note)
}

func (a announcer) ordered(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, "ReplacementOrdered", "one more machine is ordered: "+sentence(rt.Status.Replacement.Reasons))
}

func (a announcer) leftToCloud(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, "ReplacementLeftToCloud", sentence(rt.Status.Replacement.Reasons))
}

func (a announcer) arrived(rt *v1alpha1.NodeRetirement) {
	a.emit(rt, corev1.EventTypeNormal, "ReplacementArrived", "the machine "+rt.Status.Replacement.Machine+" runs")
}

func (a announcer) refused(rt *v1alpha1.NodeRetirement, why v1alpha1.RetirementReason, pause time.Duration) {
	a.emit(rt, corev1.EventTypeWarning, "ReplacementRefused", why.Code+", again in "+pause.String()+": "+why.Message)
}

func (a announcer) failed(rt *v1alpha1.NodeRetirement, why v1alpha1.RetirementReason) {
	a.emit(rt, corev1.EventTypeWarning, "ReplacementFailed", why.Message)
}

// sentence is all the reasons in one message.
func sentence(reasons []v1alpha1.RetirementReason) string {
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
