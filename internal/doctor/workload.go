package doctor

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// isFinished reports whether a pod has ended. Finished pods are not evicted.
func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// workloadOfPod returns the workload of a pod: its controller, or the Deployment of its ReplicaSet, derived from the
// ReplicaSet's name. Without a controller it returns the pod.
func workloadOfPod(p *corev1.Pod) Object {
	c := metav1.GetControllerOf(p)
	if c == nil {
		return Object{"Pod", p.Namespace, p.Name}
	}
	hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(c.Name, "-"+hash); ok && c.Kind == "ReplicaSet" && hash != "" {
		return Object{"Deployment", p.Namespace, name}
	}
	return Object{c.Kind, p.Namespace, c.Name}
}

// checkSingleReplica finds workloads that are unavailable while their only pod moves. It ignores managers without
// leader election, which must have one replica: two would act on the same nodes.
func checkSingleReplica(f *Facts) []Finding {
	var found []Finding
	add := func(kind string, m *metav1.ObjectMeta, replicas *int32, remedy string) {
		if ptr.Deref(replicas, 1) != 1 {
			return
		}
		found = append(found, Finding{
			Severity: Warning, Object: Object{kind, m.Namespace, m.Name},
			Message: "it has one replica: when its node is removed, it is unavailable until the new pod is ready", Remedy: remedy,
		})
	}
	alone := map[Object]bool{}
	for _, p := range f.partsOfKind(Manager) {
		alone[p.Object] = !p.isFlagEnabled(leaderElect)
	}
	for _, d := range f.Deployments {
		if alone[Object{"Deployment", d.Namespace, d.Name}] {
			continue
		}
		add("Deployment", &d.ObjectMeta, d.Spec.Replicas,
			"run 2 or more on different nodes (topologySpreadConstraints), unless this is intended")
	}
	for _, s := range f.StatefulSets {
		add("StatefulSet", &s.ObjectMeta, s.Spec.Replicas,
			"run 2 or more if it can be replicated, unless this is intended")
	}
	return found
}

// checkPodsWithoutController finds pods that nothing recreates.
func checkPodsWithoutController(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.Pods {
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		if mirror || isFinished(p) || metav1.GetControllerOf(p) != nil {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: Object{"Pod", p.Namespace, p.Name},
			Message: "no controller would recreate it: it blocks every voluntary drain of its node, and is lost with the instance",
			Remedy:  "move it to a Deployment, StatefulSet or Job; slipway drain --force deletes it permanently",
		})
	}
	return found
}
