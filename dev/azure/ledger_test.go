package azure

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var startTime = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// at returns a time, in seconds after the event's announcement.
func at(seconds float64) time.Time {
	return startTime.Add(time.Duration(seconds * float64(time.Second)))
}

// boundPod returns a pod that was on its node long before, with a grace period of 30 s.
func boundPod() Pod { return Pod{Name: "web", Node: "node", BoundAt: at(-1000), WantedSeconds: 30} }

// deletedPod returns such a pod, deleted at second 1.
func deletedPod(granted int64) Pod {
	p := boundPod()
	p.DeletedAt, p.DeletionSeenAt, p.GrantedSeconds, p.FirstGrantedSeconds = at(1), at(1), granted, granted
	return p
}

func (p Pod) withTermination(seconds float64, code int32) Pod {
	p.EndedAt, p.FinishedAt, p.ExitCode = at(seconds), at(seconds).Truncate(time.Second), new(code)
	return p
}

func (p Pod) withRemoval(seconds float64) Pod {
	p.EndedAt, p.RemovedAt, p.Vanished = at(seconds), at(seconds), true
	return p
}

func (p Pod) withWantedSeconds(seconds int64) Pod {
	return p.modified(func(p *Pod) { p.WantedSeconds = seconds })
}

func (p Pod) withStayReason(reason string) Pod {
	return p.modified(func(p *Pod) { p.StayReason = reason })
}

func (p Pod) withDeletionSeenAt(seconds float64) Pod {
	return p.modified(func(p *Pod) { p.DeletionSeenAt = at(seconds) })
}

func (p Pod) withFinishedAt(seconds float64) Pod {
	return p.modified(func(p *Pod) { p.FinishedAt = at(seconds) })
}

func (p Pod) modified(change func(*Pod)) Pod {
	change(&p)
	return p
}

func TestClassify(t *testing.T) {
	lives, died := time.Time{}, at(30)
	for name, tt := range map[string]struct {
		pod  Pod
		died time.Time
		want Outcome
	}{
		"running":                      {boundPod(), lives, OutcomeRunning},
		"stopping":                     {deletedPod(30), lives, OutcomeStopping},
		"finished in its grace":        {deletedPod(30).withTermination(11, 0), lives, OutcomeFinished},
		"finished in a shorter grace":  {deletedPod(20).withTermination(11, 0), lives, OutcomeFinished},
		"finished, then machine died":  {deletedPod(20).withTermination(11, 0), died, OutcomeFinished},
		"completed without deletion":   {boundPod().withTermination(11, 0), lives, OutcomeFinished},
		"killed after its own grace":   {deletedPod(30).withTermination(31, 137), lives, OutcomeSpentGrace},
		"killed after a longer grace":  {deletedPod(60).withTermination(61, 137), lives, OutcomeSpentGrace},
		"killed after a shorter grace": {deletedPod(20).withTermination(21, 137), lives, OutcomeCutShort},
		"cut short, then machine died": {deletedPod(20).withTermination(21, 137), died, OutcomeCutShort},
		"shortened later": {
			deletedPod(30).modified(func(p *Pod) { p.GrantedSeconds = 10 }).withTermination(11, 137), lives, OutcomeCutShort,
		},
		"shortened later to nothing": {
			deletedPod(30).modified(func(p *Pod) { p.GrantedSeconds = 0 }).withRemoval(5), lives, OutcomeKilledAtOnce,
		},
		"deleted at once":               {boundPod().withRemoval(5), lives, OutcomeKilledAtOnce},
		"deleted with grace 0":          {deletedPod(0).withRemoval(1), lives, OutcomeKilledAtOnce},
		"killed with grace 0":           {deletedPod(0).withTermination(1, 137), lives, OutcomeKilledAtOnce},
		"vanished without observed end": {deletedPod(30).withRemoval(5), lives, OutcomeKilledAtOnce},
		"no grace, vanished":            {boundPod().withWantedSeconds(0).withRemoval(5), lives, OutcomeSpentGrace},
		"no grace, killed":              {deletedPod(0).withWantedSeconds(0).withTermination(1, 137), lives, OutcomeSpentGrace},
		"exited with an error":          {deletedPod(30).withTermination(11, 1), lives, OutcomeFailed},
		"crashed":                       {boundPod().withTermination(11, 1), lives, OutcomeFailed},
		"killed without deletion":       {boundPod().withTermination(11, 137), lives, OutcomeFailed},
		"rejected by the kubelet":       {boundPod().modified(func(p *Pod) { p.EndedAt = at(5) }), lives, OutcomeFailed},
		"running at power-off":          {boundPod(), died, OutcomeLost},
		"stopping at power-off":         {deletedPod(60), died, OutcomeLost},
		"removed after power-off":       {deletedPod(60).withRemoval(40), died, OutcomeLost},
		"reported end after power-off":  {deletedPod(60).withTermination(40, 0), died, OutcomeLost},
		"deleted after power-off":       {boundPod().withDeletionSeenAt(35), died, OutcomeLost},
		"bound after power-off":         {boundPod().modified(func(p *Pod) { p.BoundAt = at(31) }), died, OutcomeRunning},
		"DaemonSet pod running":         {boundPod().withStayReason("DaemonSet"), lives, OutcomeStayed},
		"DaemonSet pod at power-off":    {boundPod().withStayReason("DaemonSet"), died, OutcomeStayed},
		"mirror pod at power-off":       {boundPod().withStayReason("mirror"), died, OutcomeStayed},
		"DaemonSet pod killed at once":  {boundPod().withStayReason("DaemonSet").withRemoval(5), lives, OutcomeStayed},
		"vanished during an interrupted watch": {
			deletedPod(30).withRemoval(5).modified(func(p *Pod) { p.Unobserved = true }), lives, OutcomeUnknown,
		},
		"finished right before power-off, seen right after": {
			deletedPod(60).withTermination(30.2, 0).withFinishedAt(29), died, OutcomeFinished,
		},
	} {
		t.Run(name, func(t *testing.T) {
			check.Is(t, tt.want, ClassifyOutcome(tt.pod, tt.died))
		})
	}
}

// newSpotRecord returns an event that was visible at second 0, with a machine that went down at second 30.
func newSpotRecord() EventRecord {
	return EventRecord{
		ScaleSet: testSet, EventID: "602D9444-D2CD-49C7-8624-8643E7171297", Type: Preempt, Resources: []string{vm0},
		Status: Started, VisibleAt: at(0), NotBefore: at(30), StartedAt: at(30), VanishedAt: at(31), Ending: Finished,
		Power: []PowerChange{{Resource: vm0, At: at(30.1)}},
	}
}

func nodeOfVM0(resource string) (string, bool) {
	return "node", resource == vm0
}

func eventLedger(r EventRecord, pods ...Pod) EventLedger {
	return NewLedger(State{Events: []EventRecord{r}}, pods, nodeOfVM0).Events[0]
}

func TestEventConcernsPodsWhileListed(t *testing.T) {
	named := func(name string, change func(*Pod)) Pod {
		return boundPod().modified(func(p *Pod) { p.Name = name }).modified(change)
	}
	ledger := eventLedger(newSpotRecord(),
		named("present throughout", func(*Pod) {}),
		named("ended before", func(p *Pod) { *p = p.withTermination(-1, 0) }),
		named("on another node", func(p *Pod) { p.Node = "other" }),
		named("came later", func(p *Pod) { p.BoundAt = at(10) }),
		named("came after the event", func(p *Pod) { p.BoundAt = at(32) }),
	)
	got := map[string]bool{}
	for _, entry := range ledger.Pods {
		got[entry.Name] = entry.Late
	}
	check.Equal(t, map[string]bool{"present throughout": false, "came later": true}, got)
	want := []Machine{{Resource: vm0, Node: "node", DiedAt: at(30.1)}}
	check.Equal(t, want, ledger.Machines)
}

func TestMachineWithoutNodeHasNoPods(t *testing.T) {
	record := newSpotRecord()
	record.Resources = []string{vm1}
	ledger := eventLedger(record, boundPod())
	if len(ledger.Pods) != 0 || ledger.Machines[0].Node != "" {
		t.Errorf("got %+v", ledger)
	}
}

func TestCancelledEventCausesNoLoss(t *testing.T) {
	record := newSpotRecord()
	record.Power, record.Ending, record.VanishedAt = nil, Cancelled, at(10)
	for name, tt := range map[string]struct {
		pod  Pod
		want Outcome
	}{
		"deleted before, cut short after": {deletedPod(20).withTermination(21, 137), OutcomeCutShort},
		"deleted before, still stopping":  {deletedPod(20), OutcomeStopping},
		"deleted and cut short after":     {deletedPod(5).withDeletionSeenAt(11).withTermination(16, 137), OutcomeRunning},
		"deleted after, still stopping":   {deletedPod(5).withDeletionSeenAt(11), OutcomeRunning},
		"deleted at once after":           {boundPod().withRemoval(16), OutcomeRunning},
		"completed before":                {boundPod().withTermination(5, 0), OutcomeFinished},
		"completed before, seen later":    {boundPod().withTermination(10.1, 0).withFinishedAt(9), OutcomeFinished},
	} {
		if got := eventLedger(record, tt.pod).Pods[0].Outcome; got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestTimeLeftEndsAtNotBefore(t *testing.T) {
	cut := deletedPod(4).withTermination(5, 137)
	early := newSpotRecord() // approved right after the pod was cut short
	early.StartedAt, early.StartedBy, early.Power[0].At = at(5.1), ByApproval, at(5.2)
	failure := newSpotRecord()
	failure.NotBefore, failure.StartedAt = time.Time{}, at(0)
	for name, tt := range map[string]struct {
		record EventRecord
		pod    Pod
		want   *float64
	}{
		"cut short, machine died on time": {newSpotRecord(), cut, new(25.0)},
		"cut short, then approved early":  {early, cut, new(25.0)},
		"no notice: to power-off":         {failure, cut, new(25.1)},
		"ended after the notice":          {newSpotRecord(), deletedPod(30).withTermination(31, 137), new(-1.0)},
		"not ended":                       {newSpotRecord(), deletedPod(30), nil},
	} {
		t.Run(name, func(t *testing.T) {
			check.Equal(t, tt.want, eventLedger(tt.record, tt.pod).Pods[0].LeftSeconds)
		})
	}
}

func TestCutWithTimeLeftUsesTolerance(t *testing.T) {
	ledger := eventLedger(newSpotRecord(),
		deletedPod(27).withTermination(28, 137),                     // cut short with 2 s left
		deletedPod(0).withRemoval(20),                               // killed at once with 10 s left
		deletedPod(30).withWantedSeconds(1).withTermination(9, 137), // spent its grace
		deletedPod(20).withTermination(9, 0),                        // finished
		boundPod().withStayReason("mirror"),
	)
	for tolerance, want := range map[time.Duration]int{0: 2, time.Second: 2, 2 * time.Second: 1, 10 * time.Second: 0} {
		if got := len(ledger.PodsKilledWithTimeLeft(tolerance)); got != want {
			t.Errorf("tolerance %v: %d pods, want %d", tolerance, got, want)
		}
	}
	want := "Preempt 602D9444-D2CD-49C7-8624-8643E7171297 of " + vm0 + ": 5 pods, 1 finished, 1 spent-grace, " +
		"1 cut-short, 1 killed-at-once, 0 lost, 1 stayed; 1 cut with more than 5s left"
	check.Is(t, want, ledger.Summary(5*time.Second))
}

func TestEveryOutcomeIsCountedOnce(t *testing.T) {
	seen := map[Outcome]bool{}
	for _, o := range Outcomes() {
		if seen[o] {
			t.Errorf("%s is listed twice", o)
		}
		seen[o] = true
	}
	var pods []Pod
	for range 3 {
		pods = append(pods, boundPod(), deletedPod(60), deletedPod(30).withTermination(11, 0))
	}
	ledger, sum := eventLedger(newSpotRecord(), pods...), 0
	for _, o := range Outcomes() {
		sum += ledger.CountOutcome(o)
	}
	if sum != len(pods) || ledger.CountOutcome(OutcomeLost) != 6 {
		t.Errorf("%d of %d pods are counted, %d lost", sum, len(pods), ledger.CountOutcome(OutcomeLost))
	}
}

func TestLedgerSurvivesJSON(t *testing.T) {
	ledger := NewLedger(State{At: at(50), Events: []EventRecord{newSpotRecord()}},
		[]Pod{boundPod(), deletedPod(20).withTermination(21, 137), deletedPod(0).withRemoval(3)}, nodeOfVM0)
	text, err := json.Marshal(ledger)
	must.NoError(t, err)
	var again Ledger
	must.NoError(t, json.Unmarshal(text, &again))
	check.Equal(t, ledger, again)
}
