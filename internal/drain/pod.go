package drain

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// killedExitCode is 128 + SIGKILL. A container has this exit code if it was killed because it ran longer than its
// grace.
const killedExitCode = 137

// podState is the engine's state of one pod, identified by UID. Only the engine's goroutine touches it.
type podState struct {
	pod         kubeapi.Pod
	decision    Decision
	action      podrules.Action
	decided     bool
	wave        int
	wantedGrace time.Duration

	// reviewAt is when its decision may change without an event; zero means never.
	reviewAt time.Time

	requesting bool // a request for it is in flight
	// shortenRequest cancels that request earlier if the new terms leave it less time.
	shortenRequest func(now time.Time)
	removal        RemovalMethod
	removalAt      time.Time
	// unansweredRequest is the last request without a clear answer. It may have taken effect.
	unansweredRequest RemovalMethod
	firstSentAt       time.Time
	lastSentAt        time.Time
	stoppingSince     time.Time // when the deletion took effect, of any client
	givenGrace        time.Duration

	watched bool // the watch has shown it, and not only a final list
	missing bool // a list lacks it, which may be older than the pod
	gone    bool
	end     PodEnd
	goneAt  time.Time

	blocked      BlockedPod // zero Reason: not blocked
	delays       []Delay
	refusalCount int // without answers that the API server is busy; busyCount has those
	busyCount    int
	backoff      *sharedBackoff // shared with other pods; nil is none
	// retryAt is when the pod may be tried again after an obstacle of its own. pause is the last wait for that.
	retryAt        time.Time
	pause          time.Duration
	forceDeletion  bool      // its time to wait for PDBs is over
	deleteRetryAt  time.Time // when it may be deleted again after the API server has forbidden that
	graceShortened bool      // its grace was cut to end at the deadline

	surge *podSurge      // nil: it was never considered
	group podrules.Group // pods that lose their work together; zero is none
	// held is true while the pod may only be requested together with the other pods of its group. It is decided anew in
	// each step.
	held          bool
	groupReleased bool // all pods of its group were allowed to go, and are requested

	conditionWaitUntil time.Time // until when a deletion waits for the DisruptionTarget write; zero is not started
	conditionAnswered  bool      // that write was answered

	request *evictionRequest // nil without responders
}

func (p *podState) name() string { return p.pod.Namespace + "/" + p.pod.Name }

func (p *podState) isTerminating() bool { return p.pod.DeletionTimestamp != nil }

// isWaiting reports whether the pod has to be evicted and the API server has accepted no request for it yet.
func (p *podState) isWaiting() bool {
	return !p.gone && p.action == podrules.Evict && p.removal == NotRemoved && !p.isTerminating()
}

// needsRemoval reports whether the pod has to be removed and is not gone. The next final list shows whether a missing pod is.
func (p *podState) needsRemoval() bool { return !p.gone && !p.missing && p.action != podrules.Skip }

// setPod takes over a newer state of the same pod.
func (p *podState) setPod(pod kubeapi.Pod) {
	if hasDisruptionTarget(&p.pod, "True") && hasDisruptionTarget(&pod, "False") {
		p.conditionWaitUntil, p.conditionAnswered = time.Time{}, false // the deletion was postponed: write the condition again
	}
	p.pod = pod
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return
	}
	if p.stoppingSince.IsZero() {
		p.stoppingSince = pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	} else if *pod.DeletionGracePeriodSeconds == 0 && determinePodEnd(&pod, p.stoppingSince) != Vanished {
		return // the kubelet removes a pod that has ended; the given grace does not change
	}
	// deletionGracePeriodSeconds is not used: it becomes 1 if a grace is shortened after more than that has passed.
	p.givenGrace = pod.DeletionTimestamp.Sub(p.stoppingSince)
	p.attributeToUnansweredRequest()
}

// recordUnansweredRequest records that a request may have been carried out, although it got no answer or an unclear
// one.
func (p *podState) recordUnansweredRequest(method RemovalMethod) {
	if p.removal != NotRemoved {
		return
	}
	p.unansweredRequest = method
	if p.gone || p.isTerminating() {
		p.attributeToUnansweredRequest()
	}
}

// attributeToUnansweredRequest records a terminating pod as removed by this drain, if the drain has sent a request that
// got no clear answer. It does not if the pod's state shows another cause: an eviction leaves a condition, and a
// shortened grace is visible.
func (p *podState) attributeToUnansweredRequest() {
	if p.requesting || p.removal != NotRemoved || p.unansweredRequest == NotRemoved {
		return
	}
	method := p.unansweredRequest
	if p.isTerminating() {
		grace := p.pod.DeletionGracePeriodSeconds // nil in a document that the API server did not write
		switch evicted := hasEvictionCondition(&p.pod); {
		case method == GraceShortened && (grace == nil || *grace > 1), method == Evicted && !evicted:
			return
		case method == ForceDeleted && evicted: // the eviction before it had worked
			method = Evicted
		}
	}
	p.removal, p.removalAt, p.unansweredRequest, p.blocked = method, p.lastSentAt, NotRemoved, BlockedPod{}
}

// hasEvictionCondition reports whether the pod has the condition of the eviction API
// (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions).
func hasEvictionCondition(p *kubeapi.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == disruptionTarget && c.Status == "True" && c.Reason == "EvictionByEvictionAPI" {
			return true
		}
	}
	return false
}

// markGone records that the Pod object is gone. The last state that the drain has seen shows how the containers ended.
func (p *podState) markGone(now time.Time) {
	if p.gone {
		return
	}
	p.gone, p.goneAt, p.end = true, now, determinePodEnd(&p.pod, p.stoppingSince)
	p.blocked = BlockedPod{}
	p.attributeToUnansweredRequest()
}

// determinePodEnd returns how the containers of a pod ended. A SIGKILL counts as Killed only if it came after the pod's
// deletion. A container of a finished pod, or a sidecar, may have been killed long before. A container that ran out of
// memory has the same exit code.
func determinePodEnd(p *kubeapi.Pod, stopSince time.Time) PodEnd {
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

// setBlocked records the obstacle that the pod waits for.
func (p *podState) setBlocked(reason ObstacleKind, budget, detail string, now time.Time) {
	if p.blocked.Reason != reason || p.blocked.PDB != budget {
		p.blocked.Since = now
		p.findOrAddDelay(reason, budget, detail, now)
	}
	p.blocked = BlockedPod{
		Namespace: p.pod.Namespace, Pod: p.pod.Name, Reason: reason, PDB: budget, Detail: detail,
		Since: p.blocked.Since,
	}
}

// findOrAddDelay returns the pod's delay for the reason. There is one for each reason, so their number is limited. It
// has the last PDB that is known.
func (p *podState) findOrAddDelay(reason ObstacleKind, pdb, detail string, now time.Time) *Delay {
	i := slices.IndexFunc(p.delays, func(d Delay) bool { return d.Reason == reason })
	if i < 0 {
		i = len(p.delays)
		p.delays = append(p.delays, Delay{Reason: reason, Detail: detail, StartedAt: now})
	}
	if pdb != "" {
		p.delays[i].PDB = pdb
	}
	return &p.delays[i]
}

// recordRefusal adds one refusal to the pod's delays.
func (p *podState) recordRefusal(reason ObstacleKind, pdb, detail string, now time.Time) {
	d := p.findOrAddDelay(reason, pdb, detail, now)
	if d.Count++; d.Count == 1 {
		d.firstRefusal = now
	}
	d.Detail = detail
	d.Seconds = now.Sub(d.firstRefusal).Seconds()
}

// wasRefused reports whether a request of the pod was refused.
func (p *podState) wasRefused() bool {
	return slices.ContainsFunc(p.delays, func(d Delay) bool { return d.Count > 0 })
}

func (p *podState) toReport() PodReport {
	r := PodReport{
		Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID, Decision: p.decision, Action: p.action, Wave: p.wave, Group: p.group.String(),
		Removal: p.removal, RemovalRequestedAt: p.removalAt, WantedGraceSeconds: int64(p.wantedGrace / time.Second),
		GivenGraceSeconds: int64(p.givenGrace / time.Second), End: p.end, EndedAt: p.goneAt, Delays: slices.Clone(p.delays),
		UnansweredRequest: p.unansweredRequest, FirstRequestedAt: p.firstSentAt, TerminatingSince: p.stoppingSince, Surge: p.toSurgeReport(),
		EvictionRequest: p.request.toReport(),
	}
	if c := fromkubeapi.FindController(&p.pod); c != nil {
		r.Owner = c.Kind + "/" + c.Name
	}
	return r
}

// toBlockedPod returns the pod with the obstacle that blocks its removal, and a message for people.
func (p *podState) toBlockedPod(began time.Time) BlockedPod {
	b := BlockedPod{Namespace: p.pod.Namespace, Pod: p.pod.Name, Reason: ObstacleQueued, Detail: "not requested yet", Since: began}
	switch {
	case p.removal != NotRemoved || p.isTerminating():
		b.Reason, b.Since, b.Detail = ObstacleStopping, p.stoppingSince, "stopping"
		if b.Since.IsZero() {
			b.Since = p.removalAt
		}
		if at := p.pod.DeletionTimestamp; at != nil {
			b.Detail = "stopping, until " + at.UTC().Format(time.TimeOnly) + " at the latest"
		}
	case p.action == podrules.RefuseDrain || p.action == podrules.AwaitTermination:
		b.Reason, b.Detail = ObstaclePolicy, fmt.Sprintf("%s: %s", p.decision.Rule, p.decision.Detail)
	case p.blocked.Reason != "":
		b = p.blocked
	}
	return b
}
