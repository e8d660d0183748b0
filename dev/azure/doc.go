// Package azure emulates the part of Azure that announces the end of a machine: the Scheduled Events endpoint of the
// instance metadata service (IMDS), and the machines behind it. A ledger records how the pods ended.
//
// # The contract
//
// It is documented in "Scheduled Events for Linux VMs"
// (https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events), in "Azure Instance Metadata Service"
// (https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service) and in
// https://github.com/Azure-Samples/scheduled-events-mock-server:
//
//   - GET /metadata/scheduledevents?api-version=2020-07-01 returns a document with DocumentIncarnation and Events. The
//     incarnation grows if, and only if, the list changes.
//   - "Metadata: true" is required and X-Forwarded-For is refused, both with 400. So no request comes by redirection or
//     through a proxy. The api-version is required. Versions before 2020-07-01 have fewer fields and event types (see
//     [APIVersions]).
//   - An event is first Scheduled, with a NotBefore of at least its type's minimum notice. Then it is Started, with a
//     blank NotBefore. Then it vanishes. It starts at NotBefore, or earlier once approved. There is no "completed":
//     an event that vanishes has ended or was cancelled. After a hardware failure an event is listed as Started at once.
//   - POST of {"StartRequests":[{"EventId":"…"}]} to the same address approves those events, each for all its
//     Resources. A repeated approval returns 200, a malformed request 400.
//   - All machines of a scale set's placement group get the same document, with every event.
//   - The first call may take up to two minutes, while the service is being switched on. After 24 hours without a call
//     it is switched off. The documented polling interval is one second.
//
// Where the documentation has gaps, the emulator is strict. An EventId that is not listed is refused with 400, and a list
// with one such ID approves nothing. NotBefore is rounded up to a full second, because the document has full seconds only.
// Two effects are not emulated: events that stay invisible for up to five minutes after the first call, and the wait for
// other tenants of the same host (see [Options].ApprovalDelay).
//
// # One loopback address, many machines
//
// The real service knows its client. Here all agents use one loopback address, so the path of an agent's metadata
// endpoint names its machine. All of these serve the contract:
//
//	/metadata/scheduledevents                                             the only scale set
//	/scalesets/{scaleSet}/metadata/scheduledevents                        one of several
//	/scalesets/{scaleSet}/virtualMachines/{machine}/metadata/…            also records approvals by name
//
// [ScaleSet.Handler] serves only one scale set, for its own listener. Control the emulator under /emulator/ (see
// control.go) or with the methods of [Emulator].
//
// # The ledger
//
// [WatchPods] records what happens to every pod of a cluster. An [Emulator] records what happens to every event.
// [NewLedger] makes a [Ledger] from both records. It has the outcome of each pod on a machine of an event.
package azure
