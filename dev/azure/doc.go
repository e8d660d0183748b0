// Package azure emulates the part of Azure that announces the end of a machine: the Scheduled Events endpoint of the
// instance metadata service (IMDS), the machines behind it, and a ledger of what became of the pods.
//
// # The contract
//
// Known from "Scheduled Events for Linux VMs"
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events), from "Azure Instance Metadata Service"
// (https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service) and from
// https://github.com/Azure-Samples/scheduled-events-mock-server:
//
//   - GET /metadata/scheduledevents?api-version=2020-07-01 answers a document: DocumentIncarnation and Events. The
//     incarnation grows when, and only when, the list changes.
//   - "Metadata: true" is required and X-Forwarded-For refused, both with 400, so that nothing reaches the service by
//     redirection or through a proxy. The api-version is required; versions before 2020-07-01 know fewer fields and
//     fewer event types (see [Versions]).
//   - An event is Scheduled with a NotBefore of at least its type's minimum notice, then Started with a blank
//     NotBefore, then no longer listed. It starts at NotBefore, or earlier once approved. There is no "completed":
//     vanishing is the sign that it is over, or was cancelled. After a hardware failure an event is listed as Started
//     at once.
//   - POST of {"StartRequests":[{"EventId":"…"}]} to the same address approves those events, each for all its
//     Resources. Approving again is answered with 200; a malformed request with 400.
//   - All machines of a scale set's placement group are given the same document, with every event.
//   - The first call may take up to two minutes, while the service is being switched on; after 24 hours without a call
//     it is switched off again. The documented rate of polling is once a second.
//
// Where the documentation is silent the emulator is strict: an EventId that is not listed is refused with 400, and a
// list with one such ID approves nothing. NotBefore is rounded up to a full second, as the document cannot say more.
// Not emulated: events that stay unseen for up to five minutes after the first call, and the wait for the approval of
// other tenants on the same host (see [Options].ApprovalDelay for its effect).
//
// # One loopback address, many machines
//
// The real service knows who is asking. Here all agents sit on one loopback address, so an agent says so in the path
// of its metadata endpoint. All of these serve the contract above:
//
//	/metadata/scheduledevents                                             the only scale set there is
//	/scalesets/{scaleSet}/metadata/scheduledevents                        one of several
//	/scalesets/{scaleSet}/virtualMachines/{machine}/metadata/…            as above, and approvals are recorded by name
//
// [ScaleSet.Handler] serves one scale set alone, for a listener of its own. The emulator is steered under /emulator/
// (see control.go) or by the methods of [Emulator].
//
// # The ledger
//
// [WatchPods] notes what happens to every pod of a cluster, an [Emulator] notes what happens to every event, and
// [Settle] makes the [Ledger] out of both: for each pod on a machine that an event named, whether it ended in peace.
package azure
