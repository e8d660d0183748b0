// Package live feeds placement from a running cluster: once, for a command, or continuously, from informers. It only
// reads.
package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// ReadClusterObjects reads a cluster once, page by page. A partial result would give wrong answers, so any error fails the whole
// call. It reports all missing permissions together. Device classes may be missing, because clusters older than 1.34
// do not serve this version. PodGroups may be missing, or must not be read: each then counts as disruptionMode all.
func ReadClusterObjects(ctx context.Context, client kubernetes.Interface) (*saved.Objects, error) {
	core, storage := client.CoreV1(), client.StorageV1()
	o := saved.Objects{Time: time.Now()}
	var errs []error
	for _, read := range []func() error{
		func() error { return appendAllPages(ctx, core.Namespaces().List, &o.Namespaces) },
		func() error { return appendAllPages(ctx, core.Nodes().List, &o.Nodes) },
		func() error { return appendAllPages(ctx, core.Pods("").List, &o.Pods) },
		func() error {
			return appendAllPages(ctx, client.PolicyV1().PodDisruptionBudgets("").List, &o.PDBs)
		},
		func() error {
			return appendAllPages(ctx, core.PersistentVolumeClaims("").List, &o.Claims)
		},
		func() error {
			return appendAllPages(ctx, core.PersistentVolumes().List, &o.Volumes)
		},
		func() error {
			return appendAllPages(ctx, storage.StorageClasses().List, &o.StorageClasses)
		},
		func() error { return appendAllPages(ctx, storage.CSINodes().List, &o.CSINodes) },
		func() error { return appendAllPages(ctx, storage.CSIDrivers().List, &o.CSIDrivers) },
		func() error {
			return appendAllPages(ctx, storage.VolumeAttachments().List, &o.Attachments)
		},
	} {
		err := read()
		errs = append(errs, err)
		if err != nil && !apierrors.IsForbidden(err) {
			break // the other lists would probably fail for the same reason
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	err := appendAllPages(ctx, client.ResourceV1().DeviceClasses().List, &o.DeviceClasses)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if slices.ContainsFunc(o.Pods, func(p *corev1.Pod) bool { return p.Spec.SchedulingGroup != nil }) {
		if o.PodGroups, err = readPodGroups(ctx, client); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
	return &o, nil
}

// readPodGroups reads the PodGroups in the newest version that the API server serves.
func readPodGroups(ctx context.Context, client kubernetes.Interface) (all []*schedulingv1beta1.PodGroup, err error) {
	err = appendAllPages(ctx, client.SchedulingV1beta1().PodGroups("").List, &all)
	if !apierrors.IsNotFound(err) {
		return all, err
	}
	var older []*schedulingv1alpha3.PodGroup
	err = appendAllPages(ctx, client.SchedulingV1alpha3().PodGroups("").List, &older)
	for _, o := range older {
		all = append(all, toPodGroup(o))
	}
	return all, err
}

// toPodGroup converts what placement reads from a PodGroup.
func toPodGroup(o *schedulingv1alpha3.PodGroup) *schedulingv1beta1.PodGroup {
	out := &schedulingv1beta1.PodGroup{ObjectMeta: o.ObjectMeta}
	if mode := o.Spec.DisruptionMode; mode != nil {
		out.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{}
		if mode.Single != nil {
			out.Spec.DisruptionMode.Single = &schedulingv1beta1.SingleDisruptionMode{}
		}
		if mode.All != nil {
			out.Spec.DisruptionMode.All = &schedulingv1beta1.AllDisruptionMode{}
		}
	}
	return out
}

// appendAllPages appends all objects of one kind.
func appendAllPages[L runtime.Object, T any](ctx context.Context, call func(context.Context, metav1.ListOptions) (L, error),
	into *[]T,
) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return call(ctx, o) })
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, ok := o.(T)
		if !ok {
			return fmt.Errorf("unexpected object of type %T", o)
		}
		*into = append(*into, item)
		return nil
	})
}

// Cluster is a snapshot that informers keep current.
type Cluster struct {
	mu       sync.Mutex
	snapshot *snapshot.Snapshot
	log      *slog.Logger
	synced   []cache.InformerSynced
}

// WatchCluster adds handlers to the informers that placement needs. It asks the API server once whether it serves device
// classes. A server older than 1.34 does not, and its scheduler does not read them. It watches no PodGroups, so each counts as
// disruptionMode all. That matters little: the planner cannot tell where a pod of a PodGroup would be scheduled, and keeps its node.
func WatchCluster(api discovery.ServerResourcesInterface, informers Informers, log *slog.Logger) (*Cluster, error) {
	c := &Cluster{snapshot: snapshot.New(), log: log}
	devices, err := isResourceServed(api, resourcev1.SchemeGroupVersion.WithResource("deviceclasses"))
	if err != nil {
		return nil, err
	}
	core, policy, storage := corev1.SchemeGroupVersion, policyv1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	s := c.snapshot
	if devices {
		err = watchResource(c, informers, resourcev1.SchemeGroupVersion, "deviceclasses", s.Storage.SetDeviceClass, deleteByName(s.Storage.DeleteDeviceClass))
	}
	return c, errors.Join(err,
		watchResource(c, informers, core, "namespaces", s.SetNamespace, deleteByName(s.DeleteNamespace)),
		watchResource(c, informers, core, "nodes", s.SetNode, deleteByName(s.DeleteNode)),
		watchResource(c, informers, core, "pods", s.SetPod, s.DeletePod),
		watchResource(c, informers, policy, "poddisruptionbudgets", s.PDBs.Set, s.PDBs.Delete),
		watchResource(c, informers, core, "persistentvolumeclaims", s.Storage.SetPersistentVolumeClaim, s.Storage.DeletePersistentVolumeClaim),
		watchResource(c, informers, core, "persistentvolumes", s.Storage.SetPersistentVolume, deleteByName(s.Storage.DeletePersistentVolume)),
		watchResource(c, informers, storage, "storageclasses", s.Storage.SetStorageClass, deleteByName(s.Storage.DeleteStorageClass)),
		watchResource(c, informers, storage, "csinodes", s.Storage.SetCSINode, deleteByName(s.Storage.DeleteCSINode)),
		watchResource(c, informers, storage, "csidrivers", s.Storage.SetCSIDriver, deleteByName(s.Storage.DeleteCSIDriver)),
		watchResource(c, informers, storage, "volumeattachments", s.Storage.SetVolumeAttachment, deleteByName(s.Storage.DeleteVolumeAttachment)))
}

// isResourceServed reports whether the API server has a resource in a version.
func isResourceServed(api discovery.ServerResourcesInterface, resource schema.GroupVersionResource) (served bool, err error) {
	list, err := api.ServerResourcesForGroupVersion(resource.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("discover the resources of %s: %w", resource.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }), nil
}

// deleteByName adapts a deletion by name to a deletion by key, for cluster-scoped objects.
func deleteByName(remove func(string) error) func(placement.PodKey) error {
	return func(key placement.PodKey) error { return remove(key.Name) }
}

// watchResource passes the events of one informer to the snapshot, one at a time.
func watchResource[T any, O interface {
	*T
	client.Object
}](c *Cluster, informers Informers, version schema.GroupVersion, resource string, addOrUpdate func(O) error, remove func(placement.PodKey) error,
) error {
	informer, err := informers(version.WithResource(resource), O(new(T)))
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	take := func(o any) {
		if item, ok := o.(O); ok {
			c.applyEventOrLog(func() error { return addOrUpdate(item) })
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    take,
		UpdateFunc: func(_, o any) { take(o) },
		DeleteFunc: func(o any) {
			key, err := cache.DeletionHandlingObjectToName(o)
			if err == nil {
				c.applyEventOrLog(func() error { return remove(placement.PodKey{Namespace: key.Namespace, Name: key.Name}) })
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	c.synced = append(c.synced, registration.HasSynced)
	return nil
}

func (c *Cluster) applyEventOrLog(event func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := event(); err != nil {
		c.log.Error("the snapshot rejected an event", "error", err)
	}
}

// WaitForSync returns when all initial objects are in the snapshot, or with the error of ctx.
func (c *Cluster) WaitForSync(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return fmt.Errorf("wait for the caches to sync: %w", context.Cause(ctx))
	}
	return nil
}

// WithSnapshot calls fn while no event changes the snapshot. fn must roll back every fork, and must not keep the snapshot.
func (c *Cluster) WithSnapshot(fn func(*snapshot.Snapshot) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fn(c.snapshot)
}
