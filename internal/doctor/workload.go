package doctor

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
)

// isFinished reports whether a pod has ended. A drain does not evict such a pod.
func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// workloadOfPod returns the workload that a pod belongs to, which is its controller. For a ReplicaSet of a Deployment
// it returns the Deployment, which it derives from the ReplicaSet's name. For a pod without a controller it returns the
// pod.
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

// checkSingleReplica finds workloads that are unavailable while their only pod moves to another node. It ignores
// managers without leader election. These must have one replica, because two would act on the same nodes.
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

// checkPodsWithoutController finds pods that block voluntary drains because no controller would recreate them.
func checkPodsWithoutController(f *Facts) []Finding {
	// A protected pod blocks drains too when its protection ends, so the protection does not decide.
	policy := podrules.VoluntaryPolicy().WithAction(podrules.RuleProtected, podrules.Evict)
	var found []Finding
	for _, p := range f.Pods {
		facts := fromcorev1.PodFacts(p)
		if d := policy.Decide(&facts, f.serverTime()); d.Rule != podrules.RuleUnmanaged || d.Action != podrules.RefuseDrain {
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
