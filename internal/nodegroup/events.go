package nodegroup

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of an Event about a group or one of its nodes.
type eventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// eventAccepted is Normal, on NodeGroup: the group is acted on from now on.
	eventAccepted eventReason = "GroupAccepted"
	// eventRefused is Warning, on NodeGroup: nothing is done for the group; the message says what is wrong with it.
	eventRefused eventReason = "GroupRefused"
	// eventIdle is Normal, on Node and NodeGroup: no pod keeps the node any more, and its cooldown has begun.
	eventIdle eventReason = "NodeIdle"
	// eventStays is Normal, on Node and NodeGroup: the node is idle for long enough, and something else keeps it.
	eventStays eventReason = "IdleNodeKept"
	// eventLeaves is Normal, on Node and NodeGroup: the node is idle for long enough, and its retirement is asked for.
	eventLeaves eventReason = "IdleNodeRetiring"
	// eventCalledOff is Normal, on Node: a pod needs the node after all, and its retirement is called off.
	eventCalledOff eventReason = "RetirementCancelled"
)

const action = "Manage"

// announceAcceptance tells that a group has become one that is acted on, or has ceased to be one.
func (c *Controller) announceAcceptance(g *v1alpha1.NodeGroup, was *metav1.Condition, is metav1.Condition) {
	if was != nil && was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	kind, reason := corev1.EventTypeNormal, eventAccepted
	switch is.Status {
	case metav1.ConditionFalse:
		kind, reason = corev1.EventTypeWarning, eventRefused
		c.o.Log.Error("the NodeGroup is refused, and nothing is done for it", "group", g.Name, "reason", is.Reason, "message", is.Message)
	case metav1.ConditionTrue:
		c.o.Log.Info("the NodeGroup is accepted", "group", g.Name)
	default:
		c.o.Log.Warn("the NodeGroup waits to be accepted", "group", g.Name, "message", is.Message)
		return
	}
	if !ofFile(g) {
		c.o.Events.Eventf(about(g), nil, kind, string(reason), action, "%s", observe.Clip(is.Reason+": "+is.Message, maxMessage))
	}
}

// about is the group with its kind, which objects from a cache lack.
func about(g *v1alpha1.NodeGroup) *v1alpha1.NodeGroup {
	return &v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID},
	}
}

// announce tells of each decision that is another one than before.
func (c *Controller) announce(w *World, decisions []Decision) {
	c.mu.Lock()
	before := c.told[w.Group.Name]
	now := make(map[string]string, len(decisions))
	for i := range decisions {
		now[decisions[i].Node] = signature(&decisions[i])
	}
	c.told[w.Group.Name] = now
	c.mu.Unlock()
	for i := range decisions {
		if d := &decisions[i]; before[d.Node] != now[d.Node] {
			c.tell(w, d)
		}
	}
}

// signature is what makes a decision another one: its verdict and its rules, and not the pod or the time in a message.
func signature(d *Decision) string {
	parts := []string{string(d.Verdict)}
	for _, r := range d.Reasons {
		parts = append(parts, r.Rule)
	}
	return strings.Join(parts, " ")
}

func (c *Controller) tell(w *World, d *Decision) {
	sentence := Sentence(d.Reasons)
	log := c.o.Log.With("group", w.Group.Name, "node", d.Node, "verdict", d.Verdict, "reasons", d.Reasons)
	var reason eventReason
	switch d.Verdict {
	case Waits:
		reason = eventIdle
	case Refused:
		reason = eventStays
		c.o.Metrics.refused(w.Group.Name, d.Reasons)
	case Leaves:
		reason = eventLeaves
	case Stays, Retires:
		log.Debug("decided")
		return
	}
	log.Info("decided")
	c.emit(w.Group, d.node.Object, reason, sentence)
}

// emit makes an Event on the Node and on the NodeGroup, if there is an object.
func (c *Controller) emit(g *v1alpha1.NodeGroup, n *corev1.Node, reason eventReason, note string) {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID},
	}
	c.o.Events.Eventf(node, nil, corev1.EventTypeNormal, string(reason), action, "%s", observe.Clip(note, maxMessage))
	if !ofFile(g) {
		c.o.Events.Eventf(about(g), node, corev1.EventTypeNormal, string(reason), action, "%s", observe.Clip("node "+n.Name+": "+note, maxMessage))
	}
}

func (c *Controller) calledOff(rt *v1alpha1.NodeRetirement, why string) {
	c.o.Log.Info("the retirement is called off", "retirement", rt.Name, "node", rt.Spec.NodeName, "why", why)
	c.o.Metrics.calledOff(rt.Spec.Group)
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: rt.Spec.NodeName, UID: rt.Spec.NodeUID},
	}
	c.o.Events.Eventf(node, nil, corev1.EventTypeNormal, string(eventCalledOff), action, "%s", observe.Clip(why, maxMessage))
}
