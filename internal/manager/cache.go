package manager

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/live"
)

// newCacheOptions returns options that limit the caches to the objects and fields that the manager reads.
func newCacheOptions(c Config) cache.Options {
	trim := live.NewPodTrimmer()
	return cache.Options{
		NewInformer:      live.NewPagedPodInformers(trim),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NodeRetirement{}: {Label: c.parsedSelector},
			&corev1.Node{}:             {Transform: trimNode},
			&corev1.Pod{}:              newPodCacheOptions(trim),
		},
	}
}

// newPodCacheOptions returns options that exclude finished Pods from the cache, which use no resources. It also drops
// fields of other Pods that the manager does not read.
func newPodCacheOptions(trim toolscache.TransformFunc) cache.ByObject {
	return cache.ByObject{
		Field: fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))),
		Transform: trim,
	}
}

// sharedWatches holds the watches that several components use.
type sharedWatches struct {
	informers live.Informers
	pods      live.PodReader
	cluster   *sharedCluster
}

// sharedCluster is the snapshot of the cluster that several components use. The first of them starts it, because not every
// manager needs one.
type sharedCluster struct {
	informers live.Informers
	log       *slog.Logger

	mu      sync.Mutex
	cluster *live.Cluster
}

// watch returns the snapshot. It may not have all objects yet.
func (s *sharedCluster) watch(api discovery.ServerResourcesInterface) (*live.Cluster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster != nil {
		return s.cluster, nil
	}
	cluster, err := live.WatchCluster(api, s.informers, s.log)
	if err == nil {
		s.cluster = cluster
	}
	return cluster, err
}

// startWatches starts the shared watches. It starts to watch pods at once, because a notice may leave only 30 s.
func startWatches(ctx context.Context, m manager.Manager, log *slog.Logger) (w sharedWatches, err error) {
	w.informers = live.InformersOfCache(ctx, m.GetCache())
	w.cluster = &sharedCluster{informers: w.informers, log: log}
	w.pods, err = live.NewCachedPodReader(w.informers)
	return w, err
}

// trimNode removes the fields of a Node that the manager does not read. Images and volumes alone are most of a Node's
// size.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	n.ManagedFields = nil
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
	n.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: n.Status.NodeInfo.SystemUUID} // the only identification of the instance in some clusters
	n.Status.Addresses, n.Status.Config = nil, nil
	return n, nil
}
