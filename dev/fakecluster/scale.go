package fakecluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controllerManager is the field manager of the emulated controllers.
const controllerManager = "kube-controller-manager"

// sizeField returns the name of the spec's field that sets the size of an object, and the field's value. It returns ""
// for a kind without such a field.
func sizeField(o client.Object) (name string, value *int32) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return "replicas", o.Spec.Replicas
	case *appsv1.ReplicaSet:
		return "replicas", o.Spec.Replicas
	case *autoscalingv2.HorizontalPodAutoscaler:
		return "minReplicas", o.Spec.MinReplicas
	}
	return "", nil
}

// recordSizeManager sets the default of an unset size, and the managedFields of a new state. Of all fields, they have only
// the size of the object: who changed it last, as an update.
func recordSizeManager(before, after client.Object, manager, subresource string) {
	if hpa, ok := after.(*autoscalingv2.HorizontalPodAutoscaler); ok && hpa.Spec.MinReplicas == nil {
		hpa.Spec.MinReplicas = new(int32(1))
	}
	name, is := sizeField(after)
	if name == "" {
		return
	}
	if before != nil {
		if _, was := sizeField(before); was == is || was != nil && is != nil && *was == *is {
			after.SetManagedFields(before.GetManagedFields())
			return
		}
	}
	gvk := appsv1.SchemeGroupVersion
	if name == "minReplicas" {
		gvk = autoscalingv2.SchemeGroupVersion
	}
	after.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: gvk.String(), Time: new(metav1.Now()),
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil, `{"f:spec":{"f:%s":{}}}`, name)}, Subresource: subresource,
	}})
}

// fieldManager returns the name of the request's client for managedFields. As in the API server, it defaults to the first
// part of the user agent.
func (r request) fieldManager() string {
	if name := r.URL.Query().Get("fieldManager"); name != "" {
		return name
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	return name
}

// resize sets the size of a Deployment or ReplicaSet, as a controller does.
func (c *Cluster) resize(k objectKey, o client.Object, size int32) {
	before := c.objects[k]
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = &size
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = &size
	}
	o.SetGeneration(o.GetGeneration() + 1)
	recordSizeManager(before, o, controllerManager, "scale")
	c.storeAndNotify(k, o)
}

// serveScale serves the subresource scale of a Deployment or ReplicaSet.
func (c *Cluster) serveScale(r request) (*autoscalingv1.Scale, error) {
	before, err := c.getObject(r.objectKey)
	if err != nil {
		return nil, err
	}
	scale, err := newScale(before)
	if err != nil || r.Method == http.MethodGet {
		return scale, err
	}
	raw, err := readBody(r)
	if err != nil {
		return nil, err
	}
	wanted := &autoscalingv1.Scale{}
	switch kind := types.PatchType(r.Header.Get("Content-Type")); {
	case r.Method == http.MethodPut:
	case r.Method == http.MethodPatch && (kind == types.MergePatchType || kind == types.StrategicMergePatchType):
		was, err := json.Marshal(scale)
		if err != nil {
			return nil, err
		}
		if raw, err = jsonpatch.MergePatch(was, raw); err != nil {
			return nil, err
		}
	default:
		return nil, apierrors.NewMethodNotSupported(r.resource.GroupResource(), r.Method+" "+string(kind))
	}
	if err := json.Unmarshal(raw, wanted); err != nil {
		return nil, err
	}
	if v := wanted.ResourceVersion; v != "" && v != before.GetResourceVersion() {
		return nil, apierrors.NewConflict(r.resource.GroupResource(), r.name, errors.New("the object has been modified"))
	}
	if wanted.UID != "" && wanted.UID != before.GetUID() {
		return nil, apierrors.NewConflict(r.resource.GroupResource(), r.name, fmt.Errorf("the UID is %s", before.GetUID()))
	}
	if wanted.Spec.Replicas == scale.Spec.Replicas {
		return scale, nil
	}
	after := before.DeepCopyObject().(client.Object)
	switch o := after.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = &wanted.Spec.Replicas
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = &wanted.Spec.Replicas
	}
	after.SetGeneration(before.GetGeneration() + 1)
	recordSizeManager(before, after, r.fieldManager(), "scale")
	return newScale(c.storeAndNotify(r.objectKey, after))
}

func newScale(o client.Object) (*autoscalingv1.Scale, error) {
	scale := &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: autoscalingv1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			CreationTimestamp: o.GetCreationTimestamp(),
		},
	}
	var selector *metav1.LabelSelector
	switch o := o.(type) {
	case *appsv1.Deployment:
		scale.Spec.Replicas, scale.Status.Replicas, selector = *o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector
	case *appsv1.ReplicaSet:
		scale.Spec.Replicas, scale.Status.Replicas, selector = *o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%T has no subresource scale", o))
	}
	scale.Status.Selector = metav1.FormatLabelSelector(selector)
	return scale, nil
}

// The annotations of a HorizontalPodAutoscaler that emulate its metrics.
const (
	// DesiredReplicasAnnotation is the size that the metrics call for. The default is 1.
	DesiredReplicasAnnotation = "dev.slipway.dev/desired-replicas"
	// ScaleDownAnnotation with controlplane.Never keeps the autoscaler from lowering the size, as a long stabilization window
	// does.
	ScaleDownAnnotation = "dev.slipway.dev/scale-down"
)

var autoscalers = autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers")

// reconcileAutoscaler sets the size of an autoscaler's Deployment to the desired size, within the autoscaler's limits.
func (c *Cluster) reconcileAutoscaler(k objectKey, hpa *autoscalingv2.HorizontalPodAutoscaler) {
	target := objectKey{deployments, k.namespace, hpa.Spec.ScaleTargetRef.Name}
	d, ok := c.objects[target].(*appsv1.Deployment)
	if !ok {
		return
	}
	current, desired := *d.Spec.Replicas, int32(1)
	if text := hpa.Annotations[DesiredReplicasAnnotation]; text != "" {
		if _, err := fmt.Sscan(text, &desired); err != nil {
			panic(fmt.Sprintf("HorizontalPodAutoscaler %s: %s is %q: want a number", k.name, DesiredReplicasAnnotation, text))
		}
	}
	if desired < current && hpa.Annotations[ScaleDownAnnotation] == "never" {
		desired = current
	}
	desired = min(max(desired, *hpa.Spec.MinReplicas), hpa.Spec.MaxReplicas)
	if desired != current {
		c.resize(target, d.DeepCopy(), desired)
	}
	status := autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: new(hpa.Generation), CurrentReplicas: d.Status.Replicas, DesiredReplicas: desired,
	}
	if was := hpa.Status; was.ObservedGeneration == nil || *was.ObservedGeneration != hpa.Generation ||
		was.CurrentReplicas != status.CurrentReplicas || was.DesiredReplicas != desired {
		hpa.Status = status
		c.storeAndNotify(k, hpa)
	}
}
