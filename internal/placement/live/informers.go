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

// Informers gives the informer of a resource, whose objects are of the kind given. It is the same one each time.
type Informers func(resource schema.GroupVersionResource, kind client.Object) (toolscache.SharedIndexInformer, error)

// OfFactory gives the informers of a factory, which is to be started after they were asked for.
func OfFactory(factory informers.SharedInformerFactory) Informers {
	return func(resource schema.GroupVersionResource, _ client.Object) (toolscache.SharedIndexInformer, error) {
		generic, err := factory.ForResource(resource)
		if err != nil {
			return nil, err
		}
		return generic.Informer(), nil
	}
}

// OfCache gives the informers of a cache, so that what others read from it is held once. The cache's scheme has to know
// the kinds. ctx is that of asking alone.
func OfCache(ctx context.Context, c cache.Informers) Informers {
	return func(_ schema.GroupVersionResource, kind client.Object) (toolscache.SharedIndexInformer, error) {
		informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		shared, ok := informer.(toolscache.SharedIndexInformer)
		if !ok {
			return nil, fmt.Errorf("the cache's informer of %T is a %T, whose objects cannot be read in place", kind, informer)
		}
		return shared, nil
	}
}
