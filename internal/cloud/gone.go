package cloud

// GoneProver is a [Provider] that does not mark its machines as a cluster's, and whose [*NotFoundError] from
// [Provider.Instance] is the word of the whole cloud all the same. A Node may then be found to have lost its machine without
// having been told so.
//
// It is not every provider's to say. One that knows a pool, as the cloudpool API does, or a program of somebody else's, says
// "not found" also of a machine that is only not in the pool any more: one that was detached runs on, and so do its pods,
// which no one may release then (I7). A provider that does not implement this is never concluded from unasked; a
// NodeRetirement that somebody has asked for takes its word as before.
type GoneProver interface {
	// ProvesGone reports whether Instance looks for the machine of this provider ID wherever it may be, in a configured group
	// or in none, so that its [*NotFoundError] proves that the machine is gone. It asks nothing of the cloud.
	ProvesGone(providerID string) bool
}
