package kubeapi

import (
	"context"
	"net/http"
)

// ListVolumeAttachments lists all VolumeAttachments of the cluster, because the API server has no selector by node.
func (c *Client) ListVolumeAttachments(ctx context.Context) ([]VolumeAttachment, error) {
	path := []string{"apis", "storage.k8s.io", "v1", "volumeattachments"}
	items, _, err := listAllPages[VolumeAttachment](ctx, c, WatchScope{Path: path})
	return items, err
}

// GetPersistentVolumeClaim reads one PersistentVolumeClaim.
func (c *Client) GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*PersistentVolumeClaim, error) {
	path := []string{"api", "v1", "namespaces", namespace, "persistentvolumeclaims", name}
	return fetchObject[PersistentVolumeClaim](ctx, c, request{method: http.MethodGet, path: path})
}
