package manager

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// cacheOptions keep of each object what is read from the cache.
func cacheOptions(c Config) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.NodeRetirement{}: {Label: c.parsedSelector},
			&corev1.Node{}:             {Transform: trimNode},
			&corev1.Pod{}:              {Transform: trimPod},
		},
	}
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

// trimPod drops what bears on no decision: most of a Pod is what its containers run and how.
func trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	p.ManagedFields = nil
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			containers[i] = corev1.Container{
				Name: c.Name, Ports: c.Ports, Resources: c.Resources, ResizePolicy: c.ResizePolicy, RestartPolicy: c.RestartPolicy,
			}
		}
	}
	p.Spec.EphemeralContainers = nil
	p.Status.PodIPs, p.Status.HostIPs, p.Status.EphemeralContainerStatuses = nil, nil, nil
	p.Status.InitContainerStatuses = trimStatuses(p.Status.InitContainerStatuses)
	p.Status.ContainerStatuses = trimStatuses(p.Status.ContainerStatuses)
	return p, nil
}

// trimStatuses keeps what containers were given, where that was changed while they ran.
func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for _, s := range statuses {
		if s.Resources != nil || s.AllocatedResources != nil {
			kept = append(kept, corev1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources})
		}
	}
	return kept
}
