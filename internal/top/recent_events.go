package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/slipway-dev/slipway/internal/elapsed"
)

// maxEvents is how many Events are kept.
const maxEvents = 200

// eventKinds are the kinds of objects with watched Events. A field selector can select only one kind.
var eventKinds = []string{"Node", "NodeGroup", "NodeRetirement"}

// recentEvents keeps the latest Events about some kinds of objects. Its memory does not grow with the cluster. An Event that expires on the API server stays until newer ones replace it.
type recentEvents struct {
	client  rest.Interface
	changed func()

	mu      sync.Mutex
	byUID   map[types.UID]Event
	problem string
}

func newRecentEvents(cfg *rest.Config, changed func()) (*recentEvents, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &recentEvents{client: client.CoreV1().RESTClient(), changed: changed, byUID: map[types.UID]Event{}}, nil
}

// eventRetryInterval is the pause after a failed or ended watch of Events.
const eventRetryInterval = 5 * time.Second

// watchUntilDone watches the Events until ctx ends. It does not use a Reflector, which reports errors only to a global handler.
func (r *recentEvents) watchUntilDone(ctx context.Context) {
	var watches sync.WaitGroup
	for _, kind := range eventKinds {
		from := toolscache.NewListWatchFromClient(r.client, "events", metav1.NamespaceAll, fields.OneTermEqualSelector("involvedObject.kind", kind))
		watches.Go(func() {
			version := ""
			for {
				err := r.followKind(ctx, from, &version)
				r.recordProblem(err)
				if err != nil {
					version = ""
				}
				if !elapsed.Sleep(ctx, eventRetryInterval) {
					return
				}
			}
		})
	}
	watches.Wait()
}

// followKind lists the Events unless version is set, and then watches them until the watch ends. It updates version.
func (r *recentEvents) followKind(ctx context.Context, from *toolscache.ListWatch, version *string) error {
	if *version == "" {
		newest, err := from.ListWithContext(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		list, err := meta.ListAccessor(newest)
		if err != nil {
			return err
		}
		pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return from.ListWithContext(ctx, o)
		})
		err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			r.add(o)
			return nil
		})
		if err != nil {
			return err
		}
		*version = list.GetResourceVersion()
	}
	w, err := from.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: *version, AllowWatchBookmarks: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	r.recordProblem(nil)
	for change := range w.ResultChan() {
		if change.Type == watch.Error {
			return apierrors.FromObject(change.Object)
		}
		if o, err := meta.Accessor(change.Object); err == nil {
			*version = o.GetResourceVersion()
		}
		if change.Type == watch.Added || change.Type == watch.Modified {
			r.add(change.Object)
		}
	}
	return nil
}

func (r *recentEvents) recordProblem(err error) {
	problem := ""
	switch {
	case err == nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err):
	case apierrors.IsForbidden(err):
		problem = "you may not list and watch events: bind ClusterRole slipway-top (deploy/viewer)"
	default:
		problem = fmt.Sprintf("events can be out of date: %v", err)
	}
	r.mu.Lock()
	r.problem = problem
	r.mu.Unlock()
}

// list returns the Events, the newest first, and why some are missing.
func (r *recentEvents) list() (all []Event, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.byUID {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Event) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Object, b.Object), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Message, b.Message))
	})
	return all[:min(len(all), maxEvents)], r.problem
}

// add keeps an Event. If too many are kept, it drops the oldest.
func (r *recentEvents) add(o runtime.Object) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return // a bookmark
	}
	r.mu.Lock()
	r.addLocked(e)
	r.mu.Unlock()
	r.changed()
}

func (r *recentEvents) addLocked(e *corev1.Event) {
	r.byUID[e.UID] = newEvent(e)
	if len(r.byUID) <= 2*maxEvents {
		return
	}
	times := make([]time.Time, 0, len(r.byUID))
	for _, known := range r.byUID {
		times = append(times, known.At)
	}
	slices.SortFunc(times, time.Time.Compare)
	oldest := times[len(times)-maxEvents]
	for uid, known := range r.byUID {
		if known.At.Before(oldest) || len(r.byUID) > 2*maxEvents { // many may have the same time
			delete(r.byUID, uid)
		}
	}
}

func newEvent(e *corev1.Event) Event {
	out := Event{
		At: e.CreationTimestamp.Time, Warning: e.Type == corev1.EventTypeWarning, Object: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name,
		Reason: e.Reason, Message: e.Message, Count: int(max(e.Count, 1)),
	}
	for _, at := range []time.Time{e.EventTime.Time, e.LastTimestamp.Time} {
		if at.After(out.At) {
			out.At = at
		}
	}
	if e.Series != nil {
		out.At, out.Count = e.Series.LastObservedTime.Time, int(e.Series.Count)
	}
	return out
}
