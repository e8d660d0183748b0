package kubeapi

import (
	"context"
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

// ListNodes lists the Nodes that match a label selector, such as "key=value".
func (c *Client) ListNodes(ctx context.Context, labelSelector string) ([]Node, error) {
	items, _, err := listAll[Node](ctx, c, Scope{Path: []string{"api", "v1", "nodes"}, LabelSelector: labelSelector})
	return items, err
}

// FollowNode follows one Node by name; see Follow.
func (c *Client) FollowNode(ctx context.Context, name string, h Handler[Node]) error {
	return Follow(ctx, c, Scope{
		Path:          []string{"api", "v1", "nodes"},
		FieldSelector: "metadata.name=" + name,
	}, h)
}
