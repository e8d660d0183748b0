package kubeapi

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// The types of lifecycle.k8s.io/v1alpha1, of Kubernetes 1.37 with the feature gate EvictionRequestAPI (KEP-4563,
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/4563-eviction-request-api).

// The values of EvictionRequestSpec.Intent.
const (
	IntentEviction  = "Eviction"
	IntentWithdrawn = "Withdrawn"
)

// The values of TargetResponder.State.
const (
	ResponderInactive    = "Inactive"
	ResponderActive      = "Active"
	ResponderInterrupted = "Interrupted"
	ResponderCanceled    = "Canceled"
	ResponderCompleted   = "Completed"
)

// ImperativeEvictor is the last responder of every pod. It calls the eviction API, and comes with Kubernetes.
const ImperativeEvictor = "imperative-eviction.k8s.io/evictor"

// EvictionResponder holds the fields of corev1.EvictionResponder.
type EvictionResponder struct {
	Name     string `json:"name"`
	Priority int32  `json:"priority"`
}

// EvictionRequest holds the fields of lifecyclev1alpha1.EvictionRequest that are used.
type EvictionRequest struct {
	ObjectMeta `json:"metadata"`

	Spec   EvictionRequestSpec   `json:"spec"`
	Status EvictionRequestStatus `json:"status,omitzero"`
}

// EvictionRequestSpec holds the fields of lifecyclev1alpha1.EvictionRequestSpec.
type EvictionRequestSpec struct {
	Target    EvictionTarget `json:"target"`
	Requester string         `json:"requester"`
	Intent    string         `json:"intent"`
}

// EvictionTarget holds the fields of lifecyclev1alpha1.EvictionTarget. Only pods can be evicted in v1alpha1.
type EvictionTarget struct {
	Pod struct {
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"pod"`
}

// EvictionRequestStatus holds the fields of lifecyclev1alpha1.EvictionRequestStatus that are read.
type EvictionRequestStatus struct {
	Conditions         []Condition `json:"conditions,omitempty"`
	ObservedGeneration int64       `json:"observedGeneration,omitempty"`
}

// Eviction holds the fields of lifecyclev1alpha1.Eviction that are read. The controller of EvictionRequests creates one
// for each pod, and the responders write their progress to it. It is not the object of the pods' eviction subresource.
type Eviction struct {
	ObjectMeta `json:"metadata"`

	Spec struct {
		Target EvictionTarget `json:"target"`
	} `json:"spec"`
	Status struct {
		Conditions       []Condition       `json:"conditions,omitempty"`
		TargetResponders []TargetResponder `json:"targetResponders,omitempty"`
		Responders       []ResponderStatus `json:"responders,omitempty"`
	} `json:"status"`
}

// TargetResponder holds the fields of lifecyclev1alpha1.TargetResponder. At most one responder is Active.
type TargetResponder struct {
	Name     string `json:"name"`
	Priority int32  `json:"priority"`
	State    string `json:"state"`
}

// ResponderStatus holds the fields of lifecyclev1alpha1.ResponderStatus. The responder writes it while it is Active; the
// controller sets StartTime.
type ResponderStatus struct {
	Name                   string    `json:"name"`
	StartTime              time.Time `json:"startTime,omitzero"`
	HeartbeatTime          time.Time `json:"heartbeatTime,omitzero"`
	ExpectedCompletionTime time.Time `json:"expectedCompletionTime,omitzero"`
	CompletionTime         time.Time `json:"completionTime,omitzero"`
	Message                string    `json:"message,omitempty"`
}

// lifecyclePath returns the path of a resource's objects: all, those in one namespace, or one of them.
func lifecyclePath(resource, namespace string, name ...string) []string {
	path := []string{"apis", "lifecycle.k8s.io", "v1alpha1"}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	return append(append(path, resource), name...)
}

// WatchEvictionRequests lists and watches the EvictionRequests with labels that match a selector, see [ListAndWatch]. If
// the API server does not serve the API group, the error has code 404, and IsNotFound returns false.
func (c *Client) WatchEvictionRequests(ctx context.Context, labelSelector string, h Handler[EvictionRequest]) error {
	return ListAndWatch(ctx, c, WatchScope{Path: lifecyclePath("evictionrequests", ""), LabelSelector: labelSelector}, h)
}

// ListEvictionRequests lists the EvictionRequests with labels that match a selector.
func (c *Client) ListEvictionRequests(ctx context.Context, labelSelector string) ([]EvictionRequest, error) {
	items, _, err := listAllPages[EvictionRequest](ctx, c, WatchScope{Path: lifecyclePath("evictionrequests", ""), LabelSelector: labelSelector})
	return items, err
}

// WatchEvictions lists and watches the Evictions of a namespace with labels that match a selector, see [ListAndWatch].
func (c *Client) WatchEvictions(ctx context.Context, namespace, labelSelector string, h Handler[Eviction]) error {
	return ListAndWatch(ctx, c, WatchScope{Path: lifecyclePath("evictions", namespace), LabelSelector: labelSelector}, h)
}

// CreateEvictionRequest creates an EvictionRequest in the namespace of its metadata. If it exists, the error is a
// *StatusError with code 409 and reason AlreadyExists. With dryRun the API server checks the request without a change.
func (c *Client) CreateEvictionRequest(ctx context.Context, r EvictionRequest, dryRun bool) error {
	body := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		EvictionRequest
	}{"lifecycle.k8s.io/v1alpha1", "EvictionRequest", r}
	query := url.Values{}
	if dryRun {
		query.Set("dryRun", "All")
	}
	return c.sendAndDecode(ctx, request{method: http.MethodPost, path: lifecyclePath("evictionrequests", r.Namespace), query: query, body: body}, nil)
}

// SetEvictionRequestIntent sets spec.intent of an EvictionRequest.
func (c *Client) SetEvictionRequestIntent(ctx context.Context, namespace, name, intent string) error {
	patch := map[string]any{"spec": map[string]any{"intent": intent}}
	path := lifecyclePath("evictionrequests", namespace, name)
	return c.sendAndDecode(ctx, request{method: http.MethodPatch, path: path, contentType: mergePatch, body: patch}, nil)
}

// DeleteEvictionRequest deletes an EvictionRequest.
func (c *Client) DeleteEvictionRequest(ctx context.Context, namespace, name string) error {
	return c.sendAndDecode(ctx, request{method: http.MethodDelete, path: lifecyclePath("evictionrequests", namespace, name)}, nil)
}
