package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
)

// ShrinkCluster makes a cluster as small as possible while disagree still returns true for it. It removes objects
// first, and then fields of the pods.
func ShrinkCluster(c *placementtest.Cluster, disagree func(*placementtest.Cluster) bool) *placementtest.Cluster {
	for {
		smaller := shrinkOnce(c, disagree)
		if smaller == nil {
			return c
		}
		c = smaller
	}
}

// shrinkOnce returns a smaller cluster if disagree returns true for one, and otherwise nil.
func shrinkOnce(c *placementtest.Cluster, disagree func(*placementtest.Cluster) bool) *placementtest.Cluster {
	for _, smaller := range slices.Concat(
		clustersWithoutOne(c, c.Candidates, func(c *placementtest.Cluster, l []*corev1.Pod) { c.Candidates = l }),
		clustersWithoutOne(c, c.Pods, func(c *placementtest.Cluster, l []*corev1.Pod) { c.Pods = l }),
		clustersWithoutOne(c, c.Nodes, func(c *placementtest.Cluster, l []*corev1.Node) { c.Nodes = l }),
		clustersWithoutOne(c, c.Claims, func(c *placementtest.Cluster, l []*corev1.PersistentVolumeClaim) { c.Claims = l }),
		clustersWithoutOne(c, c.Volumes, func(c *placementtest.Cluster, l []*corev1.PersistentVolume) { c.Volumes = l }),
		clustersWithoutOne(c, c.StorageClasses, func(c *placementtest.Cluster, l []*storagev1.StorageClass) { c.StorageClasses = l }),
		clustersWithoutOne(c, c.CSINodes, func(c *placementtest.Cluster, l []*storagev1.CSINode) { c.CSINodes = l }),
		clustersWithoutOne(c, c.CSIDrivers, func(c *placementtest.Cluster, l []*storagev1.CSIDriver) { c.CSIDrivers = l }),
		clustersWithoutOne(c, c.Attachments, func(c *placementtest.Cluster, l []*storagev1.VolumeAttachment) { c.Attachments = l }),
		clustersWithoutOne(c, c.Capacities, func(c *placementtest.Cluster, l []*storagev1.CSIStorageCapacity) { c.Capacities = l }),
		clustersWithoutOne(c, c.DeviceClasses, func(c *placementtest.Cluster, l []*resourcev1.DeviceClass) { c.DeviceClasses = l }),
		clustersWithoutOne(c, c.Namespaces, func(c *placementtest.Cluster, l []*corev1.Namespace) { c.Namespaces = l }),
		clustersWithSimplerPod(c, c.Candidates, func(c *placementtest.Cluster, l []*corev1.Pod) { c.Candidates = l }),
		clustersWithSimplerPod(c, c.Pods, func(c *placementtest.Cluster, l []*corev1.Pod) { c.Pods = l }),
	) {
		if disagree(smaller) {
			return smaller
		}
	}
	return nil
}

// clustersWithoutOne returns one cluster for each object in a list. Each cluster lacks this object.
func clustersWithoutOne[T any](c *placementtest.Cluster, list []T, set func(*placementtest.Cluster, []T)) []*placementtest.Cluster {
	var out []*placementtest.Cluster
	for i := range list {
		smaller := *c
		set(&smaller, slices.Delete(slices.Clone(list), i, i+1))
		out = append(out, &smaller)
	}
	return out
}

// clustersWithSimplerPod returns variants of a cluster. In each variant, one pod of the list lacks one field of its
// spec.
func clustersWithSimplerPod(c *placementtest.Cluster, list []*corev1.Pod, set func(*placementtest.Cluster, []*corev1.Pod)) []*placementtest.Cluster {
	cuts := []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Spec.Affinity = nil },
		func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = nil },
		func(p *corev1.Pod) { p.Spec.Volumes = nil },
		func(p *corev1.Pod) { p.Spec.InitContainers = nil },
		func(p *corev1.Pod) { p.Spec.Tolerations = nil },
		func(p *corev1.Pod) { p.Spec.NodeSelector = nil },
		func(p *corev1.Pod) { p.Spec.Resources, p.Spec.Overhead = nil, nil },
		func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "c"}} },
		func(p *corev1.Pod) { p.Status = corev1.PodStatus{NominatedNodeName: p.Status.NominatedNodeName} },
		func(p *corev1.Pod) { p.Status.NominatedNodeName = "" },
		func(p *corev1.Pod) { p.Spec.EphemeralContainers = nil },
		func(p *corev1.Pod) { p.Spec.SchedulingGates = nil },
		func(p *corev1.Pod) { p.Spec.Priority = nil },
	}
	var out []*placementtest.Cluster
	for i, p := range list {
		for _, cut := range cuts {
			simpler := p.DeepCopy()
			cut(simpler)
			if equalPods(simpler, p) {
				continue
			}
			smaller := *c
			pods := slices.Clone(list)
			pods[i] = simpler
			set(&smaller, pods)
			out = append(out, &smaller)
		}
	}
	return out
}

func equalPods(a, b *corev1.Pod) bool { return a.String() == b.String() }
