package cloud

import "context"

// Marker is a [Provider] that marks the instances it launches with the cluster's name.
type Marker interface {
	// Ours lists the instances that have the mark of the configured cluster, in all groups: all of them or an error.
	Ours(ctx context.Context) ([]Instance, error)
}
