package drain

import (
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// killedExitCode is 128 + SIGKILL, what a container that outlived its grace ends with.
const killedExitCode = 137

// podState is what the engine knows of one pod, told apart from its namesakes by UID. Only the engine's goroutine
// touches it.
type podState struct {
	pod     kubeapi.Pod
	verdict Verdict
	action  Action
	wave    int
	wanted  time.Duration

	requesting bool // a request for it is under way
	asked      Asked
	askedAt    time.Time
	given      time.Duration

	gone   bool
	end    End
	goneAt time.Time

	blocked Blocked // zero Reason: nothing in the way
	delays  []Delay
	gate    *gate // the budget it waits at, once it was denied
	// notBefore is when it may be tried again after an obstacle of its own, pause the last wait for one.
	notBefore time.Time
	pause     time.Duration
	forcing   bool // its time to wait for budgets is over
	mayDelete bool // false once the API server refused us the right
	// shortenBy is the end of grace that a request to shorten was last made for.
	shortenBy time.Time
}

// terminating reports that the API server has set the pod's end.
func (p *podState) terminating() bool { return p.pod.DeletionTimestamp != nil }

// waiting reports that it has to leave and has not been asked.
func (p *podState) waiting() bool {
	return !p.gone && p.action == Evict && p.asked == NotAsked && !p.terminating()
}

// present reports that it has to leave and is still there.
func (p *podState) present() bool { return !p.gone && p.action != Leave }

// observe takes in a newer state of the same pod. Until it is asked to leave, a pod is judged anew: a protection may
// have been set or lifted meanwhile.
func (p *podState) observe(pod kubeapi.Pod, judge func(*kubeapi.Pod) (Verdict, Action)) {
	p.pod = pod
	if p.asked == NotAsked && !p.requesting && !p.terminating() {
		p.verdict, p.action = judge(&p.pod)
	}
	if p.asked != NotAsked && pod.DeletionGracePeriodSeconds != nil {
		p.given = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
}

// leave records that the object is gone. The last state seen says how its containers ended.
func (p *podState) leave(now time.Time) {
	if !p.gone {
		p.gone, p.goneAt = true, now
	}
	p.end = endOf(&p.pod)
	p.blocked = Blocked{}
}

func endOf(p *kubeapi.Pod) End {
	if len(p.Status.ContainerStatuses) == 0 {
		return Vanished
	}
	end := Stopped
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Terminated == nil:
			return Vanished
		case c.State.Terminated.ExitCode == killedExitCode:
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
	}
	if c := controller(&p.pod); c != nil {
		r.Owner = c.Kind + "/" + c.Name
	}
	return r
}

// progress says what the pod waits for, for people.
func (p *podState) progress() Blocked {
	if p.blocked.Reason != "" {
		return p.blocked
	}
	b := Blocked{Namespace: p.pod.Namespace, Pod: p.pod.Name, Reason: Turn, Detail: "about to be asked"}
	if p.asked != NotAsked || p.terminating() {
		b.Reason, b.Since, b.Detail = Stopping, p.askedAt, "stopping"
		if at := p.pod.DeletionTimestamp; at != nil {
			b.Detail = "stopping, until " + at.UTC().Format(time.TimeOnly) + " at the latest"
		}
	}
	return b
}
