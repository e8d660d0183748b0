package cloud

// DeletionVerifier is a [Provider] that searches the whole cloud before it returns [*NotFoundError], although it does
// not tag the cluster's instances. Slipway may then conclude, without a user's request, that a Node's instance is gone.
//
// Other providers must not implement it. A provider that knows only a pool, such as the cloudpool API or a plugin, also
// says "not found" for an instance that was detached from the pool. A detached instance still runs its pods, so its
// Node must not be deleted (I7). For these providers only a NodeRetirement that a user created relies on "not found".
type DeletionVerifier interface {
	// NotFoundMeansDeleted reports whether Instance searches the whole cloud for this provider ID, in every group or in none, so
	// that its [*NotFoundError] proves that the instance is gone. It makes no request.
	NotFoundMeansDeleted(providerID string) bool
}
