package replacement

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// ClusterPlacement finds the pods that would be unschedulable without a node. It reads the cluster for each call, and decides like
// the scheduler.
type ClusterPlacement struct {
	// Cached and Pods read Nodes, Namespaces and Pods from caches. Live reads the Pods of the node without a cache, and
	// the storage objects for pods with volumes.
	Cached, Live client.Reader
	Pods         live.PodReader
}

// ListPodsNeedingNode lists the pods on a node that fit on no other node. It also lists pending pods that only an
// instance like the node's would take, because a drain has probably evicted them from the node. It also lists pods for
// which this cannot be decided.
func (r ClusterPlacement) ListPodsNeedingNode(ctx context.Context, node string) ([]UnschedulablePod, error) {
	o, err := r.readPlacementObjects(ctx, node)
	if err != nil {
		return nil, err
	}
	cluster, err := planner.NewCluster(o)
	if err != nil {
		return nil, fmt.Errorf("placement of the pods of node %s: %w", node, err)
	}
	rules := planner.Options{Now: o.Time, PodRules: podrules.ForcedPolicy()}
	var unschedulable []UnschedulablePod
	this := findNode(o, node)
	if this != nil {
		answer, err := cluster.PlanEvacuation(node, planner.PlanOptions{Policy: planner.LeastPods, Rules: rules})
		if err != nil {
			return nil, fmt.Errorf("placement of the pods of node %s: %w", node, err)
		}
		unschedulable = listUnplaceablePods(answer)
	}
	waiting, err := r.listPodsNeedingSameInstance(cluster, this)
	return append(unschedulable, waiting...), err
}

// listUnplaceablePods lists the pods that fit nowhere else or cannot be decided.
func listUnplaceablePods(e *planner.Evacuation) []UnschedulablePod {
	var unschedulable []UnschedulablePod
	for _, r := range e.Refusals {
		if r.Pod != "" && (r.Rule == "no-room" || r.Rule == "undecidable") {
			unschedulable = append(unschedulable, UnschedulablePod{Pod: r.Pod, Why: r.String()})
		}
	}
	return unschedulable
}

// listPodsNeedingSameInstance lists the pending pods that fit only on a new instance like the node's.
func (ClusterPlacement) listPodsNeedingSameInstance(cluster *planner.Cluster, sample *corev1.Node) ([]UnschedulablePod, error) {
	if sample == nil || planner.TemplateName(sample) == "" {
		return nil, nil
	}
	answer, err := cluster.PlanLaunchesAndRemovals(planner.PlanOptions{Policy: planner.LeastPods})
	if err != nil || answer.Launch == nil {
		return nil, err
	}
	var unschedulable []UnschedulablePod
	for _, m := range answer.Launch.Instances {
		if m.Template != planner.TemplateName(sample) {
			continue
		}
		for _, pod := range m.Pods {
			unschedulable = append(unschedulable, UnschedulablePod{Pod: pod.String(), Why: "is pending, and only a new instance would take it"})
		}
	}
	return unschedulable, nil
}

func findNode(o *saved.Objects, name string) *corev1.Node {
	for _, n := range o.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// readPlacementObjects reads the input of placement. It leaves out finished pods.
func (r ClusterPlacement) readPlacementObjects(ctx context.Context, node string) (*saved.Objects, error) {
	o := &saved.Objects{Time: time.Now()}
	var nodes corev1.NodeList
	var namespaces corev1.NamespaceList
	for list, kind := range map[client.ObjectList]string{&nodes: "Nodes", &namespaces: "Namespaces"} {
		if err := r.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("placement of the pods of node %s: %s: %w", node, kind, err)
		}
	}
	pods, err := r.Pods.ListSelected(ctx, metav1.NamespaceAll, labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("placement of the pods of node %s: Pods: %w", node, err)
	}
	own, err := live.NewListingPodReader(r.Live).ListOnNode(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("pods on node %s: %w", node, err)
	}
	volumes, known := false, map[types.UID]bool{}
	for _, p := range append(own, pods...) {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || known[p.UID] {
			continue
		}
		known[p.UID] = true // the uncached version counts
		o.Pods = append(o.Pods, p)
		volumes = volumes || (p.Spec.NodeName == node || p.Spec.NodeName == "") && usesRestrictingVolumes(p)
	}
	o.Nodes, o.Namespaces = toPointers(nodes.Items), toPointers(namespaces.Items)
	if !volumes {
		return o, nil
	}
	return o, r.readStorageObjects(ctx, o)
}

// usesRestrictingVolumes reports whether a pod has volumes that restrict where it can run.
func usesRestrictingVolumes(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil {
			return true
		}
	}
	return false
}

func (r ClusterPlacement) readStorageObjects(ctx context.Context, o *saved.Objects) error {
	var (
		claims      corev1.PersistentVolumeClaimList
		volumes     corev1.PersistentVolumeList
		classes     storagev1.StorageClassList
		nodes       storagev1.CSINodeList
		drivers     storagev1.CSIDriverList
		attachments storagev1.VolumeAttachmentList
	)
	for _, list := range []client.ObjectList{&claims, &volumes, &classes, &nodes, &drivers, &attachments} {
		if err := r.Live.List(ctx, list); err != nil {
			return fmt.Errorf("placement of pods with volumes: %T: %w", list, err)
		}
	}
	o.Claims, o.Volumes, o.StorageClasses = toPointers(claims.Items), toPointers(volumes.Items), toPointers(classes.Items)
	o.CSINodes, o.CSIDrivers, o.Attachments = toPointers(nodes.Items), toPointers(drivers.Items), toPointers(attachments.Items)
	return nil
}

func toPointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}
