package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ObjectRef names one object of a kind that [Client.GetWorkload], [Client.GetHorizontalPodAutoscaler] or
// [Client.GetScaledObject] reads.
type ObjectRef struct {
	APIVersion, Kind, Namespace, Name string
}

// resourceNames maps each kind that this package reads to the name of its resource.
var resourceNames = map[string]string{
	"Deployment":              "deployments",
	"ReplicaSet":              "replicasets",
	"ReplicationController":   "replicationcontrollers",
	"Rollout":                 "rollouts",
	"CloneSet":                "clonesets",
	"HorizontalPodAutoscaler": "horizontalpodautoscalers",
	"ScaledObject":            "scaledobjects",
}

func (r ObjectRef) path(subresource ...string) ([]string, error) {
	group, version, _ := strings.Cut(r.APIVersion, "/")
	root := []string{"apis", group, version}
	if r.Kind == "ReplicationController" && r.APIVersion == "v1" {
		root = []string{"api", "v1"}
	}
	resource, ok := resourceNames[r.Kind]
	if !ok || slices.Contains(root, "") {
		return nil, fmt.Errorf("%s %s/%s: apiVersion %q, kind %q: want a Deployment, ReplicaSet, ReplicationController, Rollout, "+
			"CloneSet, HorizontalPodAutoscaler or ScaledObject with its API group", r.Kind, r.Namespace, r.Name, r.APIVersion, r.Kind)
	}
	return slices.Concat(root, []string{"namespaces", r.Namespace, resource, r.Name}, subresource), nil
}

// ManagedMeta is [ObjectMeta] with the generation and the field managers.
type ManagedMeta struct {
	ObjectMeta

	Generation    int64          `json:"generation,omitempty"`
	ManagedFields []ManagedField `json:"managedFields,omitempty"`
}

// ManagedField holds the fields of metav1.ManagedFieldsEntry that are read.
type ManagedField struct {
	Manager  string `json:"manager"`
	FieldsV1 struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	} `json:"fieldsV1"`
}

// SpecFieldManagers returns the managers that have set spec.<field> to its present value, each once
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
func (m *ManagedMeta) SpecFieldManagers(field string) []string {
	var managers []string
	for _, f := range m.ManagedFields {
		if _, owns := f.FieldsV1.Spec["f:"+field]; owns && !slices.Contains(managers, f.Manager) {
			managers = append(managers, f.Manager)
		}
	}
	return managers
}

// Workload holds the fields of a Deployment, a ReplicaSet, a ReplicationController, an Argo Rollout or an OpenKruise CloneSet that are
// read.
type Workload struct {
	ManagedMeta `json:"metadata"`

	Spec   WorkloadSpec   `json:"spec"`
	Status WorkloadStatus `json:"status"`
}

// WorkloadSpec holds the fields of the spec of a [Workload] that are read.
type WorkloadSpec struct {
	Replicas *int32         `json:"replicas,omitempty"`
	Paused   bool           `json:"paused,omitempty"`
	Selector *LabelSelector `json:"selector,omitempty"`
	Strategy struct {
		Type string `json:"type,omitempty"` // a Rollout has none
	} `json:"strategy,omitzero"`

	// The others are fields of a CloneSet.
	VolumeClaimTemplates []struct{} `json:"volumeClaimTemplates,omitempty"`
	Lifecycle            struct {
		PreDelete *struct{} `json:"preDelete,omitempty"`
	} `json:"lifecycle,omitzero"`
	ScaleStrategy struct {
		PodsToDelete []string `json:"podsToDelete,omitempty"`
	} `json:"scaleStrategy,omitzero"`
	Template struct {
		Spec struct {
			TopologySpreadConstraints []TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
		} `json:"spec,omitzero"`
	} `json:"template,omitzero"`
}

// TopologySpreadConstraint holds the fields of corev1.TopologySpreadConstraint that are read.
type TopologySpreadConstraint struct {
	TopologyKey       string `json:"topologyKey"`
	WhenUnsatisfiable string `json:"whenUnsatisfiable"`
}

// WorkloadStatus holds the fields of the status of a [Workload] that are read. CurrentPodHash, StableRS and Abort are
// fields of a Rollout, CurrentRevision and UpdateRevision of a CloneSet.
type WorkloadStatus struct {
	// ObservedGeneration is a number, and for a Rollout a string.
	ObservedGeneration json.RawMessage `json:"observedGeneration,omitempty"`
	Replicas           int32           `json:"replicas,omitempty"`
	UpdatedReplicas    int32           `json:"updatedReplicas,omitempty"`
	ReadyReplicas      int32           `json:"readyReplicas,omitempty"`
	AvailableReplicas  int32           `json:"availableReplicas,omitempty"`
	CurrentPodHash     string          `json:"currentPodHash,omitempty"`
	StableRS           string          `json:"stableRS,omitempty"`
	Abort              bool            `json:"abort,omitempty"`
	CurrentRevision    string          `json:"currentRevision,omitempty"`
	UpdateRevision     string          `json:"updateRevision,omitempty"`
}

// replicationController is a ReplicationController. Its selector is a map, unlike that of a [Workload].
type replicationController struct {
	ManagedMeta `json:"metadata"`

	Spec struct {
		WorkloadSpec

		Selector map[string]string `json:"selector,omitempty"`
	} `json:"spec"`
	Status WorkloadStatus `json:"status"`
}

// HorizontalPodAutoscaler holds the fields of autoscalingv2.HorizontalPodAutoscaler that are read.
type HorizontalPodAutoscaler struct {
	ManagedMeta `json:"metadata"`

	Spec struct {
		ScaleTargetRef struct {
			APIVersion string `json:"apiVersion,omitempty"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicas *int32 `json:"minReplicas,omitempty"` // nil is 1
		MaxReplicas int32  `json:"maxReplicas"`
		Behavior    struct {
			ScaleDown struct {
				SelectPolicy string `json:"selectPolicy,omitempty"` // "Disabled" never lowers the size
			} `json:"scaleDown,omitzero"`
		} `json:"behavior,omitzero"`
	} `json:"spec"`
	Status struct {
		Conditions []Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

// ScaledObject holds the fields of a ScaledObject of KEDA (keda.sh/v1alpha1) that are read.
type ScaledObject struct {
	ManagedMeta `json:"metadata"`

	Spec struct {
		MinReplicaCount *int32 `json:"minReplicaCount,omitempty"` // nil is 0
		MaxReplicaCount *int32 `json:"maxReplicaCount,omitempty"` // nil is 100
	} `json:"spec"`
}

// EndpointSlice holds the fields of discoveryv1.EndpointSlice that are read.
type EndpointSlice struct {
	ObjectMeta `json:"metadata"`

	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint holds the fields of discoveryv1.Endpoint that are read.
type Endpoint struct {
	Conditions struct {
		Ready *bool `json:"ready,omitempty"` // nil is ready
	} `json:"conditions,omitzero"`
	TargetRef *ObjectReference `json:"targetRef,omitempty"`
}

// GetWorkload reads an object of a kind that [Workload] lists.
func (c *Client) GetWorkload(ctx context.Context, r ObjectRef) (*Workload, error) {
	if r.Kind != "ReplicationController" {
		return getObject[Workload](ctx, c, r)
	}
	rc, err := getObject[replicationController](ctx, c, r)
	if err != nil {
		return nil, err
	}
	w := &Workload{ManagedMeta: rc.ManagedMeta, Spec: rc.Spec.WorkloadSpec, Status: rc.Status}
	w.Spec.Selector = &LabelSelector{MatchLabels: rc.Spec.Selector}
	return w, nil
}

// GetHorizontalPodAutoscaler reads a HorizontalPodAutoscaler. The API version is autoscaling/v2.
func (c *Client) GetHorizontalPodAutoscaler(ctx context.Context, r ObjectRef) (*HorizontalPodAutoscaler, error) {
	return getObject[HorizontalPodAutoscaler](ctx, c, r)
}

// GetScaledObject reads a ScaledObject of KEDA.
func (c *Client) GetScaledObject(ctx context.Context, r ObjectRef) (*ScaledObject, error) {
	return getObject[ScaledObject](ctx, c, r)
}

func getObject[T any, P objectOf[T]](ctx context.Context, c *Client, r ObjectRef) (*T, error) {
	path, err := r.path()
	if err != nil {
		return nil, err
	}
	return fetchObject[T, P](ctx, c, request{method: http.MethodGet, path: path})
}

// ListHorizontalPodAutoscalers lists the HorizontalPodAutoscalers of a namespace.
func (c *Client) ListHorizontalPodAutoscalers(ctx context.Context, namespace string) ([]HorizontalPodAutoscaler, error) {
	path := []string{"apis", "autoscaling", "v2", "namespaces", namespace, "horizontalpodautoscalers"}
	items, _, err := listAllPages[HorizontalPodAutoscaler](ctx, c, WatchScope{Path: path})
	return items, err
}

// ListEndpointSlices lists the EndpointSlices of a namespace.
func (c *Client) ListEndpointSlices(ctx context.Context, namespace string) ([]EndpointSlice, error) {
	path := []string{"apis", "discovery.k8s.io", "v1", "namespaces", namespace, "endpointslices"}
	items, _, err := listAllPages[EndpointSlice](ctx, c, WatchScope{Path: path})
	return items, err
}

// SizeChange changes the size of one object, or the least size that an autoscaler gives it.
type SizeChange struct {
	Object ObjectRef
	// UID and ResourceVersion are required, as preconditions. If the object has changed since, the error is a conflict.
	UID, ResourceVersion string
	// Size is the new value. nil removes the field, and is allowed for SetMinSize only.
	Size *int32
	// FieldManager is stored in the object's managedFields.
	FieldManager string
}

func (s SizeChange) validate() error {
	if s.UID == "" || s.ResourceVersion == "" {
		return fmt.Errorf("size of %s %s/%s: UID %q, resourceVersion %q: want both of the object to change", s.Object.Kind,
			s.Object.Namespace, s.Object.Name, s.UID, s.ResourceVersion)
	}
	return nil
}

// SetReplicas sets spec.replicas of a [Workload] through its subresource scale.
func (c *Client) SetReplicas(ctx context.Context, s SizeChange) error {
	if err := s.validate(); err != nil {
		return err
	}
	if s.Size == nil {
		return fmt.Errorf("size of %s %s/%s: is nil: want a number", s.Object.Kind, s.Object.Namespace, s.Object.Name)
	}
	path, err := s.Object.path("scale")
	if err != nil {
		return err
	}
	type spec struct {
		Replicas int32 `json:"replicas"`
	}
	body := struct {
		APIVersion string     `json:"apiVersion"`
		Kind       string     `json:"kind"`
		Metadata   ObjectMeta `json:"metadata"`
		Spec       spec       `json:"spec"`
	}{"autoscaling/v1", "Scale", ObjectMeta{
		Name: s.Object.Name, Namespace: s.Object.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion,
	}, spec{*s.Size}}
	return c.sendAndDecode(ctx, request{method: http.MethodPut, path: path, query: url.Values{"fieldManager": {s.FieldManager}}, body: body}, nil)
}

// SetMinSize sets spec.minReplicas of a HorizontalPodAutoscaler, or spec.minReplicaCount of a ScaledObject.
func (c *Client) SetMinSize(ctx context.Context, s SizeChange) error {
	if err := s.validate(); err != nil {
		return err
	}
	path, err := s.Object.path()
	if err != nil {
		return err
	}
	field := "minReplicas"
	if s.Object.Kind == "ScaledObject" {
		field = "minReplicaCount"
	}
	patch := map[string]any{
		"metadata": ObjectMeta{UID: s.UID, ResourceVersion: s.ResourceVersion},
		"spec":     map[string]any{field: s.Size},
	}
	return c.sendAndDecode(ctx, request{
		method: http.MethodPatch, path: path, query: url.Values{"fieldManager": {s.FieldManager}}, contentType: mergePatch, body: patch,
	}, nil)
}

// AnnotationChange sets or removes one annotation of a pod.
type AnnotationChange struct {
	Namespace, Name string
	// UID and ResourceVersion are required, as preconditions. If the pod has changed since, the error is a conflict.
	UID, ResourceVersion string
	Key                  string
	Value                *string // nil removes the annotation
}

// SetPodAnnotation sets or removes one annotation of a pod.
func (c *Client) SetPodAnnotation(ctx context.Context, a AnnotationChange) error {
	if a.UID == "" || a.ResourceVersion == "" {
		return fmt.Errorf("annotation %s of pod %s/%s: UID %q, resourceVersion %q: want both of the pod to change", a.Key,
			a.Namespace, a.Name, a.UID, a.ResourceVersion)
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid": a.UID, "resourceVersion": a.ResourceVersion, "annotations": map[string]any{a.Key: a.Value},
	}}
	path := []string{"api", "v1", "namespaces", a.Namespace, "pods", a.Name}
	return c.sendAndDecode(ctx, request{method: http.MethodPatch, path: path, contentType: mergePatch, body: patch}, nil)
}

// GetPod reads one pod.
func (c *Client) GetPod(ctx context.Context, namespace, name string) (*Pod, error) {
	path := []string{"api", "v1", "namespaces", namespace, "pods", name}
	return fetchObject[Pod](ctx, c, request{method: http.MethodGet, path: path})
}

// ListPods returns the pods of a namespace with labels that match a selector, such as "key=value". An empty selector
// matches all pods.
func (c *Client) ListPods(ctx context.Context, namespace, labelSelector string) ([]Pod, error) {
	path := []string{"api", "v1", "namespaces", namespace, "pods"}
	items, _, err := listAllPages[Pod](ctx, c, WatchScope{Path: path, LabelSelector: labelSelector})
	return items, err
}

// WatchPods lists and watches the pods of a namespace with labels that match a selector, see [ListAndWatch].
func (c *Client) WatchPods(ctx context.Context, namespace, labelSelector string, h Handler[Pod]) error {
	path := []string{"api", "v1", "namespaces", namespace, "pods"}
	return ListAndWatch(ctx, c, WatchScope{Path: path, LabelSelector: labelSelector}, h)
}

// UnknownResult reports whether a request that failed may have been carried out: it has no response, or the response
// does not come from the API server's own decision.
func UnknownResult(err error) bool {
	e := ToStatusError(err)
	return err != nil && (e == nil || e.Code >= http.StatusInternalServerError)
}

// ReadyTime returns since when the pod is Ready. It returns false if the pod is not Ready.
func (p *Pod) ReadyTime() (since time.Time, ready bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.LastTransitionTime, c.Status == "True"
		}
	}
	return time.Time{}, false
}
