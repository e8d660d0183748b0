package demo

import (
	"context"
	"fmt"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// interruption is what a cloud announces in a step that several clouds share.
type interruption int

const (
	// spotLoss ends a Spot machine after a short notice.
	spotLoss interruption = iota
	// reboot stops a machine and starts it again.
	reboot
	// laterReboot is a reboot that leaves enough time to cancel it.
	laterReboot
	// deletion ends a machine, with enough time for a slow drain.
	deletion
	// distantEvent is an event weeks ahead.
	distantEvent
)

// noticeCloud is the cloud that has the machines and announces their interruptions. All clouds describe a notice by an
// azure.EventRecord, so that each step has one set of checks and one ledger.
type noticeCloud interface {
	// title returns the cloud's name.
	title() string
	// describe returns text that says what the cloud does in the demo.
	describe(s *stage) string
	// newNode returns the Node of a machine, and agentFlags the additional flags of its agent.
	newNode(m machine) controlplane.NodeSpec
	agentFlags(m machine) []string
	// prepare adds what the cloud's own steps need. It runs before the agents start.
	prepare(ctx context.Context, s *stage) error
	// announce announces the interruption of a machine. The text says what was announced.
	announce(what interruption, m machine) (r azure.EventRecord, text string, err error)
	// cancel withdraws a laterReboot or a distantEvent.
	cancel(r azure.EventRecord) error
	// claimOwner returns the owner of the agent's cordon claim for a notice, or the beginning of the owner's name.
	claimOwner(r azure.EventRecord) string
	// approval returns what an agent does to approve a notice, such as "approves the event". It is empty if the cloud
	// accepts no approval of this notice.
	approval(r azure.EventRecord) string
	// await waits until matches returns true for a notice, and returns the notice. The text wanted describes the awaited
	// state in errors.
	await(ctx context.Context, r azure.EventRecord, wanted string, matches func(azure.EventRecord) bool) (azure.EventRecord, error)
	// ledger returns what happened to the pods of a notice's machines.
	ledger(r azure.EventRecord) azure.EventLedger
	// steps returns the steps of the demo in the order of printing. The first one is runSpotNotice.
	steps(s *stage) []*step
	// close ends the emulated cloud, unless the testbed does.
	close()
}

// newNoticeCloud returns the cloud for a value of Options.Cloud. The caller must close it.
func newNoticeCloud(name string, t *testbed.Testbed) (noticeCloud, error) {
	switch name {
	case EmulatedAWS:
		return startAWS(t), nil
	case EmulatedGoogle:
		return startGoogle(t)
	}
	return azureNotices{t}, nil
}

// azureNotices is the testbed's emulated Azure.
type azureNotices struct{ *testbed.Testbed }

func (azureNotices) title() string { return "Azure" }

func (azureNotices) describe(s *stage) string {
	return fmt.Sprintf("Azure, which announces events and deletes machines, is emulated too. A real slipway-agent guards each of %d nodes; "+
		"two real slipway managers manage the pool of the %d others.", len(s.agents), ciMachineCount)
}

func (azureNotices) newNode(m machine) controlplane.NodeSpec { return m.pool.Node(m.instance) }
func (azureNotices) agentFlags(machine) []string             { return nil }

func (c azureNotices) prepare(ctx context.Context, s *stage) error {
	for _, m := range allMachines() {
		c.Azure.EnsureScaleSet(m.pool.ScaleSetName())
	}
	return s.addBuildPool(ctx)
}

func (c azureNotices) announce(what interruption, m machine) (azure.EventRecord, string, error) {
	event := map[interruption]struct {
		kind azure.EventType
		text string
	}{
		spotLoss:    {azure.Preempt, "be evicted in 30 s"},
		reboot:      {azure.Reboot, "reboot in 15 minutes, or as soon as approved"},
		laterReboot: {azure.Reboot, "reboot in 15 minutes"},
		deletion:    {azure.Terminate, "be deleted in 5 minutes"},
	}[what]
	r, err := c.Azure.Announce(azure.Announcement{Type: event.kind, Resources: []string{m.resource()}})
	return r, fmt.Sprintf("Azure: %s will %s", m.resource(), event.text), err
}

func (c azureNotices) cancel(r azure.EventRecord) error    { return c.Azure.CancelEvent(r.EventID) }
func (azureNotices) claimOwner(r azure.EventRecord) string { return cordonOwner(r) }
func (azureNotices) approval(azure.EventRecord) string     { return "approves the event" }
func (azureNotices) close()                                {} // the testbed stops it
func (c azureNotices) ledger(r azure.EventRecord) azure.EventLedger {
	l, _ := c.Azure.Ledger().Event(r.EventID)
	return l
}

func (c azureNotices) await(ctx context.Context, r azure.EventRecord, wanted string, matches func(azure.EventRecord) bool) (azure.EventRecord, error) {
	return c.AwaitNotice(ctx, r.EventID, wanted, matches)
}

func (azureNotices) steps(s *stage) []*step {
	migration := &step{title: "A machine is live-migrated", run: s.runLiveMigration}
	shared := &step{title: "One event affects two machines", run: s.runSharedEvent}
	pool := &step{title: "A pool of six machines becomes idle", run: s.runIdlePool}
	return []*step{
		{title: "A Spot machine is evicted with 30 s notice", run: s.runSpotNotice},
		{title: "A machine reboots within 15 minutes", run: s.runReboot},
		migration,
		{title: "A reboot is announced and cancelled", run: s.runCancelledReboot},
		shared,
		{title: "An agent is killed during a drain", runAfter: migration, run: s.runKilledAgent},
		pool,
		{title: "Azure fails to delete one of the six machines", runAfter: pool, run: s.reportFailedDeletion},
		{title: "The manager is killed during a drain", runAfter: pool, run: s.reportKilledManager},
		{title: "A build starts in time on the last of the six", runAfter: pool, run: s.reportRescuedNode},
		{title: "Another autoscaler scales a cloudpool to 2 machines", run: s.runCloudpoolScaling},
		{title: "Sixty unschedulable pods scale a group up, and later down", runAfter: shared, run: s.runAutoscaling},
	}
}
