package drain

import (
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/protection"
)

// Rule is the name of the rule that decided about a pod: the first that matches, in the order of rules, unless
// [Policy.Judge] finds a stricter one.
type Rule string

// The rules, in the order in which they are tried.
const (
	// Mirror: a static pod's mirror, which only the kubelet's manifest can remove.
	Mirror Rule = "mirror"
	// Excluded: the caller's selector does not want it touched.
	Excluded Rule = "excluded"
	// DaemonSet: its controller ignores the cordon and would bring it right back.
	DaemonSet Rule = "daemonset"
	// Terminating: somebody deleted it already; it is waited for.
	Terminating Rule = "terminating"
	// Finished: Succeeded or Failed; it holds nothing and no budget counts it.
	Finished Rule = "finished"
	// Protected: an annotation asks not to be evicted.
	Protected Rule = "protected"
	// Unmanaged: no controller will replace it.
	Unmanaged Rule = "unmanaged"
	// LocalStorage: it has an emptyDir on the node's disk, whose content goes with the pod.
	LocalStorage Rule = "local-storage"
	// Ordinary: none of the above.
	Ordinary Rule = "ordinary"
)

const mirrorAnnotation = "kubernetes.io/config.mirror"

// Verdict is what the rules say of a pod, and why, in words that can be printed.
type Verdict struct {
	Rule   Rule   `json:"rule"`
	Detail string `json:"detail,omitempty"`
}

type rule struct {
	name  Rule
	match func(p *kubeapi.Pod, now time.Time) (string, bool)
	// waived says that whoever the pod is of has given up what the rule is about; nil where that cannot be said.
	waived func(p *kubeapi.Pod) bool
}

// holding are the rules about what is lost with a pod, of which several may match.
var holding = []rule{
	{Protected, protected, nil},
	{Unmanaged, unmanaged, safeToEvict},
	{LocalStorage, localStorage, safeToLose},
}

var rules = append([]rule{
	{Mirror, mirror, nil},
	{DaemonSet, daemonSet, nil},
	{Terminating, terminating, nil},
	{Finished, finished, nil},
}, holding...)

// Classify finds the rule for a pod. It reads nothing but the pod and the time, which matters to a protection that
// expires.
func Classify(p *kubeapi.Pod, now time.Time) Verdict {
	for _, r := range rules {
		if detail, ok := r.match(p, now); ok {
			return Verdict{r.name, detail}
		}
	}
	return Verdict{Rule: Ordinary}
}

func mirror(p *kubeapi.Pod, _ time.Time) (string, bool) {
	_, ok := p.Annotations[mirrorAnnotation]
	return "static pod of the kubelet", ok
}

func finished(p *kubeapi.Pod, _ time.Time) (string, bool) {
	return "phase " + p.Status.Phase, p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

func terminating(p *kubeapi.Pod, _ time.Time) (string, bool) {
	return "deleted already", p.DeletionTimestamp != nil
}

func daemonSet(p *kubeapi.Pod, _ time.Time) (string, bool) {
	c := controller(p)
	if c == nil || c.Kind != "DaemonSet" {
		return "", false
	}
	return "DaemonSet " + c.Name, true
}

func protected(p *kubeapi.Pod, now time.Time) (string, bool) {
	h, held := protection.Now(protection.OfPod(p.Annotations, p.CreationTimestamp), now)
	return h.Key + `: "` + h.Value + `"`, held
}

// protectionEnds is when the next of the pod's protections expires; zero is never.
func protectionEnds(p *kubeapi.Pod, now time.Time) time.Time {
	var next time.Time
	for _, h := range protection.OfPod(p.Annotations, p.CreationTimestamp) {
		if now.Before(h.Until) {
			next = sooner(next, h.Until)
		}
	}
	return next
}

func unmanaged(p *kubeapi.Pod, _ time.Time) (string, bool) {
	return "no controller will replace it", controller(p) == nil
}

// localStorage names what is lost with the pod on a node's disk. What is in memory is no data that somebody means to keep:
// cluster-autoscaler passes it over as well, and so does placement.
func localStorage(p *kubeapi.Pod, _ time.Time) (string, bool) {
	names := onDisk(p)
	return "emptyDir " + strings.Join(names, ", "), len(names) > 0
}

func onDisk(p *kubeapi.Pod) []string {
	const memory = "Memory" // corev1.StorageMediumMemory
	var names []string
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.Medium != memory {
			names = append(names, v.Name)
		}
	}
	return names
}

func safeToEvict(p *kubeapi.Pod) bool { return protection.MayGo(p.Annotations) }

// safeToLose says that the pod is, or each of its volumes.
func safeToLose(p *kubeapi.Pod) bool {
	worth := func(volume string) bool { return !protection.MayLose(p.Annotations, volume) }
	return safeToEvict(p) || !slices.ContainsFunc(onDisk(p), worth)
}

// controller is the owner that would replace the pod, or nil. A reference without the controller flag is none.
func controller(p *kubeapi.Pod) *kubeapi.OwnerReference {
	for i, r := range p.OwnerReferences {
		if r.Controller != nil && *r.Controller {
			return &p.OwnerReferences[i]
		}
	}
	return nil
}

// Action is what is done about a pod.
type Action string

// The actions.
const (
	// Leave: not touched and not waited for.
	Leave Action = "leave"
	// Evict: asked to leave, and waited for.
	Evict Action = "evict"
	// Await: not asked, but waited for.
	Await Action = "await"
	// Refuse: the drain does not take place, or stops, for its sake.
	Refuse Action = "refuse"
)

// Policy says what the pods under each rule get. A rule that is missing gets Evict.
type Policy map[Rule]Action

// VoluntaryPolicy is for a node that may as well stay: what would lose work refuses the drain.
func VoluntaryPolicy() Policy {
	return Policy{
		Mirror: Leave, Excluded: Leave, DaemonSet: Leave, Finished: Evict, Terminating: Await,
		Protected: Refuse, Unmanaged: Refuse, LocalStorage: Refuse, Ordinary: Evict,
	}
}

// NoticePolicy is for a machine that goes anyway: leaving a pod behind would only lose it without warning.
func NoticePolicy() Policy {
	p := VoluntaryPolicy()
	p[Protected], p[Unmanaged], p[LocalStorage] = Evict, Evict, Evict
	return p
}

// Judge says what a pod gets, by which rule: the first that matches, unless a later one of those that hold pods is stricter.
// Leave to lose one thing is no leave to lose another.
func (p Policy) Judge(pod *kubeapi.Pod, now time.Time) (Verdict, Action) {
	v := Classify(pod, now)
	first := slices.IndexFunc(holding, func(r rule) bool { return r.name == v.Rule })
	if first < 0 {
		return v, p.Of(v.Rule)
	}
	var action Action
	for _, r := range holding[first:] {
		detail, ok := r.match(pod, now)
		if !ok {
			continue
		}
		if a := p.about(r, pod); action == "" || strictness(a) > strictness(action) {
			v, action = Verdict{r.name, detail}, a
		}
	}
	return v, action
}

// about is the action for a rule that matches a pod. Who has said that the pod may go is not refused; what survives where
// it is stays there all the same.
func (p Policy) about(r rule, pod *kubeapi.Pod) Action {
	a := p.Of(r.name)
	if a == Refuse && r.waived != nil && r.waived(pod) {
		return Evict
	}
	return a
}

func strictness(a Action) int { return slices.Index([]Action{Evict, Leave, Refuse}, a) }

// Of returns the action for a rule.
func (p Policy) Of(r Rule) Action {
	if a, ok := p[r]; ok {
		return a
	}
	return Evict
}
