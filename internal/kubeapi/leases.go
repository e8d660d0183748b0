package kubeapi

import (
	"context"
	"net/http"
)

func leasePath(namespace string, name ...string) []string {
	return append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"}, name...)
}

// ListLeases lists the Leases of a namespace that match a label selector, such as "key=value".
func (c *Client) ListLeases(ctx context.Context, namespace, labelSelector string) ([]Lease, error) {
	items, _, err := listAllPages[Lease](ctx, c, WatchScope{Path: leasePath(namespace), LabelSelector: labelSelector})
	return items, err
}

// CreateLease creates a Lease in the namespace of its metadata. If it exists already, the error is a *StatusError
// with code 409 and reason AlreadyExists.
func (c *Client) CreateLease(ctx context.Context, l Lease) (*Lease, error) {
	return fetchObject[Lease](ctx, c, request{method: http.MethodPost, path: leasePath(l.Namespace), body: toTypedLease(l)})
}

// UpdateLease replaces a Lease. If metadata.resourceVersion is set and the Lease has changed since, the error is a
// conflict.
func (c *Client) UpdateLease(ctx context.Context, l Lease) (*Lease, error) {
	return fetchObject[Lease](ctx, c, request{method: http.MethodPut, path: leasePath(l.Namespace, l.Name), body: toTypedLease(l)})
}

func toTypedLease(l Lease) any {
	return struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Lease
	}{"coordination.k8s.io/v1", "Lease", l}
}
