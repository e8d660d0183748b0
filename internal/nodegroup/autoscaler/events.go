package autoscaler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/scaling"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement"
)

// Reasons of Events.
const (
	eventOrdered   = "MachineOrdered"  // on the pod, and on the NodeGroup
	eventHelpless  = "NoMachineHelps"  // on the pod
	eventBackedOff = "KindLeftAlone"   // on the NodeGroup
	eventGivenUp   = "MachineGivenUp"  // on the NodeGroup
	eventLeaves    = "UnderusedLeaves" // on the Node, and on the NodeGroup
	eventStays     = "UnderusedStays"  // on the Node

	action = "Scale"

	// The API server's limits of an Event, in bytes.
	maxNote   = 1024
	maxAction = 128
)

// tell tells each pod what becomes of it, when that is something else than before. That nothing helps it is told when
// every group is known.
func (a *Autoscaler) tell(d *scaling.Decision, known bool, waiting map[placement.PodKey]waitingPod) {
	told := make(map[string]string, len(d.Pods))
	for i := range d.Pods {
		v := &d.Pods[i]
		p := waiting[v.Pod]
		word := string(v.Outcome)
		for _, r := range v.Reasons {
			word += " " + r.Group + "/" + r.Template + "=" + r.Rule
		}
		told[string(p.uid)] = word
		if a.told[string(p.uid)] == word {
			continue
		}
		if v.Outcome == scaling.Helpless && !known {
			delete(told, string(p.uid)) // what a group can do is not known yet
			continue
		}
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: p.uid},
		}
		switch v.Outcome {
		case scaling.Ordered:
			a.emit(pod, corev1.EventTypeNormal, eventOrdered, action, sentence(v.Reasons))
		case scaling.Helpless:
			a.emit(pod, corev1.EventTypeWarning, eventHelpless, rules(v.Reasons), sentence(v.Reasons))
		}
	}
	a.told = told
}

func sentence(reasons []scaling.Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// rules are the words of some reasons, each once. As the action of an Event they keep it apart from one that gives other
// reasons: of Events that differ in their notes alone the API server keeps the first.
func rules(reasons []scaling.Reason) string {
	var all []string
	for _, r := range reasons {
		if !slices.Contains(all, r.Rule) {
			all = append(all, r.Rule)
		}
	}
	return observe.Clip(strings.Join(all, "-"), maxAction)
}

func (a *Autoscaler) emit(about runtime.Object, kind, reason, action, note string) {
	a.o.Events.Eventf(about, nil, kind, reason, action, "%s", observe.Clip(note, maxNote))
}

// onGroup makes an Event on a NodeGroup; one of a file has no object.
func (a *Autoscaler) onGroup(g *known, kind, reason, format string, args ...any) {
	if g.Group.UID == "" {
		return
	}
	a.emit(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.name(), UID: g.Group.UID},
	}, kind, reason, action, fmt.Sprintf(format, args...))
}

func (a *Autoscaler) orderPlaced(g *known, o scaling.Order) {
	a.onGroup(g, corev1.EventTypeNormal, eventOrdered, "%d of %s: %s", o.Count, o.Template, sentence(o.Reasons))
}

func (a *Autoscaler) backedOff(g *known, b v1alpha1.BackOff) {
	a.onGroup(g, corev1.EventTypeWarning, eventBackedOff, "%s is left alone until %s: %s: %s", b.Template,
		b.Until.UTC().Format("15:04:05"), b.Reason, b.Message)
}

func (a *Autoscaler) machineGivenUp(g *known, dead scaling.DeadMachine) {
	a.onGroup(g, corev1.EventTypeWarning, eventGivenUp, "machine %s (%s) has had no Node and is deleted: %s: %s", dead.Instance.Name,
		dead.Instance.ProviderID, dead.Reason, dead.Message)
}

// tellWishes takes in what became of the wishes, and tells of those that cannot be granted.
func (a *Autoscaler) tellWishes(groups []*known, verdicts []scaling.WishVerdict) {
	failed := map[string]bool{}
	for _, g := range groups {
		failed[g.name()] = g.refused
	}
	for _, v := range a.o.Wishes.settle(verdicts, failed) {
		if v.Missing > 0 {
			a.o.Log.Warn("machines that were wished for may not be ordered now", "wish", v.ID, "missing", v.Missing, "reasons", v.Reasons)
		}
	}
}

// tellNode tells of a node that is to go, or is kept from it, when that is something else than before.
func (a *Autoscaler) tellNode(g *known, d *scaling.NodeDecision) {
	uid := string(d.Subject.Object.UID)
	word := string(d.Verdict)
	for _, r := range d.Reasons {
		word += " " + r.Rule
	}
	a.mu.Lock()
	before := g.memory.told[uid]
	if g.memory.told == nil {
		g.memory.told = map[string]string{}
	}
	g.memory.told[uid] = word
	a.mu.Unlock()
	if before == word {
		return
	}
	reason := ""
	switch d.Verdict {
	case nodegroup.Leaves:
		reason = eventLeaves
	case nodegroup.Refused:
		reason = eventStays
	default:
		return
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: d.Node, UID: d.Subject.Object.UID},
	}
	a.emit(node, corev1.EventTypeNormal, reason, d.Reasons[0].Rule, nodegroup.Sentence(d.Reasons))
	a.o.Log.Info("an underused node", "group", d.Group, "node", d.Node, "verdict", d.Verdict, "reasons", d.Reasons)
	if d.Verdict == nodegroup.Leaves {
		a.onGroup(g, corev1.EventTypeNormal, reason, "node %s: %s", d.Node, nodegroup.Sentence(d.Reasons))
	}
}
