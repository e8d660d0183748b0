//go:build unix

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/plugin"
)

// ownMachine is the annotation of a pod that wants a machine to itself; its value is the group.
const ownMachine = "directory.slipway.dev/own-machine"

// ModifyEventAnalyzer implements plugin.ModifyEventAnalyzer: a pod that is to have a machine of its own, and finds no
// room, gets one.
//
//nolint:unparam // the interface wants an error
func (p *provider) ModifyEventAnalyzer(_ context.Context, pod *corev1.Pod) ([]plugin.Wish, error) {
	group := pod.Annotations[ownMachine]
	if group == "" || pod.Spec.NodeName != "" || !unschedulable(pod) {
		return nil, nil
	}
	return []plugin.Wish{{
		Grow:   &plugin.Grow{Group: group, Count: 1},
		Reason: fmt.Sprintf("pod %s/%s wants a machine of its own", pod.Namespace, pod.Name),
	}}, nil
}

// DeleteEventAnalyzer implements plugin.DeleteEventAnalyzer: the machine goes with its pod.
//
//nolint:unparam // the interface wants an error
func (p *provider) DeleteEventAnalyzer(_ context.Context, pod *corev1.Pod) ([]plugin.Wish, error) {
	if pod.Annotations[ownMachine] == "" || pod.Spec.NodeName == "" {
		return nil, nil
	}
	return []plugin.Wish{{
		Retire: &plugin.Retire{Node: pod.Spec.NodeName},
		Reason: fmt.Sprintf("pod %s/%s, which had the machine to itself, is gone", pod.Namespace, pod.Name),
	}}, nil
}

// unschedulable goes by the scheduler's own condition.
func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}
