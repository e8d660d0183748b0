package filter

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
)

const devicesPredicate = "DynamicResources"

// listUndecidableFeatures lists the features of the pod that this package does not evaluate.
func listUndecidableFeatures(spec *corev1.PodSpec) []string {
	var list []string
	if len(spec.ResourceClaims) > 0 {
		list = append(list, fmt.Sprintf("resource claim %s is allocated by dynamic resource allocation",
			spec.ResourceClaims[0].Name))
	}
	if spec.SchedulingGroup != nil {
		list = append(list, "pod is scheduled as part of a group")
	}
	if spec.SchedulerName != "" && spec.SchedulerName != corev1.DefaultSchedulerName {
		list = append(list, fmt.Sprintf("pod is scheduled by %s, which has unknown rules", spec.SchedulerName))
	}
	return list
}

// isOfferedOnlyByDeviceClass reports whether a device class offers the resource and the node itself does not. Only dynamic
// resource allocation can then satisfy the request.
func (h *Chain) isOfferedOnlyByDeviceClass(n *Node, resource int32) bool {
	if resource < firstScalar || len(h.Storage.deviceClasses) == 0 || AmountAt(n.Allocatable, resource) > 0 {
		return false
	}
	return h.Storage.findDeviceClass(string(h.Resources.names[resource])) != ""
}

// listDeviceClassReasons returns a reason for each request that a device class would have to satisfy.
func (h *Chain) listDeviceClassReasons(c *PodClass, n *Node) []placement.Reason {
	var reasons []placement.Reason
	for _, r := range c.Requests {
		if h.isOfferedOnlyByDeviceClass(n, r.Resource) {
			name := string(h.Resources.names[r.Resource])
			text := fmt.Sprintf("%s is offered by device class %s", name, h.Storage.findDeviceClass(name))
			reasons = append(reasons, placement.Reason{Predicate: devicesPredicate, Message: text})
		}
	}
	return reasons
}
