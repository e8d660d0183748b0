// Package fromkubeapi reads the facts about pods from the types of package kubeapi.
package fromkubeapi

import (
	"github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// PodFacts returns the facts about a pod.
func PodFacts(p *kubeapi.Pod) pod.Facts {
	const memory = "Memory" // corev1.StorageMediumMemory
	in := pod.Input{
		Labels: p.Labels, Annotations: p.Annotations, Created: p.CreationTimestamp, Terminating: p.DeletionTimestamp != nil,
		Finished: p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed",
	}
	if c := FindController(p); c != nil {
		in.Controller = c.Kind
	}
	if g := p.Spec.SchedulingGroup; g != nil {
		in.PodGroup = g.PodGroupName
	}
	for _, v := range p.Spec.Volumes {
		switch {
		case v.EmptyDir != nil && v.EmptyDir.Medium != memory:
			in.EmptyDirs = append(in.EmptyDirs, v.Name)
		case v.HostPath != nil:
			in.HostPaths = append(in.HostPaths, v.Name)
		}
	}
	return pod.NewFacts(in)
}

// FindController returns the owner reference of the controller that recreates the pod, or nil. An owner reference
// without the flag controller does not count.
func FindController(p *kubeapi.Pod) *kubeapi.OwnerReference {
	for i, r := range p.OwnerReferences {
		if r.Controller != nil && *r.Controller {
			return &p.OwnerReferences[i]
		}
	}
	return nil
}
