package doctor

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// noon is the time of the API server in these tests.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// newEmptyCluster returns a cluster without installation and without findings.
func newEmptyCluster() *Facts {
	return &Facts{Server: "v1.36.3", Clock: Clock{Server: noon, Local: noon}, ReadErrors: map[Reading]error{}}
}

// newInstallation returns a complete installation on one Azure node, without findings.
func newInstallation() *Facts {
	f := newEmptyCluster()
	f.Nodes = []*corev1.Node{newAzureNode("node-a")}
	f.DaemonSets = []*appsv1.DaemonSet{newAgentDaemonSet()}
	f.Deployments = []*appsv1.Deployment{newManagerDeployment()}
	f.Pods = []*corev1.Pod{newAgentPod("node-a", true)}
	f.LeaderLeases = map[Key]*coordinationv1.Lease{{"slipway", "slipway-manager"}: newLease("slipway-manager", "manager-1", noon)}
	f.NodeGroups = nil
	wanted, err := ownCRDs()
	if err != nil {
		panic(err) // the CRDs are part of this build
	}
	f.CRDs = newEstablishedCRDs(wanted)
	return f
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func newAzureNode(name string) *corev1.Node {
	n := newNode(name)
	n.Spec.ProviderID = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines/0"
	return n
}

func addTaint(n *corev1.Node, key string, effect corev1.TaintEffect) *corev1.Node {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	return n
}

func newTemplate(image string, args ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image, Args: args}}}}
}

func newAgentDaemonSet() *appsv1.DaemonSet {
	t := newTemplate("example.com/x/slipway-agent:v1@sha256:0123", "--listen=:9818")
	t.Spec.ServiceAccountName = "slipway-agent"
	t.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	t.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "slipway-agent"}, Spec: appsv1.DaemonSetSpec{Template: t},
	}
}

func newManagerDeployment() *appsv1.Deployment {
	t := newTemplate("example.com/slipway:v1", "manager", "--listen=:9819")
	t.Spec.ServiceAccountName = "slipway-manager"
	d := newDeployment("slipway", "slipway-manager", 2)
	d.Spec.Template, d.Status.AvailableReplicas = t, 2
	return d
}

func newDeployment(namespace, name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Template: newTemplate("example.com/app")},
	}
}

func newAgentPod(on string, ready bool) *corev1.Pod {
	p := newPod("slipway", "slipway-agent-"+on, nil)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "slipway-agent", Controller: new(true)}}
	p.Spec.NodeName = on
	p.Spec.Containers = []corev1.Container{{ReadinessProbe: &corev1.Probe{}}}
	p.Status.StartTime = &metav1.Time{Time: noon.Add(-time.Hour)}
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	if ready {
		p.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	return p
}

func newPod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// newReplica returns a pod of the Deployment app.
func newReplica(name, app string) *corev1.Pod {
	p := newPod("shop", name, map[string]string{"app": app, "pod-template-hash": "5d5"})
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: app + "-5d5", Controller: new(true)}}
	return p
}

func newPDB(name, app string, least, most *intstr.IntOrString) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: least, MaxUnavailable: most, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
}

// setPDBStatus sets the status that the disruption controller computes.
func setPDBStatus(b *policyv1.PodDisruptionBudget, healthy, desired, expected, allowed int32) *policyv1.PodDisruptionBudget {
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: 1, CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: expected, DisruptionsAllowed: allowed,
	}
	return b
}

func newLease(name, holder string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: renewed}},
	}
}
