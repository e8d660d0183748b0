package provisioning

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// eventReason is the reason of an Event about scaling.
type eventReason string

// The reasons. The comment of each says the type of its Events, their objects, and when they are written.
const (
	// eventLaunched is Normal, on Pod and NodeGroup: an instance is launched for pods that are unschedulable.
	eventLaunched eventReason = "LaunchRequested"
	// eventUnplaceable is Warning, on Pod: no instance that may be launched now would take the pod; the message has the
	// reason of each group; repeated every 30 minutes.
	eventUnplaceable eventReason = "NoTemplateFits"
	// eventBackedOff is Warning, on NodeGroup: the cloud failed to launch a template, and the template is not launched
	// for a while.
	eventBackedOff eventReason = "TemplateBackedOff"
	// eventInstanceDeleted is Warning, on NodeGroup: an instance had no Node within the join timeout, and is deleted.
	eventInstanceDeleted eventReason = "InstanceJoinTimeout"
	// eventUnderutilizedRetired is Normal, on Node and NodeGroup: the node is underutilized, its pods fit elsewhere,
	// and its retirement is requested.
	eventUnderutilizedRetired eventReason = "UnderutilizedNodeRetiring"
	// eventUnderutilizedKept is Normal, on Node: the node is underutilized, and a rule keeps it.
	eventUnderutilizedKept eventReason = "UnderutilizedNodeKept"
)

const (
	eventAction = "Scale"

	// maxNote is the API server's limit for the note of an Event, in bytes.
	maxNote = 1024
)

// eventRepeatInterval is the time after which the Event of an unplaceable pod is repeated. The API server keeps an
// Event for one hour after its last write, and such a pod may stay for days.
const eventRepeatInterval = 30 * time.Minute

// emittedPodEvent identifies the last Event of a pod.
type emittedPodEvent struct {
	key string
	at  time.Time
}

// emitChangedPodEvents writes an Event for each pod whose verdict changed. It writes that no instance helps only if the state
// of all groups is known, and repeats that Event at an interval.
func (a *Controller) emitChangedPodEvents(d *plan.Decision, allKnown bool, waiting map[placement.PodKey]unschedulablePod) {
	now, emitted := time.Now(), make(map[string]emittedPodEvent, len(d.Pods))
	for i := range d.Pods {
		v := &d.Pods[i]
		p := waiting[v.Pod]
		key := string(v.Outcome)
		for _, r := range v.Reasons {
			key += " " + r.Group + "/" + r.Template + "=" + r.Rule
		}
		before := a.podEvents[string(p.uid)]
		if before.key == key && (v.Outcome != plan.Unschedulable || now.Before(before.at.Add(eventRepeatInterval))) {
			emitted[string(p.uid)] = before
			continue
		}
		if v.Outcome == plan.Unschedulable && !allKnown {
			continue // the state of a group is unknown
		}
		emitted[string(p.uid)] = emittedPodEvent{key, now}
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: p.uid},
		}
		switch v.Outcome {
		case plan.Launching:
			a.emitEvent(pod, corev1.EventTypeNormal, eventLaunched, eventAction, joinReasons(v.Reasons))
		case plan.Unschedulable:
			a.emitEvent(pod, corev1.EventTypeWarning, eventUnplaceable, joinDistinctRules(v.Reasons), joinReasons(v.Reasons))
		}
	}
	a.podEvents = emitted
}

func joinReasons(reasons []plan.Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// joinDistinctRules returns the distinct rules of the reasons as one text. This text is the action of an Event. If only the
// notes of Events differed, the API server would merge the Events.
func joinDistinctRules(reasons []plan.Reason) string {
	var all []string
	for _, r := range reasons {
		if !slices.Contains(all, r.Rule) {
			all = append(all, r.Rule)
		}
	}
	return observe.ClipEventAction(strings.Join(all, "-"))
}

func (a *Controller) emitEvent(object runtime.Object, eventType string, reason eventReason, action, note string) {
	a.options.Events.Eventf(object, nil, eventType, string(reason), action, "%s", observe.ClipBytes(note, maxNote))
}

// emitGroupEvent writes an Event on a NodeGroup. It writes none for a group of a file, which has no object. subject is
// the template, instance or node that the Event is about. It becomes the action of the Event, so that the API server
// does not merge Events about different subjects.
func (a *Controller) emitGroupEvent(g *managedGroup, eventType string, reason eventReason, subject, format string, args ...any) {
	if g.Group.UID == "" {
		return
	}
	a.emitEvent(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.name(), UID: g.Group.UID},
	}, eventType, reason, observe.ClipEventAction(cmp.Or(subject, eventAction)), fmt.Sprintf(format, args...))
}

func (a *Controller) emitLaunched(g *managedGroup, o plan.Launch) {
	a.emitGroupEvent(g, corev1.EventTypeNormal, eventLaunched, o.Template, "launching %d of template %s: %s", o.Count, o.Template, joinReasons(o.Reasons))
}

func (a *Controller) reportBackOff(g *managedGroup, b v1alpha1.BackOff) {
	a.options.Log.Warn("the template backs off", "group", g.name(), "template", b.Template, "until", b.Until, "reason", b.Reason,
		"message", b.Message)
	a.emitGroupEvent(g, corev1.EventTypeWarning, eventBackedOff, b.Template, "%s is not launched until %s: %s: %s", b.Template,
		b.Until.UTC().Format("15:04:05"), b.Reason, b.Message)
}

func (a *Controller) emitInstanceDeleted(g *managedGroup, failed launch.FailedInstance) {
	a.emitGroupEvent(g, corev1.EventTypeWarning, eventInstanceDeleted, cmp.Or(failed.Instance.Name, failed.Instance.ProviderID),
		"instance %s (%s) has no Node and is deleted: %s: %s", failed.Instance.Name, failed.Instance.ProviderID, failed.Reason, failed.Message)
}

// emitNodeEventIfChanged writes an Event for a node that is retired or kept, if the decision changed. For an underutilized node
// that is needed again it only writes to the log, because that can happen often.
func (a *Controller) emitNodeEventIfChanged(g *managedGroup, d *plan.NodeDecision) {
	uid := string(d.Subject.Object.UID)
	key := string(d.Verdict)
	for _, r := range d.Reasons {
		key += " " + r.Rule
	}
	a.mu.Lock()
	before := g.state.nodeEvents[uid]
	if g.state.nodeEvents == nil {
		g.state.nodeEvents = map[string]string{}
	}
	g.state.nodeEvents[uid] = key
	a.mu.Unlock()
	if before == key {
		return
	}
	var reason eventReason
	switch d.Verdict {
	case nodegroup.VerdictDue:
		reason = eventUnderutilizedRetired
	case nodegroup.VerdictBlocked:
		reason = eventUnderutilizedKept
	case nodegroup.VerdictKept:
		if since := d.Subject.Object.Annotations[plan.UnderutilizedSinceAnnotation]; since != "" {
			a.options.Log.Info("node is kept, and its cooldown will start again", "group", d.Group, "node", d.Node, "since", since, "reasons", d.Reasons)
		}
		return
	default:
		return
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: d.Node, UID: d.Subject.Object.UID},
	}
	a.emitEvent(node, corev1.EventTypeNormal, reason, nodegroup.ToEventAction(d.Reasons), nodegroup.JoinReasons(d.Reasons))
	a.options.Log.Info("underutilized node", "group", d.Group, "node", d.Node, "verdict", d.Verdict, "reasons", d.Reasons)
	if d.Verdict == nodegroup.VerdictDue {
		a.emitGroupEvent(g, corev1.EventTypeNormal, reason, d.Node, "node %s: %s", d.Node, nodegroup.JoinReasons(d.Reasons))
	}
}
