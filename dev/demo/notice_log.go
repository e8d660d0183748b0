package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// noLaunches says in the introduction why the demo of a cloud has no step that launches or deletes machines.
const noLaunches = "Slipway launches and deletes instances at Azure, OpenStack, cloudpools and plug-ins, not here: `make demo` shows that."

// noticeLog records the notices of an emulated cloud, and what they did to the machines. Call close to end it.
type noticeLog struct {
	testbed *testbed.Testbed
	nodes   map[string]string // by resource
	ctx     context.Context   //nolint:containedctx // it ends at close, for the goroutines of events
	stop    context.CancelFunc
	events  sync.WaitGroup

	mu      sync.Mutex
	records []*azure.EventRecord
	err     error // of the first event that failed
}

// newNoticeLog returns a log. The function resource returns the name of a machine in its cloud.
func newNoticeLog(t *testbed.Testbed, resource func(machine) string) *noticeLog {
	ctx, stop := context.WithCancel(context.Background())
	l := &noticeLog{testbed: t, ctx: ctx, stop: stop, nodes: map[string]string{}}
	for _, m := range allMachines() {
		l.nodes[resource(m)] = m.node()
	}
	return l
}

// close ends all events and waits for their goroutines. It switches no machine.
func (l *noticeLog) close() {
	l.stop()
	l.events.Wait()
}

// add records a notice. The owner is what claimOwner returns. The time visible is before the announcement, because the agent
// may evict pods at once.
func (l *noticeLog) add(owner, resource string, kind azure.EventType, visible, due time.Time) azure.EventRecord {
	r := azure.EventRecord{
		EventID: owner, Type: kind, Resources: []string{resource}, Status: azure.Scheduled, VisibleAt: visible, NotBefore: due,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, new(r))
	return r
}

func (*noticeLog) claimOwner(r azure.EventRecord) string { return r.EventID }

// follow runs the rest of an event in the background. An error ends every await.
func (l *noticeLog) follow(event func(ctx context.Context) error) {
	l.events.Go(func() {
		if err := event(l.ctx); err != nil && l.ctx.Err() == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.err = errors.Join(l.err, err)
		}
	})
}

// update changes the record of a notice.
func (l *noticeLog) update(r azure.EventRecord, change func(*azure.EventRecord)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, known := range l.records {
		if isSameNotice(*known, r) {
			change(known)
		}
	}
}

func isSameNotice(a, b azure.EventRecord) bool {
	return a.EventID == b.EventID && slices.Equal(a.Resources, b.Resources)
}

// start records that a notice has taken effect.
func (l *noticeLog) start(r azure.EventRecord, by azure.StartCause) {
	l.update(r, func(r *azure.EventRecord) { r.Status, r.StartedAt, r.StartedBy = azure.Started, time.Now(), by })
}

// approve records that the agent has approved a notice.
func (l *noticeLog) approve(r azure.EventRecord) {
	l.update(r, func(r *azure.EventRecord) {
		r.Approvals = append(r.Approvals, azure.Approval{By: r.Resources[0], At: time.Now(), Times: 1})
	})
	l.start(r, azure.ByApproval)
}

// vanish records that the cloud does not list a notice any more.
func (l *noticeLog) vanish(r azure.EventRecord, ending azure.EventEnding) {
	l.update(r, func(r *azure.EventRecord) { r.VanishedAt, r.Ending = time.Now(), ending })
}

// current returns the record of a notice.
func (l *noticeLog) current(r azure.EventRecord) (azure.EventRecord, error) {
	l.update(r, func(known *azure.EventRecord) {
		r = *known
		r.Power = slices.Clone(r.Power)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return r, l.err
}

// await implements noticeCloud.
func (l *noticeLog) await(ctx context.Context, r azure.EventRecord, wanted string, matches func(azure.EventRecord) bool) (azure.EventRecord, error) {
	var failed error
	err := testbed.PollUntil(ctx, fmt.Sprintf("notice %s of %s is %s", r.EventID, r.Resources[0], wanted), func() bool {
		r, failed = l.current(r)
		return failed != nil || matches(r)
	})
	if err != nil {
		err = fmt.Errorf("%w; it is %+v", err, r)
	}
	return r, errors.Join(err, failed)
}

// ledger implements noticeCloud.
func (l *noticeLog) ledger(r azure.EventRecord) azure.EventLedger {
	r, _ = l.current(r)
	state := azure.State{At: time.Now(), Events: []azure.EventRecord{r}}
	return azure.NewLedger(state, l.testbed.Pods.Pods(), func(resource string) (node string, known bool) {
		node, known = l.nodes[resource]
		return node, known
	}).Events[0]
}

// PowerOff switches a machine and its agent off, and records this in the machine's last notice.
func (l *noticeLog) PowerOff(ctx context.Context, resource string) error {
	return l.setPower(ctx, resource, false)
}

// PowerOn switches a machine and its agent on, and records this in the machine's last notice.
func (l *noticeLog) PowerOn(ctx context.Context, resource string) error {
	return l.setPower(ctx, resource, true)
}

func (l *noticeLog) setPower(ctx context.Context, resource string, on bool) error {
	change := l.testbed.NodePower().PowerOff
	if on {
		change = l.testbed.NodePower().PowerOn
	}
	if err := change(ctx, l.nodes[resource]); err != nil {
		return fmt.Errorf("machine %s: %w", resource, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range slices.Backward(l.records) {
		if r.Resources[0] == resource {
			r.Power = append(r.Power, azure.PowerChange{Resource: resource, On: on, At: time.Now()})
			break
		}
	}
	return nil
}

// restartMachine switches a machine off, and on again after the outage.
func (l *noticeLog) restartMachine(ctx context.Context, resource string) error {
	if err := l.PowerOff(ctx, resource); err != nil {
		return err
	}
	if err := testbed.Sleep(ctx, outage); err != nil {
		return err
	}
	return l.PowerOn(ctx, resource)
}
