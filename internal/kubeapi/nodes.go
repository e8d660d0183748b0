package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// GetNode reads one Node from the API server, never from a cache.
func (c *Client) GetNode(ctx context.Context, name string) (*Node, error) {
	return fetchObject[Node](ctx, c, request{method: http.MethodGet, path: []string{"api", "v1", "nodes", name}})
}

// PatchNode sends a JSON merge patch (RFC 7386). If the patch has metadata.resourceVersion and the node has changed
// since, the error is a conflict.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name}, contentType: mergePatch, body: patch,
	})
}

// PatchNodeWithManager is PatchNode with a field manager, for a later IsUnschedulableSetBy.
func (c *Client) PatchNodeWithManager(ctx context.Context, manager, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name}, query: url.Values{"fieldManager": {manager}},
		contentType: mergePatch, body: patch,
	})
}

// IsUnschedulableSetBy reports whether this field manager was the last to change spec.unschedulable of a Node
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
func (c *Client) IsUnschedulableSetBy(ctx context.Context, fieldManager, nodeName string) (bool, error) {
	n, err := fetchObject[managedNode](ctx, c, request{method: http.MethodGet, path: []string{"api", "v1", "nodes", nodeName}})
	if err != nil {
		return false, err
	}
	for _, m := range n.Metadata.ManagedFields {
		if m.Manager == fieldManager && m.FieldsV1.Spec.Unschedulable != nil {
			return true, nil
		}
	}
	return false, nil
}

// managedNode is the part of a Node that says who changed it.
type managedNode struct {
	Metadata struct {
		ObjectMeta

		ManagedFields []struct {
			Manager  string `json:"manager"`
			FieldsV1 struct {
				Spec struct {
					Unschedulable *struct{} `json:"f:unschedulable"`
				} `json:"f:spec"`
			} `json:"fieldsV1"`
		} `json:"managedFields"`
	} `json:"metadata"`
}

func (n *managedNode) GetMeta() *ObjectMeta { return &n.Metadata.ObjectMeta }

// PatchNodeStatus sends a strategic merge patch for the status. Conditions are merged by type, and a condition with
// "$patch": "delete" is removed.
func (c *Client) PatchNodeStatus(ctx context.Context, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name, "status"}, contentType: strategicMergePatch, body: patch,
	})
}

// DeleteNode deletes a Node if it still has this UID and resourceVersion, which are both required. Otherwise the
// error is a conflict. It reports whether the Node is gone already; a Node with finalizers is not.
func (c *Client) DeleteNode(ctx context.Context, name, uid, resourceVersion string) (gone bool, err error) {
	if uid == "" || resourceVersion == "" {
		return false, fmt.Errorf("delete node %s: UID %q, resourceVersion %q: want both of the node to delete", name, uid,
			resourceVersion)
	}
	body := deleteOptions{Preconditions: preconditions{UID: uid, ResourceVersion: resourceVersion}}
	var answer struct {
		Kind string `json:"kind"`
	}
	err = c.sendAndRead(ctx, request{method: http.MethodDelete, path: []string{"api", "v1", "nodes", name}, body: body}, func(r io.Reader) error {
		_ = json.NewDecoder(r).Decode(&answer) // an unreadable response does not prove that the Node is gone
		return nil
	})
	return err == nil && answer.Kind == "Status", err // for a Node with finalizers the API server returns the Node
}

// ListNodes lists the Nodes that match a label selector, such as "key=value".
func (c *Client) ListNodes(ctx context.Context, labelSelector string) ([]Node, error) {
	items, _, err := listAllPages[Node](ctx, c, WatchScope{Path: []string{"api", "v1", "nodes"}, LabelSelector: labelSelector})
	return items, err
}

// WatchNode lists and watches one Node by name; see Follow. Since is the resourceVersion of a known state; empty
// reads the Node first.
func (c *Client) WatchNode(ctx context.Context, name, since string, h Handler[Node]) error {
	return ListAndWatch(ctx, c, WatchScope{
		Path:            []string{"api", "v1", "nodes"},
		FieldSelector:   "metadata.name=" + name,
		ResourceVersion: since,
	}, h)
}
