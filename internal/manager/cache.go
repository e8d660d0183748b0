package manager

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// cacheOptions keep of each object what is read from the cache.
func cacheOptions(c Config) cache.Options {
	trim := live.TrimPods()
	return cache.Options{
		NewInformer:      live.InPages(trim),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NodeRetirement{}: {Label: c.parsedSelector},
			&corev1.Node{}:             {Transform: trimNode},
			&corev1.Pod{}:              unfinishedPods(trim),
		},
	}
}

// unfinishedPods are the Pods that the caches hold: those that have ended hold nothing, and of the others what nobody
// reads is dropped.
func unfinishedPods(trim toolscache.TransformFunc) cache.ByObject {
	return cache.ByObject{
		Field: fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))),
		Transform: trim,
	}
}

// watched is what several read of the cluster, and what is held once for all of them.
type watched struct {
	informers live.Informers
	pods      live.Pods
}

// watch has the pods watched from the beginning: a notice may leave half a minute.
func watch(ctx context.Context, m manager.Manager) (w watched, err error) {
	w.informers = live.OfCache(ctx, m.GetCache())
	w.pods, err = live.CachedPods(w.informers)
	return w, err
}

// trimNode drops what nobody reads: images and volumes alone are most of a Node.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	n.ManagedFields = nil
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	n.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: n.Status.NodeInfo.SystemUUID} // it may be all that says which machine it is
	n.Status.Addresses, n.Status.Config = nil, nil
	return n, nil
}
