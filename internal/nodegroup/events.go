package nodegroup

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of an Event about a group or one of its nodes.
type eventReason string

// The reasons. The comment of each says the type of its Events, their objects, and when they are written.
const (
	// eventAccepted is Normal, on NodeGroup: the group is accepted, and Slipway acts on it from now on.
	eventAccepted eventReason = "GroupAccepted"
	// eventRefused is Warning, on NodeGroup: the group is refused, and Slipway does not act on it; the message has the
	// fault.
	eventRefused eventReason = "GroupRefused"
	// eventIdle is Normal, on Node and NodeGroup: no pod keeps the node any more, and its cooldown has begun.
	eventIdle eventReason = "NodeIdle"
	// eventIdleKept is Normal, on Node and NodeGroup: the cooldown of the idle node has passed, and another rule keeps
	// it.
	eventIdleKept eventReason = "IdleNodeKept"
	// eventIdleRetired is Normal, on Node and NodeGroup: the cooldown of the idle node has passed, and its retirement
	// is requested.
	eventIdleRetired eventReason = "IdleNodeRetiring"
	// eventCancelled is Normal, on Node: a pod needs the node, and its retirement is cancelled.
	eventCancelled eventReason = "RetirementCancelled"
)

// emitAcceptanceIfChanged writes an Event if the condition Accepted of the group has changed.
func (c *Controller) emitAcceptanceIfChanged(g *v1alpha1.NodeGroup, was *metav1.Condition, is metav1.Condition) {
	if was != nil && was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	eventType, reason := corev1.EventTypeNormal, eventAccepted
	switch is.Status {
	case metav1.ConditionFalse:
		eventType, reason = corev1.EventTypeWarning, eventRefused
		c.options.Log.Error("the NodeGroup is refused", "group", g.Name, "reason", is.Reason, "message", is.Message)
	case metav1.ConditionTrue:
		c.options.Log.Info("the NodeGroup is accepted", "group", g.Name)
	default:
		c.options.Log.Warn("the NodeGroup is not accepted yet", "group", g.Name, "message", is.Message)
		return
	}
	if !isFromFile(g) {
		// The action contains the fault: if only the notes of Events differed, client-go would keep the first.
		note := is.Reason + ": " + is.Message
		c.options.Events.Eventf(eventTarget(g), nil, eventType, string(reason), observe.ClipEventAction(note), "%s", observe.ClipBytes(note, maxMessage))
	}
}

// eventTarget returns a reference to the group for an Event. It sets the kind, because objects from a cache have none.
func eventTarget(g *v1alpha1.NodeGroup) *v1alpha1.NodeGroup {
	return &v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID},
	}
}

// emitChangedDecisions writes an Event for each decision that differs from the last one on the same node.
func (c *Controller) emitChangedDecisions(w *GroupSnapshot, decisions []Decision) {
	c.mu.Lock()
	before := c.emittedKeys[w.Group.Name]
	now := make(map[string]string, len(decisions))
	for i := range decisions {
		now[decisions[i].Node] = decisionKey(&decisions[i])
	}
	c.emittedKeys[w.Group.Name] = now
	c.mu.Unlock()
	for i := range decisions {
		if d := &decisions[i]; before[d.Node] != now[d.Node] {
			c.emitDecision(w, d)
		}
	}
}

// decisionKey returns a string that is the same for decisions with the same verdict and rules. It does not contain the
// pod names and times in the messages.
func decisionKey(d *Decision) string { return string(d.Verdict) + " " + joinRules(d.Reasons) }

func (c *Controller) emitDecision(w *GroupSnapshot, d *Decision) {
	log := c.options.Log.With("group", w.Group.Name, "node", d.Node, "verdict", d.Verdict, "reasons", d.Reasons)
	var reason eventReason
	switch d.Verdict {
	case VerdictCoolingDown:
		reason = eventIdle
	case VerdictBlocked:
		reason = eventIdleKept
		c.options.Metrics.countRefused(w.Group.Name, d.Reasons)
	case VerdictDue:
		reason = eventIdleRetired
	case VerdictKept, VerdictRetiring:
		log.Debug("decided")
		return
	}
	log.Info("decided")
	c.emitNodeAndGroupEvent(w.Group, d.node.Object, reason, d.Reasons)
}

// emitNodeAndGroupEvent writes an Event on the Node and on the NodeGroup. It writes none on a NodeGroup from a file,
// because that has no object.
func (c *Controller) emitNodeAndGroupEvent(g *v1alpha1.NodeGroup, n *corev1.Node, reason eventReason, why []Reason) {
	action, note := ToEventAction(why), JoinReasons(why)
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID},
	}
	c.options.Events.Eventf(node, nil, corev1.EventTypeNormal, string(reason), action, "%s", observe.ClipBytes(note, maxMessage))
	if !isFromFile(g) {
		c.options.Events.Eventf(eventTarget(g), node, corev1.EventTypeNormal, string(reason), action, "%s", observe.ClipBytes("node "+n.Name+": "+note, maxMessage))
	}
}

func (c *Controller) emitRetirementCancelled(rt *v1alpha1.NodeRetirement, why string) {
	c.options.Log.Info("the retirement is cancelled", "retirement", rt.Name, "node", rt.Spec.NodeName, "why", why)
	c.options.Metrics.countCancelled(rt.Spec.Group)
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName, UID: rt.Spec.NodeUID},
	}
	c.options.Events.Eventf(node, nil, corev1.EventTypeNormal, string(eventCancelled), "Cancel", "%s", observe.ClipBytes(why, maxMessage))
}
