package workload

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// objectKind tells how to create and read objects of one kind, and when such an object has settled.
type objectKind struct {
	resource string
	client   rest.Interface
	// isSettled reports whether an object has reached its desired state. Nil means at once.
	isSettled func(runtime.Object) bool
}

func kindOf(client kubernetes.Interface, object runtime.Object) (objectKind, error) {
	switch object.(type) {
	case *corev1.Namespace:
		return objectKind{"namespaces", client.CoreV1().RESTClient(), nil}, nil
	case *schedulingv1.PriorityClass:
		return objectKind{"priorityclasses", client.SchedulingV1().RESTClient(), nil}, nil
	case *corev1.Service:
		return objectKind{"services", client.CoreV1().RESTClient(), nil}, nil
	case *autoscalingv2.HorizontalPodAutoscaler:
		return objectKind{"horizontalpodautoscalers", client.AutoscalingV2().RESTClient(), nil}, nil
	case *corev1.Pod:
		return objectKind{"pods", client.CoreV1().RESTClient(), isPodSettled}, nil
	case *appsv1.Deployment:
		return objectKind{"deployments", client.AppsV1().RESTClient(), isDeploymentSettled}, nil
	case *appsv1.ReplicaSet:
		return objectKind{"replicasets", client.AppsV1().RESTClient(), isReplicaSetSettled}, nil
	case *corev1.ReplicationController:
		return objectKind{"replicationcontrollers", client.CoreV1().RESTClient(), isReplicationControllerSettled}, nil
	case *appsv1.StatefulSet:
		return objectKind{"statefulsets", client.AppsV1().RESTClient(), isStatefulSetSettled}, nil
	case *appsv1.DaemonSet:
		return objectKind{"daemonsets", client.AppsV1().RESTClient(), isDaemonSetSettled}, nil
	case *batchv1.Job:
		return objectKind{"jobs", client.BatchV1().RESTClient(), isJobSettled}, nil
	case *policyv1.PodDisruptionBudget:
		return objectKind{"poddisruptionbudgets", client.PolicyV1().RESTClient(), isPDBSettled}, nil
	}
	return objectKind{}, fmt.Errorf("%T is not supported by this package", object)
}

// Create creates the objects in the given order. The creation of a pod may be refused until its namespace has the
// default ServiceAccount. Create retries it.
func Create(ctx context.Context, client kubernetes.Interface, objects ...runtime.Object) error {
	for _, object := range objects {
		kind, err := kindOf(client, object)
		if err != nil {
			return err
		}
		named, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		request := kind.client.Post().NamespaceIfScoped(named.GetNamespace(), named.GetNamespace() != "").
			Resource(kind.resource).VersionedParams(&metav1.CreateOptions{}, scheme.ParameterCodec).Body(object)
		if err := retryWithoutServiceAccount(ctx, func() error { return request.Do(ctx).Error() }); err != nil {
			return fmt.Errorf("creating %s %s: %w", kind.resource, named.GetName(), err)
		}
	}
	return nil
}

// accountRetryInterval is the time between two attempts to create a pod in a namespace that has no ServiceAccount
// yet.
const accountRetryInterval = 100 * time.Millisecond

// retryWithoutServiceAccount calls create again while the API server refuses a pod for lack of a ServiceAccount. A
// controller creates the ServiceAccount of a new namespace. The API server waits one or two seconds for it, but a
// busy machine may need longer.
func retryWithoutServiceAccount(ctx context.Context, create func() error) error {
	for {
		err := create()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "error looking up service account") {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(accountRetryInterval):
		}
	}
}

// AwaitSettled waits until the objects given to Create have settled. A controller has settled when all its pods are
// Ready, a Job also when its pods have completed. A PodDisruptionBudget has settled when it has as many healthy pods
// as it requires.
func AwaitSettled(ctx context.Context, client kubernetes.Interface, objects ...runtime.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, object := range objects {
		kind, err := kindOf(client, object)
		if err != nil {
			return err
		}
		if kind.isSettled == nil {
			continue
		}
		named, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		group.Go(func() error {
			selector := fields.OneTermEqualSelector(metav1.ObjectNameField, named.GetName())
			lw := cache.NewListWatchFromClient(kind.client, kind.resource, named.GetNamespace(), selector)
			_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(lw, client), object, nil,
				func(event watch.Event) (bool, error) {
					return event.Type != watch.Deleted && kind.isSettled(event.Object), nil
				})
			if err != nil {
				return fmt.Errorf("waiting for %s %s/%s to settle: %w", kind.resource, named.GetNamespace(),
					named.GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// CreateAndAwait creates the objects as Create does, and then waits as AwaitSettled does.
func CreateAndAwait(ctx context.Context, client kubernetes.Interface, objects ...runtime.Object) error {
	if err := Create(ctx, client, objects...); err != nil {
		return err
	}
	return AwaitSettled(ctx, client, objects...)
}

func isPodSettled(o runtime.Object) bool {
	for _, condition := range o.(*corev1.Pod).Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isDeploymentSettled(o runtime.Object) bool {
	d := o.(*appsv1.Deployment)
	want := *d.Spec.Replicas
	return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas == want &&
		d.Status.UpdatedReplicas == want && d.Status.ReadyReplicas == want
}

func isReplicaSetSettled(o runtime.Object) bool {
	rs := o.(*appsv1.ReplicaSet)
	want := *rs.Spec.Replicas
	return rs.Status.ObservedGeneration >= rs.Generation && rs.Status.Replicas == want && rs.Status.ReadyReplicas == want
}

func isReplicationControllerSettled(o runtime.Object) bool {
	rc := o.(*corev1.ReplicationController)
	want := *rc.Spec.Replicas
	return rc.Status.ObservedGeneration >= rc.Generation && rc.Status.Replicas == want && rc.Status.ReadyReplicas == want
}

func isStatefulSetSettled(o runtime.Object) bool {
	s := o.(*appsv1.StatefulSet)
	want := *s.Spec.Replicas
	return s.Status.ObservedGeneration >= s.Generation && s.Status.Replicas == want && s.Status.ReadyReplicas == want
}

// isDaemonSetSettled reports whether all pods of a DaemonSet are Ready. It requires at least one pod, because the
// desired number is 0 until the controller has run.
func isDaemonSetSettled(o runtime.Object) bool {
	d := o.(*appsv1.DaemonSet)
	want := d.Status.DesiredNumberScheduled
	return d.Status.ObservedGeneration >= d.Generation && want > 0 && d.Status.NumberReady == want
}

func isJobSettled(o runtime.Object) bool {
	j := o.(*batchv1.Job)
	ready := j.Status.Succeeded
	if j.Status.Ready != nil {
		ready += *j.Status.Ready
	}
	return ready >= *j.Spec.Parallelism
}

func isPDBSettled(o runtime.Object) bool {
	b := o.(*policyv1.PodDisruptionBudget)
	return b.Status.ObservedGeneration >= b.Generation && b.Status.ExpectedPods > 0 &&
		b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}
