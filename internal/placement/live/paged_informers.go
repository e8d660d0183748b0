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

// InformerConstructor creates an informer for a cache.
type InformerConstructor = func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer

// NewPagedPodInformers returns a constructor for informers that list Pods in pages if the API server does not stream lists, as in
// Kubernetes 1.33 by default. An informer lists at any version, and the API server answers that in one piece whatever
// the limit is (https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list). For 150,000
// Pods that is gigabytes.
func NewPagedPodInformers(trim cache.TransformFunc) InformerConstructor {
	return func(from cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		if _, ok := example.(*corev1.Pod); ok {
			from = newPagedPodListWatch(cache.ToListerWatcherWithContext(from), trim)
		}
		return cache.NewSharedIndexInformer(from, example, resync, indexers)
	}
}

// newPagedPodListWatch lists the newest version, which the API server returns in pages, and trims each page. The
// reflector requests the pages.
func newPagedPodListWatch(from cache.ListerWatcherWithContext, trim cache.TransformFunc) *cache.ListWatch {
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
