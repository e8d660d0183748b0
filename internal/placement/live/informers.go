package live

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Informers returns the informer of a resource with objects of the given kind. It returns the same informer each
// time.
type Informers func(resource schema.GroupVersionResource, kind client.Object) (toolscache.SharedIndexInformer, error)

// InformersOfFactory returns the informers of a factory. Start the factory after that.
func InformersOfFactory(factory informers.SharedInformerFactory) Informers {
	return func(resource schema.GroupVersionResource, _ client.Object) (toolscache.SharedIndexInformer, error) {
		generic, err := factory.ForResource(resource)
		if err != nil {
			return nil, err
		}
		return generic.Informer(), nil
	}
}

// InformersOfCache returns the informers of a cache, so that other readers of the cache share the objects. The scheme of the
// cache must include the kinds. ctx applies only to the lookup.
func InformersOfCache(ctx context.Context, c cache.Informers) Informers {
	return func(_ schema.GroupVersionResource, kind client.Object) (toolscache.SharedIndexInformer, error) {
		informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		shared, ok := informer.(toolscache.SharedIndexInformer)
		if !ok {
			return nil, fmt.Errorf("informer of %T is a %T: want a SharedIndexInformer", kind, informer)
		}
		return shared, nil
	}
}
