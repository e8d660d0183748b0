// Package drain moves the pods off one node: safely when there is time, in time when there is not.
//
// It follows the node's pods with one list and one watch, decides once for each pod what is to become of it (rule.go),
// evicts them in waves (plan.go), waits for disruption budgets per budget and not per pod (budget.go), and keeps a
// receipt of what each pod asked for and got (receipt.go). It knows no cloud and decides nothing about nodes: who
// wants a node drained, and what happens to the machine, is its callers' business.
//
// It is our own and not k8s.io/kubectl/pkg/drain, because that package, from v0.35 on, retries a denied eviction
// without pause unless a new field is set, and on a retry takes a pod of the same name on another node for the one it
// was evicting (https://github.com/kubernetes/kubernetes/issues/138229).
package drain

import (
	"context"
	"log/slog"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// API is what the engine asks of the API server. *kubeapi.Client is one. It must be safe for concurrent use and honour
// the context it is given.
type API interface {
	// FollowPodsOn does not return before ctx ends. What it first tells may be old, as long as all that has changed since
	// follows.
	FollowPodsOn(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error
	// ListPodsOn tells what is on the node at this moment. It is asked once, at the drain's end.
	ListPodsOn(ctx context.Context, node string) ([]kubeapi.Pod, error)
	Evict(ctx context.Context, r kubeapi.Removal) error
	DeletePod(ctx context.Context, r kubeapi.Removal) error
	// SetDisruptionTarget is called before a deletion past a budget, which does not depend on it.
	SetDisruptionTarget(ctx context.Context, c kubeapi.Disruption) error
	// FollowBudgets does not return before ctx ends. It is called once for each namespace with pods to evict, and again
	// where a right to it is missing.
	FollowBudgets(ctx context.Context, namespace string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error
}

// Terms say how much time a drain has. They may change while it runs (a Freeze becomes a Preempt, a reboot is moved).
type Terms struct {
	// Deadline is when the machine goes, whatever is on it. Zero is a voluntary drain: the node stays if its pods
	// cannot leave. With a deadline each pod's grace is capped to what is left, and when waiting for a disruption
	// budget would cost a pod its time to stop, the pod is deleted past the budget, and the receipt says so (I2).
	Deadline time.Time
	// Margin is kept free before the deadline for the kubelet to report and the API server to hear of it.
	Margin time.Duration
	// GiveUp is when a voluntary drain stops trying; zero is never. It caps no pod's grace.
	GiveUp time.Time
}

// Forced reports that the machine goes anyway.
func (t Terms) Forced() bool { return !t.Deadline.IsZero() }

// end is when the last pod has to be gone.
func (t Terms) end() time.Time { return t.Deadline.Add(-t.Margin) }

// Options say what to drain and how. The zero value of every field but Node is usable.
type Options struct {
	// Node is the name of the node.
	Node string
	// Policy says what each kind of pod gets; nil is [podrules.Voluntary] while the terms have no deadline, [podrules.Forced]
	// while they have one.
	Policy *podrules.Policy
	// PolicyOf, if set, takes the place of Policy, pod by pod.
	PolicyOf func(kubeapi.Pod) podrules.Policy
	// Mark, if set, adds to the facts about a pod what its labels mean to the caller.
	Mark  func(*podrules.Facts, *kubeapi.Pod)
	Terms Terms
	// GraceSeconds replaces every pod's own grace, as kubectl's --grace-period; negative or nil keeps it.
	GraceSeconds *int64
	// WaveBoundaries are pod priorities, ascending: pods below the first leave first, and so on, as in the kubelet's
	// graceful shutdown (KEP-2712). Nil is DefaultWaves; empty is one wave.
	WaveBoundaries []int32
	// DisableEviction deletes from the start, past all budgets: the user's own option (I2), and reported.
	DisableEviction bool
	// Select, if set, leaves alone every pod for which it is false.
	Select func(kubeapi.Pod) bool
	// SkipTerminatingFor leaves alone terminating pods whose grace ran out longer ago than this, as kubectl's
	// --skip-wait-for-delete-timeout; 0 waits for them all.
	SkipTerminatingFor time.Duration
	// MaxInFlight bounds concurrent evictions, and concurrent deletions; 0 is 32. There are fewer while the API server is
	// slow to answer.
	MaxInFlight int
	// OnProgress, if set, is called from the engine's goroutine after every change. It must not block.
	OnProgress func(Progress)
	// OnDrained, if set, keeps the drain from ending when the node is drained. It is called instead, with the receipt of
	// what happened since the beginning or since the last call, and the drain stands by for as long as ctx lasts: a
	// scheduler that has not heard of the cordon, or somebody who names the node, may bring another pod. OnArrival is
	// called when one has come that has to leave, and OnDrained again when it is gone. Both are called from the engine's
	// goroutine, and may block until ctx ends.
	OnDrained func(Receipt)
	OnArrival func()
	// WasDrained says that the node was drained by an earlier drain, so that OnArrival is called for a pod that is found on
	// it at the beginning, too.
	WasDrained bool
	// Volumes, if set, makes the drain wait afterwards until the drained pods' volumes are detached.
	Volumes VolumeAPI
	Logger  *slog.Logger
}

// DefaultWaves evicts ordinary pods first and the cluster's critical ones after them: 2000000000 is the priority of
// system-cluster-critical (https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/).
var DefaultWaves = []int32{2_000_000_000}

// Run drains until nothing is left to do, the terms are over or ctx ends, and returns the receipt of what it did.
// The error is nil only when the node is drained; it is a *Refused, *Unfinished, or wraps ctx's error otherwise. With
// OnDrained it does not return when the node is drained.
func Run(ctx context.Context, api API, o Options) (Receipt, error) {
	return New(api, o).Run(ctx)
}

// New prepares a drain whose terms may be changed while it runs.
func New(api API, o Options) *Drain {
	if o.WaveBoundaries == nil {
		o.WaveBoundaries = DefaultWaves
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 32
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Drain{
		api: api, o: o, terms: o.Terms, policy: policyFor(o, o.Terms),
		pods:    map[string]*podState{},
		budgets: newBudgets(),
		lanes:   map[string]*lane{},

		evictions:  newRequests(true),
		deletions:  newRequests(false),
		lastSent:   map[string]time.Time{},
		detachment: &detachment{},
		conditions: conditionWrites{slots: make(chan struct{}, o.MaxInFlight)},
		inbox:      newInbox(),
		window:     newWindow(o.MaxInFlight),
		relied:     o.WasDrained,
	}
}

// policyFor is the caller's policy, or the one that suits the terms.
func policyFor(o Options, t Terms) podrules.Policy {
	switch {
	case o.Policy != nil:
		return *o.Policy
	case t.Forced():
		return podrules.Forced()
	}
	return podrules.Voluntary()
}
