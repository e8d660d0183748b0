// Package cloudpool serves the cloudpool REST API so that a machine goes only when its node's work has gone before: in
// front of a server that knows nothing of Kubernetes, or over any of Slipway's providers.
//
// Requests that cannot take a machine away pass through. One that can (a smaller desired size, a termination, a membership
// that makes a machine disposable) becomes an update of the pool: the machines are paired with their nodes (package matching),
// the victims are chosen together as package placement says, and one after the other is judged again and
// retired by a NodeRetirement, which the manager carries out (package controller). At the end of a smaller size the server's
// desired size is the one that was asked for.
//
// An update is a PoolUpdate object, and one process at a time works on those of a pool (a Lease). So it goes on when the client
// leaves, when the process ends and in another replica, and a request that is repeated is told how the first one went.
//
// What cannot be known leads to nothing: pairs that are unclear, a server or an API server that is away (I7).
package cloudpool
