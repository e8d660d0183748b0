package controlplane

import (
	corev1 "k8s.io/api/core/v1"
)

// Annotations of a pod that say how long its containers take, each a number of seconds such as "0.5", or Never.
const (
	// StartSeconds is the time from being bound to a node to being Ready; 0.3 without the annotation. With Never the
	// pod stays Pending.
	StartSeconds = "dev.slipway.dev/start-seconds"
	// StopSeconds is the time that the containers need to stop once they were sent SIGTERM; 1 without the annotation.
	// A pod that needs more than the grace it is given is killed at the end of that. With Never only that ends it.
	StopSeconds = "dev.slipway.dev/stop-seconds"
	// RunSeconds is the time from being Ready to completing, as the pods of a Job do. Without it they run on.
	RunSeconds = "dev.slipway.dev/run-seconds"

	// Never is the value of these annotations for what does not happen.
	Never = "never"
)

// Ending is how a pod's containers ended.
type Ending string

const (
	// Running is the Ending of a pod whose containers have not ended: it lives, or is stopping, or was deleted without
	// grace, or its machine lost power. A watch whose last sight of a removed pod is this one has seen a pod that
	// nobody knows to have stopped.
	Running Ending = "running"
	// Finished is the Ending of a pod whose containers stopped by themselves, with exit code 0.
	Finished Ending = "finished"
	// Killed is the Ending of a pod whose containers were killed at the end of their grace period, with exit code 137.
	Killed Ending = "killed"
)

// EndingOf tells how the containers of a pod ended, from its status alone.
func EndingOf(pod *corev1.Pod) Ending {
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
