package surge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/sharedread"
)

const (
	// FieldManager is stored in the managedFields of each object that Slipway resizes. It shows later whether another client
	// has changed the size.
	FieldManager = "slipway-surge"
	// DeletionCostAnnotation makes the ReplicaSet controller delete a pod first
	// (https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost).
	DeletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	// lowestCost is the least value of an int32.
	lowestCost = "-2147483648"

	// requestTimeout is the timeout of each request. It is short, because a record is valid for some seconds only.
	requestTimeout = 4 * time.Second
	// restoreTimeout limits the restoration after the end of a surge.
	restoreTimeout = 15 * time.Second

	defaultSchedulingWait = 10 * time.Second
	// defaultMaxConcurrent lets all pods of a node surge at once. A node has 110 pods by default.
	defaultMaxConcurrent = 128
	// maxLearned limits of how many owners start-up times and reversals are kept.
	maxLearned = 4096
)

// API lists the requests of this package to the API server. *kubeapi.Client implements it. An implementation must be
// safe for concurrent use.
type API interface {
	GetWorkload(ctx context.Context, r kubeapi.ObjectRef) (*kubeapi.Workload, error)
	GetHorizontalPodAutoscaler(ctx context.Context, r kubeapi.ObjectRef) (*kubeapi.HorizontalPodAutoscaler, error)
	ListHorizontalPodAutoscalers(ctx context.Context, namespace string) ([]kubeapi.HorizontalPodAutoscaler, error)
	GetScaledObject(ctx context.Context, r kubeapi.ObjectRef) (*kubeapi.ScaledObject, error)
	SetReplicas(ctx context.Context, s kubeapi.SizeChange) error
	SetMinSize(ctx context.Context, s kubeapi.SizeChange) error

	GetNode(ctx context.Context, name string) (*kubeapi.Node, error)
	GetPod(ctx context.Context, namespace, name string) (*kubeapi.Pod, error)
	ListPods(ctx context.Context, namespace, labelSelector string) ([]kubeapi.Pod, error)
	WatchPods(ctx context.Context, namespace, labelSelector string, h kubeapi.Handler[kubeapi.Pod]) error
	SetPodAnnotation(ctx context.Context, a kubeapi.AnnotationChange) error
	ListEndpointSlices(ctx context.Context, namespace string) ([]kubeapi.EndpointSlice, error)
	GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*kubeapi.PersistentVolumeClaim, error)

	GetLease(ctx context.Context, namespace, name string) (*kubeapi.Lease, error)
	ListCachedLeases(ctx context.Context, namespace, labelSelector string) ([]kubeapi.Lease, error)
	CreateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
	UpdateLease(ctx context.Context, l kubeapi.Lease) (*kubeapi.Lease, error)
	DeleteLease(ctx context.Context, l kubeapi.Lease) error
}

// Metrics counts surges. Its methods must be safe for concurrent use.
type Metrics interface {
	// SurgeStarted is called before the size is raised.
	SurgeStarted()
	// SurgeSucceeded is called when the pod has left after its successor was ready. gained is how long the owner would
	// have been without the successor.
	SurgeSucceeded(gained time.Duration)
	// SurgeFailed is called when a surge ended otherwise, with Result.Reason, one of FailureReasons.
	SurgeFailed(reason string)
	// SurgeRefused is called for each refusal before a raise, with one of RefusalReasons.
	SurgeRefused(reason string)
	// RecordRestored is called when the expired record of another process was restored.
	RecordRestored()
}

// Options configures a [Surger].
type Options struct {
	API API
	// Namespace is the namespace of the records.
	Namespace string
	// Identity names the holder of a record: the node or "manager", and a part that differs for each process.
	Identity string
	// Mode says which pods may surge; empty is Off.
	Mode Mode
	// SchedulingWait is how long a successor may be unschedulable before the surge is given up; 0 is 10 s. A caller that
	// launches instances gives the time that they need.
	SchedulingWait time.Duration
	// CheckRoom, if set, says where another pod like this one could run. If reserve is true, no other successor gets that room until
	// Room.Release is called.
	CheckRoom func(ctx context.Context, pod kubeapi.Pod, reserve bool) Room
	// MaxConcurrent limits how many surges run at once; 0 is 128.
	MaxConcurrent int
	Metrics       Metrics // may be nil
	Logger        *slog.Logger
}

// Room says where a successor could run.
type Room struct {
	// Fits is true if the successor fits on an existing node or on a new instance.
	Fits bool
	// LaunchTime is how long a new instance may take, if the successor needs one; else zero.
	LaunchTime time.Duration
	// Detail is one sentence for people: which instance it needs, or why it fits nowhere.
	Detail string
	// Release ends the reservation; nil if there is none. It may be called twice.
	Release func()
}

// NewIdentity returns an identity of this process. who is a node, "manager", or "command/HOST". Two Surgers never have the same one, also after a
// restart: each knows its own surges only.
func NewIdentity(who string) string { return fmt.Sprintf("%s/%08x", who, rand.Uint32()) }

// Surger starts the successors of pods that leave their node. Its methods may be called from any goroutine.
type Surger struct {
	options Options
	api     API
	log     *slog.Logger
	slots   chan struct{}

	restoring restores

	mu       sync.Mutex
	running  map[string]chan struct{} // by owner UID; closed at the end of the surge
	reverted map[string]reversal      // by owner UID
	startups map[string]time.Duration // measured start-up times, by owner UID
	lists    *sharedLists
}

// sharedLists lets surges that run at once share the lists of whole namespaces: the pods of a node often belong to one namespace.
type sharedLists struct {
	slices      map[string]*sharedread.Reader[[]kubeapi.EndpointSlice] // by namespace
	autoscalers map[string]*sharedread.Reader[[]kubeapi.HorizontalPodAutoscaler]
}

func newSharedLists() *sharedLists {
	return &sharedLists{
		slices:      map[string]*sharedread.Reader[[]kubeapi.EndpointSlice]{},
		autoscalers: map[string]*sharedread.Reader[[]kubeapi.HorizontalPodAutoscaler]{},
	}
}

// listEndpointSlices lists the EndpointSlices of a namespace. The answer is not older than the call, and may be shared. Each read has
// the whole timeout, also if its caller has waited for the read before.
func (s *Surger) listEndpointSlices(ctx context.Context, namespace string) ([]kubeapi.EndpointSlice, error) {
	s.mu.Lock()
	r := getOrAdd(s.lists.slices, namespace)
	s.mu.Unlock()
	return r.Read(ctx, func(ctx context.Context) ([]kubeapi.EndpointSlice, error) {
		return call(ctx, func(ctx context.Context) ([]kubeapi.EndpointSlice, error) {
			return s.api.ListEndpointSlices(ctx, namespace)
		})
	})
}

// listAutoscalers lists the HorizontalPodAutoscalers of a namespace. The answer is not older than the call, and may be shared.
func (s *Surger) listAutoscalers(ctx context.Context, namespace string) ([]kubeapi.HorizontalPodAutoscaler, error) {
	s.mu.Lock()
	r := getOrAdd(s.lists.autoscalers, namespace)
	s.mu.Unlock()
	return r.Read(ctx, func(ctx context.Context) ([]kubeapi.HorizontalPodAutoscaler, error) {
		return call(ctx, func(ctx context.Context) ([]kubeapi.HorizontalPodAutoscaler, error) {
			return s.api.ListHorizontalPodAutoscalers(ctx, namespace)
		})
	})
}

func getOrAdd[T any](readers map[string]*sharedread.Reader[T], namespace string) *sharedread.Reader[T] {
	if readers[namespace] == nil {
		readers[namespace] = &sharedread.Reader[T]{}
	}
	return readers[namespace]
}

// reversal records who took a raise back.
type reversal struct {
	by string
	at time.Time
}

// New returns a Surger. If an option is invalid, the error names the option, its value and what is allowed.
func New(o Options) (*Surger, error) {
	if _, err := ParseMode(string(o.Mode)); err != nil {
		return nil, fmt.Errorf("surge: %w", err)
	}
	switch {
	case o.API == nil:
		return nil, errors.New("surge: API is nil")
	case o.Namespace == "":
		return nil, errors.New("surge: namespace is empty, want the namespace of the records")
	case o.Identity == "":
		return nil, errors.New("surge: identity is empty, want a name of this process")
	case o.SchedulingWait < 0:
		return nil, fmt.Errorf("surge: scheduling wait %s: want at least 0", o.SchedulingWait)
	case o.MaxConcurrent < 0:
		return nil, fmt.Errorf("surge: at most %d surges at once: want at least 1, or 0 for %d", o.MaxConcurrent, defaultMaxConcurrent)
	}
	if o.SchedulingWait == 0 {
		o.SchedulingWait = defaultSchedulingWait
	}
	if o.MaxConcurrent == 0 {
		o.MaxConcurrent = defaultMaxConcurrent
	}
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Surger{
		options: o, api: o.API, log: o.Logger, slots: make(chan struct{}, o.MaxConcurrent),
		running: map[string]chan struct{}{}, reverted: map[string]reversal{}, startups: map[string]time.Duration{},
		lists: newSharedLists(),
	}, nil
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) SurgeStarted()                {}
func (noMetrics) SurgeSucceeded(time.Duration) {}
func (noMetrics) SurgeFailed(string)           {}
func (noMetrics) SurgeRefused(string)          {}
func (noMetrics) RecordRestored()              {}

// call sends one request with the timeout of this package.
func call[T any](ctx context.Context, send func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return send(ctx)
}

// do is [call] for a request without a result.
func do(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return send(ctx)
}

// lockOwner waits until no other surge of the owner runs in this process. It returns false if ctx has ended.
func (s *Surger) lockOwner(ctx context.Context, uid string) (unlock func(), ok bool) {
	for {
		s.mu.Lock()
		ended, busy := s.running[uid]
		if !busy {
			own := make(chan struct{})
			s.running[uid] = own
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.running, uid)
				if len(s.running) == 0 {
					s.lists = newSharedLists() // the answers take memory
				}
				s.mu.Unlock()
				close(own)
			}, true
		}
		s.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (s *Surger) isRunning(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, busy := s.running[uid]
	return busy
}
