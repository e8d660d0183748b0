package kubeapi

import (
	"context"
	"fmt"
	"net/http"
)

func leasePath(namespace string, name ...string) []string {
	return append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"}, name...)
}

// ListLeases lists the Leases of a namespace with labels that match a selector, such as "key=value".
func (c *Client) ListLeases(ctx context.Context, namespace, labelSelector string) ([]Lease, error) {
	items, _, err := listAllPages[Lease](ctx, c, WatchScope{Path: leasePath(namespace), LabelSelector: labelSelector})
	return items, err
}

// ListCachedLeases does what ListLeases does. The result may be as old as the API server's cache, which costs the
// server less.
func (c *Client) ListCachedLeases(ctx context.Context, namespace, labelSelector string) ([]Lease, error) {
	scope := WatchScope{Path: leasePath(namespace), LabelSelector: labelSelector, AllowCachedList: true}
	items, _, err := listAllPages[Lease](ctx, c, scope)
	return items, err
}

// GetLease reads one Lease.
func (c *Client) GetLease(ctx context.Context, namespace, name string) (*Lease, error) {
	return fetchObject[Lease](ctx, c, request{method: http.MethodGet, path: leasePath(namespace, name)})
}

// DeleteLease deletes a Lease. Its UID and resourceVersion are required, as preconditions. If the Lease has changed
// since, the error is a conflict.
func (c *Client) DeleteLease(ctx context.Context, l Lease) error {
	if l.UID == "" || l.ResourceVersion == "" {
		return fmt.Errorf("delete lease %s/%s: UID %q, resourceVersion %q: want both of the lease to delete", l.Namespace,
			l.Name, l.UID, l.ResourceVersion)
	}
	body := deleteOptions{Preconditions: preconditions{UID: l.UID, ResourceVersion: l.ResourceVersion}}
	return c.sendAndDecode(ctx, request{method: http.MethodDelete, path: leasePath(l.Namespace, l.Name), body: body}, nil)
}

// CreateLease creates a Lease in the namespace of its metadata. If the Lease exists, the error is a *StatusError with
// code 409 and reason AlreadyExists.
func (c *Client) CreateLease(ctx context.Context, l Lease) (*Lease, error) {
	return fetchObject[Lease](ctx, c, request{method: http.MethodPost, path: leasePath(l.Namespace), body: toTypedLease(l)})
}

// UpdateLease replaces a Lease. The error is a conflict if metadata.resourceVersion is set and the Lease has changed
// since.
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
