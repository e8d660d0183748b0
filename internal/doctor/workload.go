package doctor

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// finished pods are not evicted, and nothing waits for them.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ownerOf is the workload that a pod is of: its controller, or the Deployment behind a ReplicaSet, which is known by the
// name that Deployments give theirs; the pod itself where it has none.
func ownerOf(p *corev1.Pod) Object {
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

// singleReplica finds workloads that are away while their one pod moves. A manager that competes with nobody has to be one: two
// would act on the same nodes.
func singleReplica(f *Facts) []Finding {
	var found []Finding
	add := func(kind string, m *metav1.ObjectMeta, replicas *int32, remedy string) {
		if ptr.Deref(replicas, 1) != 1 {
			return
		}
		found = append(found, Finding{
			Severity: Warning, Object: Object{kind, m.Namespace, m.Name},
			Message: "it has one replica: when its node leaves, it is away until the new pod is ready", Remedy: remedy,
		})
	}
	alone := map[Object]bool{}
	for _, p := range f.installed(Manager) {
		alone[p.Object] = !p.has(leaderElect)
	}
	for _, d := range f.Deployments {
		if alone[Object{"Deployment", d.Namespace, d.Name}] {
			continue
		}
		add("Deployment", &d.ObjectMeta, d.Spec.Replicas,
			"run 2 or more, on different nodes (topologySpreadConstraints), if it must not be away; else leave it so")
	}
	for _, s := range f.StatefulSets {
		add("StatefulSet", &s.ObjectMeta, s.Spec.Replicas,
			"run 2 or more if it can be replicated and must not be away; else leave it so")
	}
	return found
}

// podWithoutController finds pods that nothing creates anew.
func podWithoutController(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.Pods {
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		if mirror || finished(p) || metav1.GetControllerOf(p) != nil {
			continue
		}
		found = append(found, Finding{
			Severity: Warning, Object: Object{"Pod", p.Namespace, p.Name},
			Message: "no controller would create it anew: it holds its node against every voluntary drain, and is lost with the machine",
			Remedy:  "put it into a Deployment, StatefulSet or Job; slipway drain --force evicts it for good",
		})
	}
	return found
}
