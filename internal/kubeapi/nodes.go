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

// PatchNode sends a JSON merge patch (RFC 7386) for a Node. The error is a conflict if the patch has
// metadata.resourceVersion and the Node has changed since.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name}, contentType: mergePatch, body: patch,
	})
}

// PatchNodeWithManager does what PatchNode does, with a field manager. IsUnschedulableSetBy can later find this
// manager.
func (c *Client) PatchNodeWithManager(ctx context.Context, manager, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name}, query: url.Values{"fieldManager": {manager}},
		contentType: mergePatch, body: patch,
	})
}

// IsUnschedulableSetBy reports whether the given field manager was the last one to change a Node's spec.unschedulable
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

// managedNode holds the metadata of a Node that shows which field manager set spec.unschedulable.
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

// PatchNodeStatus sends a strategic merge patch for the status of a Node. The API server merges conditions by type, and
// removes a condition with "$patch": "delete".
func (c *Client) PatchNodeStatus(ctx context.Context, name string, patch []byte) (*Node, error) {
	return fetchObject[Node](ctx, c, request{
		method: http.MethodPatch, path: []string{"api", "v1", "nodes", name, "status"}, contentType: strategicMergePatch, body: patch,
	})
}

// DeleteNode deletes a Node that has the given UID and resourceVersion. Both are required. If the Node has changed or
// was replaced, the error is a conflict. gone is true if the Node no longer exists. A Node with finalizers still
// exists.
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

// ListNodes lists the Nodes with labels that match a selector, such as "key=value".
func (c *Client) ListNodes(ctx context.Context, labelSelector string) ([]Node, error) {
	items, _, err := listAllPages[Node](ctx, c, WatchScope{Path: []string{"api", "v1", "nodes"}, LabelSelector: labelSelector})
	return items, err
}

// WatchNode lists and watches one Node by name, see [ListAndWatch]. since is the resourceVersion of a known state. If
// since is empty, WatchNode reads the Node first.
func (c *Client) WatchNode(ctx context.Context, name, since string, h Handler[Node]) error {
	return ListAndWatch(ctx, c, WatchScope{
		Path:            []string{"api", "v1", "nodes"},
		FieldSelector:   "metadata.name=" + name,
		ResourceVersion: since,
	}, h)
}
