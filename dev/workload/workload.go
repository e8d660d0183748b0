// Package workload creates pods for the demo, the benchmarks and the tests on a real control plane. Real controllers
// manage the pods, but no containers run.
package workload

import (
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// AppLabel is the pod label with the name of the App. Controllers and PDBs select pods by this label.
const AppLabel = "app.kubernetes.io/name"

// image is the container image of all pods. It is never pulled, because no container runs.
const image = "registry.k8s.io/pause:3.10"

// App describes a set of equal pods. Its methods return the object that runs these pods. Name is required. Namespace
// defaults to "default", and Replicas to 1. Every other zero field means the default of Kubernetes.
type App struct {
	Namespace, Name string
	Replicas        int32
	// Labels and Annotations are set on the pods, Labels also on the object.
	Labels, Annotations map[string]string
	// PriorityClass is the name of a class, such as system-node-critical or one created by NewPriorityClass.
	PriorityClass string
	// GracePeriod is the termination grace period in whole seconds. Zero means Kubernetes' default, 30 seconds.
	GracePeriod time.Duration
	// StopSeconds, Start and Run are the times to stop, to become Ready and to complete. They are the values of
	// controlplane.StopSeconds, StartSeconds and RunSeconds: a number of seconds, or controlplane.Never.
	StopSeconds, StartSeconds, RunSeconds string
	// Node selects a node by its hostname label, so that scheduler and cordon still apply. NodeSelector adds to it.
	Node         string
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	// CPU and Memory are the requests of each pod. Zero means no request.
	CPU, Memory resource.Quantity
	// EmptyDir adds a volume with data that is lost with the pod.
	EmptyDir bool
	// MinAvailable and MaxUnavailable are for Budget. At most one may be set.
	MinAvailable, MaxUnavailable string
}

// Deployment returns a Deployment of the App's pods.
func (a App) Deployment() *appsv1.Deployment {
	replicas := a.replicas()
	return &appsv1.Deployment{
		ObjectMeta: a.meta(),
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: a.selector(), Template: a.template()},
	}
}

// ReplicaSet returns a ReplicaSet of the App's pods that no Deployment owns.
func (a App) ReplicaSet() *appsv1.ReplicaSet {
	replicas := a.replicas()
	return &appsv1.ReplicaSet{
		ObjectMeta: a.meta(),
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: a.selector(), Template: a.template()},
	}
}

// ReplicationController returns a ReplicationController of the App's pods.
func (a App) ReplicationController() *corev1.ReplicationController {
	replicas, template := a.replicas(), a.template()
	return &corev1.ReplicationController{
		ObjectMeta: a.meta(),
		Spec:       corev1.ReplicationControllerSpec{Replicas: &replicas, Selector: a.selector().MatchLabels, Template: &template},
	}
}

// Service returns a Service of the App's pods.
func (a App) Service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: a.meta(),
		Spec:       corev1.ServiceSpec{Selector: a.selector().MatchLabels, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// StatefulSet returns a StatefulSet of the App's pods. A replacement pod has the name of the pod that it replaces.
func (a App) StatefulSet() *appsv1.StatefulSet {
	replicas := a.replicas()
	return &appsv1.StatefulSet{
		ObjectMeta: a.meta(),
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: a.selector(), Template: a.template(), ServiceName: a.Name,
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}
}

// DaemonSet returns a DaemonSet with one pod of the App for each node that the node selector matches.
func (a App) DaemonSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: a.meta(),
		Spec:       appsv1.DaemonSetSpec{Selector: a.selector(), Template: a.template()},
	}
}

// Job returns a Job that runs the App's pods in parallel.
func (a App) Job() *batchv1.Job {
	replicas := a.replicas()
	template := a.template()
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{
		ObjectMeta: a.meta(),
		Spec:       batchv1.JobSpec{Parallelism: &replicas, Completions: &replicas, Template: template},
	}
}

// Pod returns one pod of the App that has no controller.
func (a App) Pod() *corev1.Pod {
	template := a.template()
	template.Namespace, template.Name = a.namespace(), a.Name
	return &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
}

// PodDisruptionBudget returns the PodDisruptionBudget of the App's pods. If the App sets neither MinAvailable nor
// MaxUnavailable, one pod may be unavailable.
func (a App) PodDisruptionBudget() *policyv1.PodDisruptionBudget {
	spec := policyv1.PodDisruptionBudgetSpec{Selector: a.selector()}
	switch {
	case a.MinAvailable != "":
		minAvailable := intstr.Parse(a.MinAvailable)
		spec.MinAvailable = &minAvailable
	case a.MaxUnavailable != "":
		maxUnavailable := intstr.Parse(a.MaxUnavailable)
		spec.MaxUnavailable = &maxUnavailable
	default:
		one := intstr.FromInt32(1)
		spec.MaxUnavailable = &one
	}
	return &policyv1.PodDisruptionBudget{ObjectMeta: a.meta(), Spec: spec}
}

// NewPriorityClass returns a PriorityClass. Pods with a higher value are more important.
func NewPriorityClass(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
}

// NewNamespace returns a namespace for a test's objects.
func NewNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func (a App) namespace() string {
	if a.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return a.Namespace
}

func (a App) replicas() int32 {
	if a.Replicas == 0 {
		return 1
	}
	return a.Replicas
}

func (a App) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: a.namespace(), Name: a.Name, Labels: a.labels()}
}

func (a App) labels() map[string]string {
	labels := map[string]string{AppLabel: a.Name}
	maps.Copy(labels, a.Labels)
	return labels
}

func (a App) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{AppLabel: a.Name}}
}

func (a App) template() corev1.PodTemplateSpec {
	annotations := map[string]string{}
	maps.Copy(annotations, a.Annotations)
	for key, value := range map[string]string{
		controlplane.StartSecondsAnnotation: a.StartSeconds, controlplane.StopSecondsAnnotation: a.StopSeconds, controlplane.RunSecondsAnnotation: a.RunSeconds,
	} {
		if value != "" {
			annotations[key] = value
		}
	}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: a.labels(), Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers:        []corev1.Container{a.container()},
			PriorityClassName: a.PriorityClass,
			NodeSelector:      a.nodeSelector(),
			Tolerations:       a.Tolerations,
		},
	}
	if a.GracePeriod != 0 {
		seconds := int64(a.GracePeriod / time.Second)
		template.Spec.TerminationGracePeriodSeconds = &seconds
	}
	if a.EmptyDir {
		template.Spec.Volumes = []corev1.Volume{{
			Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}}
	}
	return template
}

func (a App) container() corev1.Container {
	container := corev1.Container{Name: "app", Image: image}
	for name, quantity := range map[corev1.ResourceName]resource.Quantity{corev1.ResourceCPU: a.CPU, corev1.ResourceMemory: a.Memory} {
		if !quantity.IsZero() {
			if container.Resources.Requests == nil {
				container.Resources.Requests = corev1.ResourceList{}
			}
			container.Resources.Requests[name] = quantity
		}
	}
	if a.EmptyDir {
		container.VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	}
	return container
}

func (a App) nodeSelector() map[string]string {
	if a.Node == "" {
		return a.NodeSelector
	}
	selector := map[string]string{corev1.LabelHostname: a.Node}
	maps.Copy(selector, a.NodeSelector)
	return selector
}
