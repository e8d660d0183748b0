package cloud

import "context"

// Marker is a [Provider] that tags its instances with the cluster's name.
type Marker interface {
	// Ours lists all instances with the tag of the configured cluster, in every group, or returns an error.
	Ours(ctx context.Context) ([]Instance, error)
}
