package drain

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// killedExitCode is 128 + SIGKILL, what a container that outlived its grace ends with.
const killedExitCode = 137

// podState is what the engine knows of one pod, told apart from its namesakes by UID. Only the engine's goroutine
// touches it.
type podState struct {
	pod     kubeapi.Pod
	verdict Verdict
	action  podrules.Action
	judged  bool
	wave    int
	wanted  time.Duration

	// reviewAt is when its verdict may change although nothing happens to it; zero is never.
	reviewAt time.Time

	requesting bool // a request for it is under way
	// giveUp ends that request when the terms of now leave it no more time.
	giveUp  func(now time.Time)
	asked   Asked
	askedAt time.Time
	// unanswered is the last request that got no clear answer: it may have taken effect.
	unanswered Asked
	triedAt    time.Time
	stopSince  time.Time // when somebody's deletion took effect
	given      time.Duration

	gone   bool
	end    End
	goneAt time.Time

	blocked  Blocked // zero Reason: nothing in the way
	delays   []Delay
	refusals int // except those of an API server that asks everyone for patience, which are busy
	busy     int
	gate     *gate // what it waits at together with others
	// notBefore is when it may be tried again after an obstacle of its own, pause the last wait for one.
	notBefore time.Time
	pause     time.Duration
	forcing   bool // its time to wait for budgets is over
	mayDelete bool // false once the API server refused us the right
	cutOff    bool // told to end with the deadline

	conditionBy   time.Time // a deletion waits for the write of DisruptionTarget until then; zero is not begun
	conditionDone bool      // the write was answered
}

func (p *podState) name() string { return p.pod.Namespace + "/" + p.pod.Name }

// terminating reports that the API server has set the pod's end.
func (p *podState) terminating() bool { return p.pod.DeletionTimestamp != nil }

// waiting reports that it has to leave and has not been asked.
func (p *podState) waiting() bool {
	return !p.gone && p.action == podrules.Evict && p.asked == NotAsked && !p.terminating()
}

// present reports that it has to leave and is still there.
func (p *podState) present() bool { return !p.gone && p.action != podrules.Leave }

// observe takes in a newer state of the same pod.
func (p *podState) observe(pod kubeapi.Pod) {
	if isDisruptionTarget(&p.pod, "True") && isDisruptionTarget(&pod, "False") {
		p.conditionBy, p.conditionDone = time.Time{}, false // the deletion that it was written for was put off: write it again
	}
	p.pod = pod
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return
	}
	if p.stopSince.IsZero() {
		p.stopSince = pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	} else if *pod.DeletionGracePeriodSeconds == 0 && endOf(&pod, p.stopSince) != Vanished {
		return // the kubelet removes a pod that has ended; how much time it had been given stands
	}
	// Not deletionGracePeriodSeconds: when a grace is shortened after more than that has passed, it becomes 1.
	p.given = pod.DeletionTimestamp.Sub(p.stopSince)
	p.creditUnanswered()
}

// mayHaveWorked remembers a request without a clear answer.
func (p *podState) mayHaveWorked(how Asked) {
	if p.asked != NotAsked {
		return
	}
	p.unanswered = how
	if p.gone || p.terminating() {
		p.creditUnanswered()
	}
}

// creditUnanswered takes a pod's going for the answer that a request of ours did not get, unless the pod tells another
// story: an eviction leaves its mark, and so does a grace that was shortened.
func (p *podState) creditUnanswered() {
	if p.requesting || p.asked != NotAsked || p.unanswered == NotAsked {
		return
	}
	how := p.unanswered
	if p.terminating() {
		switch evicted := wasEvicted(&p.pod); {
		case how == Shortened && *p.pod.DeletionGracePeriodSeconds > 1, how == Evicted && !evicted:
			return
		case how == Forced && evicted: // the eviction before it had worked
			how = Evicted
		}
	}
	p.asked, p.askedAt, p.unanswered, p.blocked = how, p.triedAt, NotAsked, Blocked{}
}

// wasEvicted reads the condition that the eviction API leaves on a pod
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions).
func wasEvicted(p *kubeapi.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == disruptionTarget && c.Status == "True" && c.Reason == "EvictionByEvictionAPI" {
			return true
		}
	}
	return false
}

// leave records that the object is gone. The last state seen says how its containers ended.
func (p *podState) leave(now time.Time) {
	if p.gone {
		return
	}
	p.gone, p.goneAt, p.end = true, now, endOf(&p.pod, p.stopSince)
	p.blocked = Blocked{}
	p.creditUnanswered()
}

// endOf says how a pod's containers ended. Only a SIGKILL after the pod was told to stop counts as one: a finished pod,
// or a container beside the others, may have been killed long before, and the kernel kills for memory with the same
// exit code.
func endOf(p *kubeapi.Pod, stopSince time.Time) End {
	if len(p.Status.ContainerStatuses) == 0 {
		return Vanished
	}
	end := Stopped
	for _, c := range p.Status.ContainerStatuses {
		t := c.State.Terminated
		switch {
		case t == nil:
			return Vanished
		case t.ExitCode != killedExitCode || t.Reason == "OOMKilled":
		case stopSince.IsZero() || (!t.FinishedAt.IsZero() && t.FinishedAt.Before(stopSince)):
		default:
			end = Killed
		}
	}
	return end
}

// obstruct records what the pod waits for.
func (p *podState) obstruct(reason Obstacle, budget, detail string, now time.Time) {
	if p.blocked.Reason != reason || p.blocked.Budget != budget {
		p.blocked.Since = now
	}
	p.blocked = Blocked{
		Namespace: p.pod.Namespace, Pod: p.pod.Name, Reason: reason, Budget: budget, Detail: detail,
		Since: p.blocked.Since,
	}
}

// delay counts a refusal in the receipt.
func (p *podState) delay(reason Obstacle, detail string, now time.Time) {
	for i := range p.delays {
		d := &p.delays[i]
		if d.Reason == reason {
			d.Times++
			d.Detail = detail
			d.Seconds = now.Sub(d.first).Seconds()
			return
		}
	}
	p.delays = append(p.delays, Delay{Reason: reason, Detail: detail, Times: 1, first: now})
}

func (p *podState) receipt() PodReceipt {
	r := PodReceipt{
		Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, Verdict: p.verdict, Action: p.action, Wave: p.wave,
		Asked: p.asked, AskedAt: p.askedAt, GraceWanted: int64(p.wanted / time.Second),
		GraceGiven: int64(p.given / time.Second), End: p.end, EndedAt: p.goneAt, Delays: p.delays,
		Unanswered: p.unanswered,
	}
	if c := fromkubeapi.ControllerOf(&p.pod); c != nil {
		r.Owner = c.Kind + "/" + c.Name
	}
	return r
}

// progress says what the pod waits for, for people.
func (p *podState) progress(began time.Time) Blocked {
	b := Blocked{Namespace: p.pod.Namespace, Pod: p.pod.Name, Reason: Turn, Detail: "about to be asked", Since: began}
	switch {
	case p.asked != NotAsked || p.terminating():
		b.Reason, b.Since, b.Detail = Stopping, p.stopSince, "stopping"
		if b.Since.IsZero() {
			b.Since = p.askedAt
		}
		if at := p.pod.DeletionTimestamp; at != nil {
			b.Detail = "stopping, until " + at.UTC().Format(time.TimeOnly) + " at the latest"
		}
	case p.action == podrules.Refuse || p.action == podrules.Await:
		b.Reason, b.Detail = ByPolicy, fmt.Sprintf("%s: %s", p.verdict.Rule, p.verdict.Detail)
	case p.blocked.Reason != "":
		b = p.blocked
	}
	return b
}
