// Package drain removes the pods from one node: by eviction while there is time, by deletion before a deadline.
//
// It follows the node's pods with one list and one watch. It decides for each pod what to do with it (engine.go), and
// evicts pods in waves (timing.go). It backs off per PodDisruptionBudget and not per pod (pdb.go). Its report says what
// each pod requested and got (report.go). It knows no cloud. Its callers decide which nodes are drained and what
// happens to the instance.
//
// It does not use k8s.io/kubectl/pkg/drain. From v0.35 on, that package retries a denied eviction without pause unless
// a new field is set. On a retry it also mistakes a pod of the same name on another node for the evicted one
// (https://github.com/kubernetes/kubernetes/issues/138229).
package drain

import (
	"context"
	"errors"
	"log/slog"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
)

// API lists the requests of a drain to the API server. *kubeapi.Client implements it. An implementation must be safe
// for concurrent use, and must end a request when its context ends.
type API interface {
	// WatchPodsOnNode returns only when ctx ends. Its first list may be old, as long as all later changes follow.
	WatchPodsOnNode(ctx context.Context, node string, h kubeapi.Handler[kubeapi.Pod]) error
	// ListPodsOnNode returns the current pods of the node. The drain calls it once, at its end.
	ListPodsOnNode(ctx context.Context, node string) ([]kubeapi.Pod, error)
	EvictPod(ctx context.Context, r kubeapi.PodRemoval) error
	DeletePod(ctx context.Context, r kubeapi.PodRemoval) error
	// SetDisruptionTarget is called before a forced deletion. The deletion does not depend on its success.
	SetDisruptionTarget(ctx context.Context, c kubeapi.PodDisruption) error
	// WatchPodDisruptionBudgets returns only when ctx ends. It is called once for each namespace with pods to evict, and again
	// after the permission was missing.
	WatchPodDisruptionBudgets(ctx context.Context, namespace string, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error
	// GetPodGroup is called for each PodGroup with pods to evict. Without its answer the PodGroup counts as
	// disruptionMode all.
	GetPodGroup(ctx context.Context, namespace, name string) (*kubeapi.PodGroup, error)
}

// Surger decides which pods get a successor before they leave, and carries that out. *surge.Surger implements it. Its
// methods must be safe for concurrent use.
type Surger interface {
	// Decide reads the pod's owner and says whether the pod gets a successor first. It changes nothing. pdbs are the
	// PodDisruptionBudgets that select the pod, as far as they were read. deniedSince is since when they have denied the
	// eviction without a break; zero means that they have not. until is as in surge.Request. An error means that the owner
	// could not be read. The drain then continues without surging, and reports the error.
	Decide(ctx context.Context, pod kubeapi.Pod, pdbs []*kubeapi.PodDisruptionBudget, deniedSince, until time.Time) (surge.Decision, error)
	// Run carries out one surge. It returns when the pod is terminating or gone, when the surge failed, or when ctx ends.
	// In each case it has restored the owner's size before, for at most 15 s after the end of ctx.
	Run(ctx context.Context, r surge.Request) surge.Result
}

// TimeLimits sets the time limits of a drain. A caller may change them while the drain runs, for example when a notice
// changes from Freeze to Preempt, or a reboot is moved.
type TimeLimits struct {
	// Deadline is when the instance stops, even with pods on it. Zero means a voluntary drain: the node stays if its
	// pods cannot be removed. With a deadline, each pod's grace is capped to the time left. If waiting for a PDB would
	// cost a pod its time to stop, the pod is deleted, and the report records it (I2).
	Deadline time.Time
	// AnnouncedAt is when the notice with this deadline was first read. If the drain has got its deadline before,
	// the time until forced deletions is computed anew: blocked pods wait again for their PDBs. Zero is at the start.
	AnnouncedAt time.Time
	// Margin is kept free before the deadline, so that the kubelet can report and the API server can receive it.
	Margin time.Duration
	// TimeoutAt is when a voluntary drain stops trying; zero means never. It does not cap any grace. A drain that starts later
	// evicts no pod, but it still finds out whether the node is empty.
	TimeoutAt time.Time
}

// HasDeadline reports whether there is a deadline. The instance stops at the deadline in any case.
func (t TimeLimits) HasDeadline() bool { return !t.Deadline.IsZero() }

// lastRemovalTime returns when the last pod must be gone: the margin before the deadline.
func (t TimeLimits) lastRemovalTime() time.Time { return t.Deadline.Add(-t.Margin) }

// Options configures a drain. Only Node is required.
type Options struct {
	Node string
	// Policy decides what happens to each kind of pod. Nil means [podrules.ForcedPolicy] if TimeLimits has a deadline,
	// else [podrules.VoluntaryPolicy].
	Policy *podrules.Policy
	// PolicyForPod, if set, replaces Policy and returns the policy of each pod.
	PolicyForPod func(kubeapi.Pod) podrules.Policy
	// AddFacts, if set, adds to a pod's facts what its labels mean to the caller.
	AddFacts   func(*podrules.Facts, *kubeapi.Pod)
	TimeLimits TimeLimits
	// GraceSeconds replaces every pod's own grace, like kubectl's --grace-period. Nil or a negative value keeps it.
	GraceSeconds *int64
	// WaveBoundaries are pod priorities in ascending order. Pods below the first boundary are evicted first, then those
	// below the second, as in the kubelet's graceful shutdown (KEP-2712). Nil means DefaultWaveBoundaries; an empty slice means
	// one wave.
	WaveBoundaries []int32
	// DisableEviction deletes pods from the start and bypasses all PDBs. Only the user sets it (I2), and the drain
	// reports it.
	DisableEviction bool
	// ShouldDrainPod, if set, returns whether the drain handles a pod. The drain skips the others.
	ShouldDrainPod func(kubeapi.Pod) bool
	// SkipTerminatingAfter skips pods that have been terminating for longer than this after the end of their grace, like
	// kubectl's --skip-wait-for-delete-timeout. 0 waits for all of them.
	SkipTerminatingAfter time.Duration
	// MaxInFlight limits concurrent evictions, and separately concurrent deletions. 0 is defaultMaxInFlight. The drain uses fewer
	// while the API server is slow.
	MaxInFlight int
	// OnProgress, if set, is called from the engine's goroutine after every change. It must not block.
	OnProgress func(Progress)
	// OnDrained, if set, is called with the drain report when the node is drained, and the drain continues until ctx
	// ends. The report covers the time since the start or the last call. Another pod may still arrive: from a scheduler
	// that has not seen the cordon yet, or with spec.nodeName set. OnPodArrived is called when a pod arrives that must be
	// removed, and OnDrained again when it is gone. Both are called from the engine's goroutine, and may block until
	// ctx ends.
	OnDrained    func(Report)
	OnPodArrived func()
	// WasDrained says that an earlier drain already drained the node. OnPodArrived is then also called for a pod that is
	// on the node at the start.
	WasDrained bool
	// Surger, if set, starts successors of pods that are the last ready pod of their owner, or that their PDB does not allow to
	// evict, never or for a while.
	Surger Surger
	// Volumes, if set, makes the drain wait until the volumes of the drained pods are detached.
	Volumes VolumeAPI
	// EvictionRequests, if set, makes the drain ask the responders of a pod (spec.evictionResponders) before it evicts the
	// pod. DisableEviction has priority.
	EvictionRequests EvictionRequestAPI
	// Client names who drains, such as agent. Several clients may drain one node at once, and each has its own EvictionRequests.
	// Empty is drain.
	Client string
	// TakesOver says that an earlier drain of the node may have left EvictionRequests. The drain then reads them at its
	// start, and withdraws those for pods that it does not evict.
	TakesOver bool
	Logger    *slog.Logger
}

// The causes of the end of a drain's context. Without one of them, the drain withdraws its EvictionRequests, and waits up to
// maxRestoreWait for its surges to restore sizes.
var (
	// ErrContinued means that another drain of the node follows at once. The drain leaves its EvictionRequests to it, and waits
	// at most maxContinuedWait for its surges.
	ErrContinued = errors.New("another drain of the node follows")
	// ErrContinuedLater means that this process ends, and the next one continues the drain. The drain leaves its
	// EvictionRequests to it.
	ErrContinuedLater = errors.New("the next process continues the drain")
	// ErrNotNeeded means that the caller has other work. The drain waits at most maxContinuedWait for its surges, which restore
	// the sizes in the background, see [Drain.WaitForSurges].
	ErrNotNeeded = errors.New("the drain is not needed any more")
)

// DefaultWaveBoundaries evicts ordinary pods first and critical ones after them. 2000000000 is the priority of
// system-cluster-critical
// (https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/).
var DefaultWaveBoundaries = []int32{2_000_000_000}

// Run drains the node and returns the drain report. It returns when the node is empty, a time limit passes or ctx ends.
// The error is nil only if the node is drained. Otherwise it is a *RefusedError, an *UnfinishedError, or wraps the
// error of ctx. If Options.OnDrained is set, Run continues after the node is drained, and drains it again when a pod
// arrives.
func Run(ctx context.Context, api API, o Options) (Report, error) {
	return New(api, o).Run(ctx)
}

// New returns a drain that is not started yet. SetTimeLimits changes its time limits, also while it runs.
func New(api API, o Options) *Drain {
	if o.WaveBoundaries == nil {
		o.WaveBoundaries = DefaultWaveBoundaries
	}
	if o.Client == "" {
		o.Client = defaultClient
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = defaultMaxInFlight
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Drain{
		api: api, options: o, terms: o.TimeLimits, policy: policyFor(o, o.TimeLimits),
		pods:      map[string]*podState{},
		pdbs:      newPDBState(),
		pdbQueues: map[string]*pdbQueue{},
		groups:    map[groupKey]*groupState{},

		evictions:       newRequestTracker(true),
		deletions:       newRequestTracker(false),
		detachWait:      &detachWait{},
		conditions:      conditionWrites{semaphore: make(chan struct{}, o.maxOtherInFlight())},
		inbox:           newInbox(),
		limit:           newConcurrencyLimit(o.MaxInFlight),
		surgingOwners:   map[string]bool{},
		reportedDrained: o.WasDrained,
	}
}

// defaultClient is the default of Options.Client.
const defaultClient = "drain"

// policyFor returns the pod policy of the options. Without one it returns the default policy for the time limits.
func policyFor(o Options, t TimeLimits) podrules.Policy {
	switch {
	case o.Policy != nil:
		return *o.Policy
	case t.HasDeadline():
		return podrules.ForcedPolicy()
	}
	return podrules.VoluntaryPolicy()
}
