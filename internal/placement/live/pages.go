package live

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// NewInformer is how a cache is to make its informers, whose Pods are trimmed by trim.
type NewInformer = func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer

// InPages makes informers that read Pods in pages where the API server does not stream them, which Kubernetes 1.33 does
// not by default. The list that informers ask for comes in one piece whatever its limit, since any version will do
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list): of 150,000 Pods, gigabytes.
func InPages(trim cache.TransformFunc) NewInformer {
	return func(from cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		if _, ok := example.(*corev1.Pod); ok {
			from = newPagedListWatch(cache.ToListerWatcherWithContext(from), trim)
		}
		return cache.NewSharedIndexInformer(from, example, resync, indexers)
	}
}

// newPagedListWatch has the newest version listed, of which the API server gives pages, and trims each page as it comes. It is the
// reflector that asks for one page after the other.
func newPagedListWatch(from cache.ListerWatcherWithContext, trim cache.TransformFunc) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			listed, err := from.ListWithContext(ctx, o)
			if err != nil {
				return nil, err
			}
			if pods, ok := listed.(*corev1.PodList); ok {
				return trimPage(pods, trim)
			}
			return listed, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return from.WatchWithContext(ctx, o)
		},
	}
}

func trimPage(pods *corev1.PodList, trim cache.TransformFunc) (runtime.Object, error) {
	page := &internalversion.List{ListMeta: pods.ListMeta, Items: make([]runtime.Object, 0, len(pods.Items))}
	for i := range pods.Items {
		trimmed, err := trim(&pods.Items[i])
		if err != nil {
			return nil, err
		}
		if pod, ok := trimmed.(*corev1.Pod); ok {
			page.Items = append(page.Items, pod)
		}
	}
	return page, nil
}
