package azure

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var zero = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// at returns a time, in seconds after the event's announcement.
func at(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }

// bound returns a pod that was on its node long before, with a grace period of 30 s.
func bound() Pod { return Pod{Name: "web", Node: "node", BoundAt: at(-1000), WantedSeconds: 30} }

// asked returns such a pod, deleted at second 1.
func asked(granted int64) Pod {
	p := bound()
	p.AskedAt, p.AskedSeenAt, p.GrantedSeconds, p.FirstGrantedSeconds = at(1), at(1), granted, granted
	return p
}

func (p Pod) terminated(seconds float64, code int32) Pod {
	p.EndedAt, p.FinishedAt, p.ExitCode = at(seconds), at(seconds).Truncate(time.Second), new(code)
	return p
}

func (p Pod) vanished(seconds float64) Pod {
	p.EndedAt, p.GoneAt, p.Vanished = at(seconds), at(seconds), true
	return p
}

func (p Pod) wanting(seconds int64) Pod { return p.with(func(p *Pod) { p.WantedSeconds = seconds }) }

func (p Pod) staying(reason string) Pod { return p.with(func(p *Pod) { p.Stays = reason }) }

func (p Pod) seenAskedAt(seconds float64) Pod {
	return p.with(func(p *Pod) { p.AskedSeenAt = at(seconds) })
}

func (p Pod) finishedAt(seconds float64) Pod {
	return p.with(func(p *Pod) { p.FinishedAt = at(seconds) })
}

func (p Pod) with(change func(*Pod)) Pod {
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
		"running":                      {bound(), lives, OutcomeRunning},
		"stopping":                     {asked(30), lives, OutcomeStopping},
		"finished in its grace":        {asked(30).terminated(11, 0), lives, OutcomeFinished},
		"finished in a shorter grace":  {asked(20).terminated(11, 0), lives, OutcomeFinished},
		"finished, then machine died":  {asked(20).terminated(11, 0), died, OutcomeFinished},
		"completed without deletion":   {bound().terminated(11, 0), lives, OutcomeFinished},
		"killed after its own grace":   {asked(30).terminated(31, 137), lives, OutcomeSpentGrace},
		"killed after a longer grace":  {asked(60).terminated(61, 137), lives, OutcomeSpentGrace},
		"killed after a shorter grace": {asked(20).terminated(21, 137), lives, OutcomeCutShort},
		"cut short, then machine died": {asked(20).terminated(21, 137), died, OutcomeCutShort},
		"shortened later": {
			asked(30).with(func(p *Pod) { p.GrantedSeconds = 10 }).terminated(11, 137), lives, OutcomeCutShort,
		},
		"shortened later to nothing": {
			asked(30).with(func(p *Pod) { p.GrantedSeconds = 0 }).vanished(5), lives, OutcomeKilledAtOnce,
		},
		"deleted at once":               {bound().vanished(5), lives, OutcomeKilledAtOnce},
		"deleted with grace 0":          {asked(0).vanished(1), lives, OutcomeKilledAtOnce},
		"killed with grace 0":           {asked(0).terminated(1, 137), lives, OutcomeKilledAtOnce},
		"vanished without observed end": {asked(30).vanished(5), lives, OutcomeKilledAtOnce},
		"no grace, vanished":            {bound().wanting(0).vanished(5), lives, OutcomeSpentGrace},
		"no grace, killed":              {asked(0).wanting(0).terminated(1, 137), lives, OutcomeSpentGrace},
		"exited with an error":          {asked(30).terminated(11, 1), lives, OutcomeFailed},
		"crashed":                       {bound().terminated(11, 1), lives, OutcomeFailed},
		"killed without deletion":       {bound().terminated(11, 137), lives, OutcomeFailed},
		"rejected by the kubelet":       {bound().with(func(p *Pod) { p.EndedAt = at(5) }), lives, OutcomeFailed},
		"running at power-off":          {bound(), died, OutcomeLost},
		"stopping at power-off":         {asked(60), died, OutcomeLost},
		"removed after power-off":       {asked(60).vanished(40), died, OutcomeLost},
		"reported end after power-off":  {asked(60).terminated(40, 0), died, OutcomeLost},
		"deleted after power-off":       {bound().seenAskedAt(35), died, OutcomeLost},
		"bound after power-off":         {bound().with(func(p *Pod) { p.BoundAt = at(31) }), died, OutcomeRunning},
		"DaemonSet pod running":         {bound().staying("DaemonSet"), lives, OutcomeStayed},
		"DaemonSet pod at power-off":    {bound().staying("DaemonSet"), died, OutcomeStayed},
		"mirror pod at power-off":       {bound().staying("mirror"), died, OutcomeStayed},
		"DaemonSet pod killed at once":  {bound().staying("DaemonSet").vanished(5), lives, OutcomeStayed},
		"vanished during an interrupted watch": {
			asked(30).vanished(5).with(func(p *Pod) { p.Unobserved = true }), lives, OutcomeUnknown,
		},
		"finished right before power-off, seen right after": {
			asked(60).terminated(30.2, 0).finishedAt(29), died, OutcomeFinished,
		},
	} {
		t.Run(name, func(t *testing.T) {
			check.Is(t, tt.want, Classify(tt.pod, tt.died))
		})
	}
}

// spotNotice returns an event that was visible at second 0, with a machine that went down at second 30.
func spotNotice() Record {
	return Record{
		ScaleSet: testSet, EventID: "602D9444-D2CD-49C7-8624-8643E7171297", Type: Preempt, Resources: []string{vm0},
		Status: Started, VisibleAt: at(0), NotBefore: at(30), StartedAt: at(30), VanishedAt: at(31), Ending: Finished,
		Power: []PowerChange{{Resource: vm0, At: at(30.1)}},
	}
}

func onNode(resource string) (string, bool) {
	return "node", resource == vm0
}

func settled(r Record, pods ...Pod) EventLedger {
	return Settle(State{Events: []Record{r}}, pods, onNode).Events[0]
}

func TestEventConcernsPodsWhileItIsListed(t *testing.T) {
	named := func(name string, change func(*Pod)) Pod {
		return bound().with(func(p *Pod) { p.Name = name }).with(change)
	}
	ledger := settled(spotNotice(),
		named("present throughout", func(*Pod) {}),
		named("ended before", func(p *Pod) { *p = p.terminated(-1, 0) }),
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

func TestMachineWithoutANode(t *testing.T) {
	record := spotNotice()
	record.Resources = []string{vm1}
	ledger := settled(record, bound())
	if len(ledger.Pods) != 0 || ledger.Machines[0].Node != "" {
		t.Errorf("got %+v", ledger)
	}
}

func TestNothingIsBlamedOnACancelledEvent(t *testing.T) {
	record := spotNotice()
	record.Power, record.Ending, record.VanishedAt = nil, Cancelled, at(10)
	for name, tt := range map[string]struct {
		pod  Pod
		want Outcome
	}{
		"deleted before, cut short after": {asked(20).terminated(21, 137), OutcomeCutShort},
		"deleted before, still stopping":  {asked(20), OutcomeStopping},
		"deleted and cut short after":     {asked(5).seenAskedAt(11).terminated(16, 137), OutcomeRunning},
		"deleted after, still stopping":   {asked(5).seenAskedAt(11), OutcomeRunning},
		"deleted at once after":           {bound().vanished(16), OutcomeRunning},
		"completed before":                {bound().terminated(5, 0), OutcomeFinished},
		"completed before, seen later":    {bound().terminated(10.1, 0).finishedAt(9), OutcomeFinished},
	} {
		if got := settled(record, tt.pod).Pods[0].Outcome; got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestTimeLeftCountsToTheNotice(t *testing.T) {
	cut := asked(4).terminated(5, 137)
	early := spotNotice() // approved right after the pod was cut short
	early.StartedAt, early.StartedBy, early.Power[0].At = at(5.1), ByApproval, at(5.2)
	failure := spotNotice()
	failure.NotBefore, failure.StartedAt = time.Time{}, at(0)
	for name, tt := range map[string]struct {
		record Record
		pod    Pod
		want   *float64
	}{
		"cut short, machine died on time": {spotNotice(), cut, new(25.0)},
		"cut short, then approved early":  {early, cut, new(25.0)},
		"no notice: to power-off":         {failure, cut, new(25.1)},
		"ended after the notice":          {spotNotice(), asked(30).terminated(31, 137), new(-1.0)},
		"not ended":                       {spotNotice(), asked(30), nil},
	} {
		t.Run(name, func(t *testing.T) {
			check.Equal(t, tt.want, settled(tt.record, tt.pod).Pods[0].LeftSeconds)
		})
	}
}

func TestCutWithTimeLeftHasATolerance(t *testing.T) {
	ledger := settled(spotNotice(),
		asked(27).terminated(28, 137),           // cut short with 2 s left
		asked(0).vanished(20),                   // killed at once with 10 s left
		asked(30).wanting(1).terminated(9, 137), // spent its grace
		asked(20).terminated(9, 0),              // finished
		bound().staying("mirror"),
	)
	for tolerance, want := range map[time.Duration]int{0: 2, time.Second: 2, 2 * time.Second: 1, 10 * time.Second: 0} {
		if got := len(ledger.CutWithTimeLeft(tolerance)); got != want {
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
		pods = append(pods, bound(), asked(60), asked(30).terminated(11, 0))
	}
	ledger, sum := settled(spotNotice(), pods...), 0
	for _, o := range Outcomes() {
		sum += ledger.Count(o)
	}
	if sum != len(pods) || ledger.Count(OutcomeLost) != 6 {
		t.Errorf("%d of %d pods are counted, %d lost", sum, len(pods), ledger.Count(OutcomeLost))
	}
}

func TestLedgerSurvivesJSON(t *testing.T) {
	ledger := Settle(State{At: at(50), Events: []Record{spotNotice()}},
		[]Pod{bound(), asked(20).terminated(21, 137), asked(0).vanished(3)}, onNode)
	text, err := json.Marshal(ledger)
	must.NoError(t, err)
	var again Ledger
	must.NoError(t, json.Unmarshal(text, &again))
	check.Equal(t, ledger, again)
}
