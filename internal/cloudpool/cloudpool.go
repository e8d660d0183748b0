// Package cloudpool serves the cloudpool REST API and drains a machine's node before the machine is deleted. It runs in
// front of a cloudpool server that does not know Kubernetes, or on top of any Slipway cloud provider (a native pool).
//
// A request that cannot remove a machine is forwarded. A request that can remove one becomes an update of the pool. Such
// requests are a smaller desired size, a termination, and a membership that makes a machine disposable.
//
// Package matching pairs machines with nodes and chooses the victims together. Package controller checks each victim again
// and creates its NodeRetirement, which the manager carries out. After a size update the server's desired size equals the
// requested size.
//
// An update is a PoolUpdate object. One process at a time, the holder of a Lease, works on the updates of a pool. An update
// therefore continues after its client disconnects, after the process ends, and in another replica. A repeated request
// returns the result of the first one.
//
// Missing information never leads to a deletion (invariant I7). Examples are an unclear pairing, and a pool's server or an
// API server that does not answer.
package cloudpool
