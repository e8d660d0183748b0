package kubeapi

import (
	"context"
	"fmt"
	"net/http"
)

// GetNode reads one Node from the API server, never from a cache.
func (c *Client) GetNode(ctx context.Context, name string) (*Node, error) {
	var n Node
	err := c.do(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "nodes", name}}, &n)
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// PatchNode sends a JSON merge patch (RFC 7386). A patch that holds metadata.resourceVersion is refused with a
// conflict when the node has changed since.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte) (*Node, error) {
	return c.patchNode(ctx, mergePatch, patch, "api", "v1", "nodes", name)
}

// PatchNodeStatus sends a strategic merge patch for the status: conditions are merged by type, and one with
// "$patch": "delete" is removed.
func (c *Client) PatchNodeStatus(ctx context.Context, name string, patch []byte) (*Node, error) {
	return c.patchNode(ctx, strategicMergePatch, patch, "api", "v1", "nodes", name, "status")
}

func (c *Client) patchNode(ctx context.Context, contentType string, patch []byte, path ...string) (*Node, error) {
	var n Node
	r := request{method: http.MethodPatch, path: path, contentType: contentType, body: patch}
	if err := c.do(ctx, r, &n); err != nil {
		return nil, err
	}
	return &n, nil
}

// DeleteNode deletes a Node if it still has this UID and resourceVersion: another node of the same name, or one that
// changed since it was read, answers a conflict. Both must be given.
func (c *Client) DeleteNode(ctx context.Context, name, uid, resourceVersion string) error {
	if uid == "" || resourceVersion == "" {
		return fmt.Errorf("deletion of node %s: UID %q, resourceVersion %q: want both of the node that is meant", name, uid,
			resourceVersion)
	}
	body := deleteOptions{Preconditions: preconditions{UID: uid, ResourceVersion: resourceVersion}}
	return c.do(ctx, request{method: http.MethodDelete, path: []string{"api", "v1", "nodes", name}, body: body}, nil)
}

// ListNodes lists the Nodes that match a label selector, such as "key=value".
func (c *Client) ListNodes(ctx context.Context, labelSelector string) ([]Node, error) {
	items, _, err := listAll[Node](ctx, c, Scope{Path: []string{"api", "v1", "nodes"}, LabelSelector: labelSelector})
	return items, err
}

// FollowNode follows one Node by name; see Follow. Since is the resourceVersion of a state of it that is known already;
// empty has the Node read first.
func (c *Client) FollowNode(ctx context.Context, name, since string, h Handler[Node]) error {
	return Follow(ctx, c, Scope{
		Path:          []string{"api", "v1", "nodes"},
		FieldSelector: "metadata.name=" + name,
		Since:         since,
	}, h)
}
