package cloud

// DeletionVerifier is a [Provider] that searches the whole cloud before it returns [*NotFoundError]. Unlike an
// [InstanceTagger], it does not tag the cluster's instances. Slipway may conclude from its [*NotFoundError] alone that
// a Node's instance is gone. No user has to request this.
//
// Other providers must not implement DeletionVerifier. A provider such as the cloudpool API or a plugin knows only
// a pool. It also returns [*NotFoundError] for an instance that was detached from the pool. A detached instance still
// runs its pods, so its Node must not be deleted (I7: unknown is not gone). For these providers only a NodeRetirement
// that a user created relies on [*NotFoundError].
type DeletionVerifier interface {
	// NotFoundMeansDeleted reports whether Instance searches the whole cloud for this provider ID, in every group or in none, so
	// that its [*NotFoundError] proves that the instance is gone. It makes no request.
	NotFoundMeansDeleted(providerID string) bool
}
