// Package cloudpool emulates a cloudpool backend over HTTP: the REST API in version 5
// (https://cloudpoolrestapi.readthedocs.io), with the behaviour of the reference server where its documentation is
// silent, in memory.
//
// # What is emulated
//
//   - A pool has a desired size, and a loop of its own that launches machines or terminates them until as many are active.
//     Machines are launched through REQUESTED and PENDING to RUNNING, and end through TERMINATING in TERMINATED. One that
//     the cloud refuses is REJECTED.
//   - Setting the size only records it. To shrink, the loop takes REQUESTED machines first and then the newest or the
//     oldest, without a look at what runs there; machines that are neither active nor to be kept go in any case.
//   - Reads answer from a cache that is as old as [Options].Refresh. The check whether a machine is a member that may be
//     terminated reads the same cache, so that a machine can be terminated twice, each time at the cost of one desired
//     machine.
//   - Terminating lowers the desired size where asked, unless somebody changed it meanwhile. Where not asked, the loop
//     launches a replacement.
//   - {} sets the desired size to 0. Keys are case-sensitive and values are coerced, as Gson does.
//   - Errors have a message and a detail, with the codes of the reference server: 404 for who is no member, 502 for who must
//     not be evicted and for the cloud's own failures, 500 for a pool that is not started.
//   - [Multi] serves several pools under /cloudpools/{name}, with the paths of the reference server, which has no /pool
//     before what is asked of one machine.
//
// Machines can be the nodes of a control plane; see [Options].Nodes.
package cloudpool
