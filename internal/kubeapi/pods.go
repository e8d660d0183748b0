package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// podScope selects the pods that are bound to one node. The API server has an index for this field selector.
func podScope(node string) WatchScope {
	return WatchScope{Path: []string{"api", "v1", "pods"}, FieldSelector: "spec.nodeName=" + node}
}

// podListTimeout is the first timeout of the list that a drain begins with. A notice may give 30 s, and a proxy or an API server
// may never answer the list. The list is small, and the API server answers it from its cache.
const podListTimeout = 5 * time.Second

// WatchPodsOnNode lists and watches the pods that are bound to one node, see [ListAndWatch]. The first list may be
// slightly outdated.
func (c *Client) WatchPodsOnNode(ctx context.Context, node string, h Handler[Pod]) error {
	s := podScope(node)
	s.AllowCachedList, s.ListTimeout = true, podListTimeout
	return ListAndWatch(ctx, c, s, h)
}

// ListPodsOnNode returns the pods that are bound to one node now, even if the Node does not exist.
func (c *Client) ListPodsOnNode(ctx context.Context, node string) ([]Pod, error) {
	items, _, err := listAllPages[Pod](ctx, c, podScope(node))
	return items, err
}

// PodRemoval selects one pod to evict or delete, and the options of the request.
type PodRemoval struct {
	Namespace, Name string
	// UID is required, as a precondition. For a pod of the same name with another UID the error is a conflict.
	UID string
	// GracePeriodSeconds is the grace period in seconds; nil is the pod's own.
	GracePeriodSeconds *int64
	// DryRun makes the API server check the request without a change.
	DryRun bool
}

type deleteOptions struct {
	GracePeriodSeconds *int64        `json:"gracePeriodSeconds,omitempty"`
	Preconditions      preconditions `json:"preconditions"`
	DryRun             []string      `json:"dryRun,omitempty"`
}

type preconditions struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// requireUID returns an error if the UID is empty. The API server would answer an empty UID with a conflict, as if the
// pod had been replaced.
func (r PodRemoval) requireUID() error {
	if r.UID == "" {
		return fmt.Errorf("pod %s/%s: UID is empty: want the pod's metadata.uid", r.Namespace, r.Name)
	}
	return nil
}

func (r PodRemoval) toDeleteOptions() deleteOptions {
	o := deleteOptions{GracePeriodSeconds: r.GracePeriodSeconds, Preconditions: preconditions{UID: r.UID}}
	if r.DryRun {
		o.DryRun = []string{"All"}
	}
	return o
}

// EvictPod evicts a pod. The API server respects PodDisruptionBudgets
// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/). If a PodDisruptionBudget allows no
// disruption, the error has code 429 and a cause DisruptionBudget. If several PodDisruptionBudgets select the pod, the
// error has code 500.
func (c *Client) EvictPod(ctx context.Context, r PodRemoval) error {
	body := struct {
		APIVersion    string        `json:"apiVersion"`
		Kind          string        `json:"kind"`
		Metadata      ObjectMeta    `json:"metadata"`
		DeleteOptions deleteOptions `json:"deleteOptions"`
	}{"policy/v1", "Eviction", ObjectMeta{Name: r.Name, Namespace: r.Namespace}, r.toDeleteOptions()}
	if err := r.requireUID(); err != nil {
		return fmt.Errorf("evict: %w", err)
	}
	path := []string{"api", "v1", "namespaces", r.Namespace, "pods", r.Name, "eviction"}
	return c.sendAndDecode(ctx, request{method: http.MethodPost, path: path, body: body}, nil)
}

// DeletePod deletes a pod, regardless of PodDisruptionBudgets. For a terminating pod it can only shorten the grace
// period.
func (c *Client) DeletePod(ctx context.Context, r PodRemoval) error {
	if err := r.requireUID(); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	path := []string{"api", "v1", "namespaces", r.Namespace, "pods", r.Name}
	return c.sendAndDecode(ctx, request{method: http.MethodDelete, path: path, body: r.toDeleteOptions()}, nil)
}

// PodDisruption describes why a pod will be deleted, for its condition DisruptionTarget.
type PodDisruption struct {
	Namespace, Name string
	// UID is required. For a pod of the same name with another UID the error is a conflict.
	UID             string
	Reason, Message string
	At              time.Time
}

// SetDisruptionTarget sets the pod condition DisruptionTarget, as the eviction API does
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions). If the pod is not
// deleted within 2 minutes, the disruption controller removes the condition.
func (c *Client) SetDisruptionTarget(ctx context.Context, d PodDisruption) error {
	if d.UID == "" {
		return fmt.Errorf("condition DisruptionTarget: pod %s/%s: UID is empty: want the pod's metadata.uid",
			d.Namespace, d.Name)
	}
	patch := map[string]any{
		"metadata": map[string]any{"uid": d.UID},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": "DisruptionTarget", "status": "True", "reason": d.Reason, "message": d.Message,
			"lastTransitionTime": d.At.UTC().Truncate(time.Second),
		}}},
	}
	path := []string{"api", "v1", "namespaces", d.Namespace, "pods", d.Name, "status"}
	return c.sendAndDecode(ctx, request{method: http.MethodPatch, path: path, contentType: strategicMergePatch, body: patch}, nil)
}

// WatchPodDisruptionBudgets lists and watches the PodDisruptionBudgets of a namespace, see [ListAndWatch].
func (c *Client) WatchPodDisruptionBudgets(ctx context.Context, namespace string, h Handler[PodDisruptionBudget]) error {
	path := []string{"apis", "policy", "v1", "namespaces", namespace, "poddisruptionbudgets"}
	return ListAndWatch(ctx, c, WatchScope{Path: path}, h)
}
