// Package cloudpool emulates a cloudpool backend in memory: the REST API in version 5
// (https://cloudpoolrestapi.readthedocs.io). Where its documentation has gaps, it behaves like the reference server.
//
// # What is emulated
//
//   - A pool has a desired size. Its own loop launches or terminates machines until as many are active. Machines go from
//     REQUESTED to PENDING to RUNNING, and end from TERMINATING to TERMINATED. If the cloud refuses a machine, it is
//     REJECTED.
//   - Setting the size only records it. To shrink, the loop selects REQUESTED machines first, and then the newest or the
//     oldest, regardless of what runs there. Evictable machines that are not active are always terminated.
//   - Reads use a cache with the maximum age [Options].CacheAge. The check whether a machine is an evictable member uses
//     the same cache. So a machine can be terminated twice, and each time the desired size decreases.
//   - Terminating lowers the desired size if requested. Otherwise the loop launches a replacement.
//   - {} sets the desired size to 0. Keys are case-sensitive and values are coerced, as in Gson.
//   - Errors have a message and a detail, with the codes of the reference server: 404 for a machine outside the pool, 502
//     for a machine that is not evictable and for failures of the cloud, 500 for a pool that is not started.
//   - [NewMultiPoolHandler] serves several pools under /cloudpools/{name}, with the paths of the reference server. These
//     paths have no /pool before the requests for one machine.
//
// Machines can be the nodes of a control plane; see [Options].Nodes.
package cloudpool
