package controlplane

import (
	corev1 "k8s.io/api/core/v1"
)

// The annotations that set the times of a pod's emulated containers. A value is a number of seconds such as "0.5",
// or Never.
const (
	// StartSecondsAnnotation is the time from binding to Ready. The default is 0.3. With Never the pod stays Pending.
	StartSecondsAnnotation = "dev.slipway.dev/start-seconds"
	// StopSecondsAnnotation is the time that the containers need to stop after SIGTERM. The default is 1. A pod that needs more
	// than its grace period is killed at the end of it. With Never it always needs more.
	StopSecondsAnnotation = "dev.slipway.dev/stop-seconds"
	// RunSecondsAnnotation is the time from Ready to completion, as for the pods of a Job. Without it the pod does not complete.
	RunSecondsAnnotation = "dev.slipway.dev/run-seconds"

	// Never is the value for an event that does not happen.
	Never = "never"
)

// PodEnding is how the containers of a pod ended.
type PodEnding string

const (
	// Running means that the containers have not ended. The pod lives or is stopping, or it was deleted without grace, or
	// its machine lost power. If this is the last state that a watch saw, it is unknown whether the pod has stopped.
	Running PodEnding = "running"
	// Finished means that the containers stopped on their own, with exit code 0.
	Finished PodEnding = "finished"
	// Killed means that the containers were killed at the end of their grace period, with exit code 137.
	Killed PodEnding = "killed"
)

// DeterminePodEnding returns how a pod's containers ended, according to the pod's status.
func DeterminePodEnding(pod *corev1.Pod) PodEnding {
	ending := Finished
	if len(pod.Status.ContainerStatuses) == 0 {
		return Running
	}
	for _, container := range pod.Status.ContainerStatuses {
		switch terminated := container.State.Terminated; {
		case terminated == nil:
			return Running
		case terminated.ExitCode != 0:
			ending = Killed
		}
	}
	return ending
}
