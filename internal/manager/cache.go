package manager

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// cacheOptions keep of each object what is read from the cache.
func cacheOptions(c Config) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NodeRetirement{}: {Label: c.parsedSelector},
			&corev1.Node{}:             {Transform: trimNode},
			&corev1.Pod{}:              unfinishedPods(),
		},
	}
}

// unfinishedPods are the Pods that the caches hold: those that have ended hold nothing, and of the others what nobody
// reads is dropped.
func unfinishedPods() cache.ByObject {
	return cache.ByObject{
		Field: fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))),
		Transform: live.TrimPods(),
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
	n.Status.NodeInfo, n.Status.Addresses, n.Status.Config = corev1.NodeSystemInfo{}, nil, nil
	return n, nil
}
