package placement

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Options says which nodes may go, and under which limits.
type Options struct {
	// Now is the time against which durations in annotations are held.
	Now time.Time
	// LocalStorage lets pods with emptyDir or hostPath volumes be moved, at the loss of their content.
	LocalStorage bool
	// Unmanaged lets pods without a controller be evicted; nothing creates them anew.
	Unmanaged bool
	// Placeholder tells by a pod's labels that it but holds room, and that nothing of its own keeps its node: it is moved
	// like any other, whatever it is annotated with. Nil is none.
	Placeholder func(labels.Set) bool
	// Protected names nodes that must stay, each with the reason in words, such as "machine is not evictable".
	Protected map[string]string
	// Lifted names nodes each with the key of an annotation that does not hold it: who asks is about to take it off.
	Lifted map[string]string
	// Reserved names nodes that must stay because a pending pod counts on their room.
	Reserved map[string]PodKey
	// Groups are the sets of nodes with limits on their size. A node in no group has none.
	Groups []Group
}

// Group is a set of nodes whose size is limited.
type Group struct {
	Name  string
	Nodes []string
	// MinSize is how many nodes must remain, not counting those that are being removed already.
	MinSize int
	// MinPerZone is how many nodes must remain in each zone that the group has nodes in.
	MinPerZone int
	// MaxUnavailable is how many nodes may be missing at one time, counting those that are being removed, cordoned or
	// not ready already. Nil sets no limit.
	MaxUnavailable *int
}

// Refusal is why a node cannot go.
type Refusal struct {
	// Rule names the rule: "being-removed", "protected", "pod-without-controller", "disruption-budget", "no-room" …
	Rule string `json:"rule"`
	// Pod is the pod that the rule concerns, as namespace/name; empty when it is the node itself.
	Pod string `json:"pod,omitempty"`
	// Text says what is in the way.
	Text string `json:"text"`
	// Nodes counts, for a pod that fits nowhere, the other nodes by their reasons.
	Nodes Tallies `json:"nodes,omitempty"`
	// Remedy says what would change the answer; empty when nothing simple would.
	Remedy string `json:"remedy,omitempty"`
}

// String is the refusal in one line.
func (r Refusal) String() string {
	text := r.Text
	if r.Pod != "" {
		text = "pod " + r.Pod + " " + text
	}
	if len(r.Nodes) > 0 {
		text += ": " + r.Nodes.String()
	}
	return text
}

// podFate is what becomes of a pod when its node goes.
type podFate uint8

const (
	fateMoves   podFate = iota // is evicted, and created anew elsewhere
	fateStays                  // goes with the node; nothing of it has to run elsewhere
	fateBlocked                // holds the node
)

// podRule decides the fate of pods it knows something about; the first rule that does decides.
type podRule struct {
	name   string
	decide func(p *pod, o *Options) (fate podFate, decided bool)
	text   func(p *pod) string
	remedy string
}

// podRules in the order in which they are asked. Each is in the file named after it.
var podRules = [...]podRule{
	ruleMirrorPod, ruleDaemonSetPod, ruleTerminatingPod, ruleHeldPod, ruleLocalStorage, ruleUnmanagedPod,
}

// fate returns what becomes of a pod, and the rule that says so; nil when no rule objects to moving it.
func (o *Options) fate(p *pod) (podFate, *podRule) {
	for i := range podRules {
		if fate, decided := podRules[i].decide(p, o); decided {
			if fate == fateBlocked && o.Placeholder != nil && o.Placeholder(p.class.labels.labels) {
				continue
			}
			return fate, &podRules[i]
		}
	}
	return fateMoves, nil
}

// nodeRule refuses nodes by what the node itself says.
type nodeRule struct {
	name   string
	object func(s *Snapshot, n *node, o *Options) string // what is in the way; empty for nothing
	remedy func(n *node, o *Options) string              // what would help; nil when nothing simple would
}

// judge applies the rule to a node; nil when it does not object.
func (r *nodeRule) judge(s *Snapshot, n *node, o *Options) *Refusal {
	text := r.object(s, n, o)
	if text == "" {
		return nil
	}
	refusal := Refusal{Rule: r.name, Text: text}
	if r.remedy != nil {
		refusal.Remedy = r.remedy(n, o)
	}
	return &refusal
}

// nodeRules in the order in which they are asked. Each is in the file named after it.
var nodeRules = [...]nodeRule{ruleBeingRemoved, ruleProtected, ruleHeldNode, ruleControlPlane}

// nodeRefusals applies every rule on the node itself.
func (s *Snapshot) nodeRefusals(n *node, o *Options) []Refusal {
	var list []Refusal
	for i := range nodeRules {
		if r := nodeRules[i].judge(s, n, o); r != nil {
			list = append(list, *r)
		}
	}
	return list
}

// podRefusal puts a blocking rule in words.
func podRefusal(p *pod, r *podRule) Refusal {
	return Refusal{Rule: r.name, Pod: p.key.String(), Text: r.text(p), Remedy: r.remedy}
}

// target reports whether pods may be sent to a node: nobody is removing it, it is no part of the control plane, and it
// does not say of itself that it is not ready.
func (s *Snapshot) target(n *node) bool {
	if !n.present || n.out || removedBy(n) != "" || s.controlPlane(n) {
		return false
	}
	return len(n.object.Status.Conditions) == 0 || n.ready()
}

// available reports whether a node counts as serving its group.
func available(n *node) bool {
	return removedBy(n) == "" && !n.object.Spec.Unschedulable && (len(n.object.Status.Conditions) == 0 || n.ready())
}

func taintOf(n *node, key string) *corev1.Taint {
	for i := range n.object.Spec.Taints {
		if n.object.Spec.Taints[i].Key == key {
			return &n.object.Spec.Taints[i]
		}
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
