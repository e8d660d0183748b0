package kubeapi

import (
	"context"
	"net/http"
)

// CreateEvent creates a Kubernetes Event in the namespace of e.Metadata.
func (c *Client) CreateEvent(ctx context.Context, e Event) error {
	e.APIVersion, e.Kind = "v1", "Event"
	path := []string{"api", "v1", "namespaces", e.Metadata.Namespace, "events"}
	return c.sendAndDecode(ctx, request{method: http.MethodPost, path: path, body: e}, nil)
}
