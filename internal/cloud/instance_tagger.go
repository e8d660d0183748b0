package cloud

import "context"

// InstanceTagger is a [Provider] that tags its instances with the cluster's name.
type InstanceTagger interface {
	// ClusterInstances lists all instances with the tag of the configured cluster, in every group, or returns an error.
	ClusterInstances(ctx context.Context) ([]Instance, error)
}
