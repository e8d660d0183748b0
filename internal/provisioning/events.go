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

// eventReason is the reason of an Event about machines that come or are used little.
type eventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// eventOrdered is Normal, on Pod and NodeGroup: a machine is ordered for pods that have no room.
	eventOrdered eventReason = "LaunchRequested"
	// eventHelpless is Warning, on Pod: no machine that may be ordered now helps the pod; the message says why, group by group,
	// and it is written again every 30 minutes while that is so.
	eventHelpless eventReason = "NoTemplateFits"
	// eventBackedOff is Warning, on NodeGroup: the cloud failed to give machines of a kind, which is left alone for a while.
	eventBackedOff eventReason = "TemplateBackedOff"
	// eventGivenUp is Warning, on NodeGroup: a machine has had no Node for too long, and is deleted.
	eventGivenUp eventReason = "InstanceJoinTimeout"
	// eventLeaves is Normal, on Node and NodeGroup: the node is used little, its pods fit elsewhere, and its retirement is asked for.
	eventLeaves eventReason = "UnderutilizedNodeRetiring"
	// eventStays is Normal, on Node: the node is used little, and something keeps it.
	eventStays eventReason = "UnderutilizedNodeKept"
)

const (
	action = "Scale"

	// The API server's limits of an Event, in bytes.
	maxNote   = 1024
	maxAction = 128
)

// tellAgain is how long after the last time a pod that nothing helps is told so again: the API server keeps an Event for an hour
// unless it is told another time, and such a pod may wait for days.
const tellAgain = 30 * time.Minute

// said is what a pod was told, and when.
type said struct {
	word string
	at   time.Time
}

// tell tells each pod what becomes of it, when that is something else than before. That nothing helps it is told when
// every group is known, or has had its time to be, and again every now and then while it stays so.
func (a *Controller) tell(d *plan.Decision, known bool, waiting map[placement.PodKey]waitingPod) {
	now, told := time.Now(), make(map[string]said, len(d.Pods))
	for i := range d.Pods {
		v := &d.Pods[i]
		p := waiting[v.Pod]
		word := string(v.Outcome)
		for _, r := range v.Reasons {
			word += " " + r.Group + "/" + r.Template + "=" + r.Rule
		}
		before := a.told[string(p.uid)]
		if before.word == word && (v.Outcome != plan.Helpless || now.Before(before.at.Add(tellAgain))) {
			told[string(p.uid)] = before
			continue
		}
		if v.Outcome == plan.Helpless && !known {
			continue // what a group can do is not known yet
		}
		told[string(p.uid)] = said{word, now}
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: p.uid},
		}
		switch v.Outcome {
		case plan.Ordered:
			a.emit(pod, corev1.EventTypeNormal, eventOrdered, action, sentence(v.Reasons))
		case plan.Helpless:
			a.emit(pod, corev1.EventTypeWarning, eventHelpless, rules(v.Reasons), sentence(v.Reasons))
		}
	}
	a.told = told
}

func sentence(reasons []plan.Reason) string {
	all := make([]string, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// rules are the words of some reasons, each once. As the action of an Event they keep it apart from one that gives other
// reasons: of Events that differ in their notes alone the API server keeps the first.
func rules(reasons []plan.Reason) string {
	var all []string
	for _, r := range reasons {
		if !slices.Contains(all, r.Rule) {
			all = append(all, r.Rule)
		}
	}
	return observe.Clip(strings.Join(all, "-"), maxAction)
}

func (a *Controller) emit(about runtime.Object, kind string, reason eventReason, action, note string) {
	a.o.Events.Eventf(about, nil, kind, string(reason), action, "%s", observe.Clip(note, maxNote))
}

// onGroup makes an Event on a NodeGroup; one of a file has no object. What it is about, such as a kind or a machine, is its
// action, which keeps it apart from that of another one, as with rules.
func (a *Controller) onGroup(g *known, kind string, reason eventReason, subject, format string, args ...any) {
	if g.Group.UID == "" {
		return
	}
	a.emit(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.name(), UID: g.Group.UID},
	}, kind, reason, observe.Clip(cmp.Or(subject, action), maxAction), fmt.Sprintf(format, args...))
}

func (a *Controller) orderPlaced(g *known, o plan.Order) {
	a.onGroup(g, corev1.EventTypeNormal, eventOrdered, o.Template, "%d of %s: %s", o.Count, o.Template, sentence(o.Reasons))
}

func (a *Controller) backedOff(g *known, b v1alpha1.BackOff) {
	a.o.Log.Warn("a kind of machine is left alone", "group", g.name(), "template", b.Template, "until", b.Until, "reason", b.Reason,
		"message", b.Message)
	a.onGroup(g, corev1.EventTypeWarning, eventBackedOff, b.Template, "%s is left alone until %s: %s: %s", b.Template,
		b.Until.UTC().Format("15:04:05"), b.Reason, b.Message)
}

func (a *Controller) machineGivenUp(g *known, dead launch.FailedInstance) {
	a.onGroup(g, corev1.EventTypeWarning, eventGivenUp, cmp.Or(dead.Instance.Name, dead.Instance.ProviderID),
		"machine %s (%s) has had no Node and is deleted: %s: %s", dead.Instance.Name, dead.Instance.ProviderID, dead.Reason, dead.Message)
}

// tellNode tells of a node that is to go, or is kept from it, when that is something else than before.
func (a *Controller) tellNode(g *known, d *plan.NodeDecision) {
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
	var reason eventReason
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
		a.onGroup(g, corev1.EventTypeNormal, reason, d.Node, "node %s: %s", d.Node, nodegroup.Sentence(d.Reasons))
	}
}
