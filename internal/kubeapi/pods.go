package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// podsOn are the pods bound to one node, by the field selector that the API server indexes.
func podsOn(node string) Scope {
	return Scope{Path: []string{"api", "v1", "pods"}, FieldSelector: "spec.nodeName=" + node}
}

// FollowPodsOn follows the pods bound to one node; see Follow. What is first told may be a little old.
func (c *Client) FollowPodsOn(ctx context.Context, node string, h Handler[Pod]) error {
	s := podsOn(node)
	s.Cached = true
	return Follow(ctx, c, s, h)
}

// ListPodsOn lists the pods bound to one node at this moment, whether there is a Node of that name or not.
func (c *Client) ListPodsOn(ctx context.Context, node string) ([]Pod, error) {
	items, _, err := listAll[Pod](ctx, c, podsOn(node))
	return items, err
}

// Removal says which pod to remove and how.
type Removal struct {
	Namespace, Name string
	// UID is the precondition, and must be given: a pod of the same name with another UID is not touched and answers a
	// conflict.
	UID string
	// Grace in seconds; nil is the pod's own.
	Grace *int64
	// DryRun makes the API server check everything and change nothing.
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

// check refuses an empty UID here: the API server would answer it with a conflict, as if the pod had been replaced.
func (r Removal) check() error {
	if r.UID == "" {
		return fmt.Errorf("pod %s/%s: UID is empty: want the one of the pod that is meant", r.Namespace, r.Name)
	}
	return nil
}

func (r Removal) options() deleteOptions {
	o := deleteOptions{GracePeriodSeconds: r.Grace, Preconditions: preconditions{UID: r.UID}}
	if r.DryRun {
		o.DryRun = []string{"All"}
	}
	return o
}

// Evict asks the API server to evict a pod, which honours PodDisruptionBudgets
// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/). A budget that allows no disruption
// answers 429 with a cause DisruptionBudget; several budgets on one pod answer 500.
func (c *Client) Evict(ctx context.Context, r Removal) error {
	body := struct {
		APIVersion    string        `json:"apiVersion"`
		Kind          string        `json:"kind"`
		Metadata      ObjectMeta    `json:"metadata"`
		DeleteOptions deleteOptions `json:"deleteOptions"`
	}{"policy/v1", "Eviction", ObjectMeta{Name: r.Name, Namespace: r.Namespace}, r.options()}
	if err := r.check(); err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	path := []string{"api", "v1", "namespaces", r.Namespace, "pods", r.Name, "eviction"}
	return c.do(ctx, request{method: http.MethodPost, path: path, body: body}, nil)
}

// DeletePod deletes a pod, which no PodDisruptionBudget prevents. On a pod that is terminating already it can only
// shorten the grace.
func (c *Client) DeletePod(ctx context.Context, r Removal) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("deletion: %w", err)
	}
	path := []string{"api", "v1", "namespaces", r.Namespace, "pods", r.Name}
	return c.do(ctx, request{method: http.MethodDelete, path: path, body: r.options()}, nil)
}

// Disruption is why a pod is about to be deleted.
type Disruption struct {
	Namespace, Name string
	// UID must be given: a pod of the same name with another UID is not touched and answers a conflict.
	UID             string
	Reason, Message string
	At              time.Time
}

// SetDisruptionTarget sets the pod condition DisruptionTarget, as the eviction API does
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions). If the pod is not deleted
// within two minutes the disruption controller takes it back.
func (c *Client) SetDisruptionTarget(ctx context.Context, d Disruption) error {
	if d.UID == "" {
		return fmt.Errorf("condition DisruptionTarget: pod %s/%s: UID is empty: want the one of the pod that is meant",
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
	return c.do(ctx, request{method: http.MethodPatch, path: path, contentType: strategicMergePatch, body: patch}, nil)
}

// FollowBudgets follows the PodDisruptionBudgets of a namespace; see Follow.
func (c *Client) FollowBudgets(ctx context.Context, namespace string, h Handler[PodDisruptionBudget]) error {
	path := []string{"apis", "policy", "v1", "namespaces", namespace, "poddisruptionbudgets"}
	return Follow(ctx, c, Scope{Path: path}, h)
}
