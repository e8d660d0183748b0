//go:build unix

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/plugin"
)

// ownMachineAnnotation is the annotation of a pod that needs its own machine. The annotation's value is the group.
const ownMachineAnnotation = "directory.slipway.dev/own-machine"

// ModifyEventAnalyzer implements plugin.ModifyEventAnalyzer. For an unschedulable pod with ownMachineAnnotation it
// recommends a new instance.
//
//nolint:unparam // the interface wants an error
func (p *provider) ModifyEventAnalyzer(_ context.Context, pod *corev1.Pod) ([]plugin.Recommendation, error) {
	group := pod.Annotations[ownMachineAnnotation]
	if group == "" || pod.Spec.NodeName != "" || !isUnschedulable(pod) {
		return nil, nil
	}
	return []plugin.Recommendation{{
		Grow:   &plugin.Grow{Group: group, Count: 1},
		Reason: fmt.Sprintf("pod %s/%s needs its own instance", pod.Namespace, pod.Name),
	}}, nil
}

// DeleteEventAnalyzer implements plugin.DeleteEventAnalyzer. For a deleted pod with ownMachineAnnotation it recommends to
// retire the pod's node.
//
//nolint:unparam // the interface wants an error
func (p *provider) DeleteEventAnalyzer(_ context.Context, pod *corev1.Pod) ([]plugin.Recommendation, error) {
	if pod.Annotations[ownMachineAnnotation] == "" || pod.Spec.NodeName == "" {
		return nil, nil
	}
	return []plugin.Recommendation{{
		Retire: &plugin.Retire{Node: pod.Spec.NodeName},
		Reason: fmt.Sprintf("pod %s/%s, which had its own instance, was deleted", pod.Namespace, pod.Name),
	}}, nil
}

func isUnschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}
