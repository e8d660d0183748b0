package launch

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// PendingLaunch is a launch with the instances that were not seen yet.
type PendingLaunch struct {
	ID          string
	Template    string
	Count       int
	RequestedAt time.Time
	// AnsweredAt is when the cloud answered. It is zero until then.
	AnsweredAt time.Time
	Answer     Answer
	// Running means that the cloud still works on it. Until it ends, the group's size need not count it.
	Running bool
	// Unrequested means that the cloud makes it without a request, whenever it can.
	Unrequested bool
	// SettledAt is when the instances are no longer expected after a Lost answer.
	SettledAt time.Time
	// Named are the instances that the cloud has named and that were not seen, by provider ID.
	Named []string
	// SeenBeforeAnswer are the instances that appeared before the answer. They count as part of the launch. They become ours only
	// when the answer confirms it.
	SeenBeforeAnswer []string
}

// NewPendingLaunch converts a recorded launch. If the record has no answer after the request timeout, the answer counts
// as lost (invariant I8). If the launch was accepted, its instances may still take the settle time to appear.
func NewPendingLaunch(l *v1alpha1.Launch, settle time.Duration, now time.Time) PendingLaunch {
	p := PendingLaunch{ID: l.ID, Template: l.Template, Count: int(l.Count), RequestedAt: l.RequestedAt.Time, Named: slices.Clone(l.Named), Unrequested: l.Unrequested}
	p.AnsweredAt, p.Answer = p.RequestedAt.Add(RequestTimeout(p.Count)), Lost
	if l.AnsweredAt != nil {
		p.AnsweredAt = l.AnsweredAt.Time
	}
	p.SettledAt = p.AnsweredAt.Add(settle)
	switch {
	case l.State == v1alpha1.LaunchFailed:
		p.Answer = Refused
	case l.Reason != "":
		p.Answer = NotMade
	case l.State == v1alpha1.LaunchProvisioning && l.AnsweredAt != nil:
		p.Answer, p.Running = Accepted, l.OperationID != "" || now.Before(p.SettledAt)
	}
	return p
}

// Instance is an instance of a launch with no usable Node yet.
type Instance struct {
	ProviderID string
	// Template is the launched template, and Launch the launch's ID.
	Template, Launch string
	// Since is when the instance was first seen.
	Since metav1.Time

	uniqueID string    // as last listed in this process
	created  time.Time // as last listed in this process; zero before that
}

// Answer is a cloud's answer to a launch.
type Answer int

// The answers.
const (
	Accepted Answer = iota
	Refused         // some of the instances may exist
	Lost            // all of the instances may be provisioning
	NotMade         // it was accepted, and the cloud could not create the instances
)

// wasUnanswered reports whether the cloud had not answered the launch when a cloud read began.
func (a *PendingLaunch) wasUnanswered(readAt time.Time) bool {
	return a.AnsweredAt.IsZero() || a.AnsweredAt.After(readAt)
}

// clampTimes corrects times in the future. An answer is expected within the timeout.
func (a *PendingLaunch) clampTimes(now time.Time) {
	a.RequestedAt = elapsed.ClampToNow(a.RequestedAt, now)
	if elapsed.IsFuture(a.AnsweredAt, now.Add(RequestTimeout(a.Count))) {
		a.AnsweredAt, a.SettledAt = now, now.Add(SettleTime)
	}
}

// mayStillShowInstances reports whether instances may still appear for a launch whose answer is missing, lost or a refusal.
func (a *PendingLaunch) mayStillShowInstances(readAt, now time.Time) bool {
	switch {
	case a.AnsweredAt.IsZero():
		return true
	case a.Count == 0:
		return false
	case a.wasUnanswered(readAt), a.Running:
		return true
	}
	return a.Answer == Lost && now.Before(a.SettledAt)
}

// ExpectedCount returns how many instances of the launch count as provisioning.
func (a *PendingLaunch) ExpectedCount() int {
	switch a.Answer {
	case Refused:
		return len(a.Named)
	case NotMade:
		return 0
	}
	return max(0, a.Count-len(a.SeenBeforeAnswer))
}

// ApplyAnswer applies the cloud's answer to the launch. If the answer names instances, the launch has only these. If the
// answer is lost, further instances are expected until the launch has settled.
func (a *PendingLaunch) ApplyAnswer(answer Answer, named []string, at time.Time, settle time.Duration) {
	a.AnsweredAt, a.Answer, a.Named, a.SettledAt = at, answer, slices.Clone(named), at.Add(settle)
	switch {
	case answer == Lost:
		a.Count = max(a.Count, len(named))
	case len(named) > 0:
		a.Count = len(named)
	}
}

// recordSeenBeforeAnswer returns the launches after their answers. It adds instances that appeared before an answer to the
// record, unless the answer excludes them.
func (s *Observation) recordSeenBeforeAnswer(record map[string]Instance) []PendingLaunch {
	pending := slices.Clone(s.Pending)
	for i := range pending {
		a := &pending[i]
		a.Named, a.SeenBeforeAnswer = slices.Clone(a.Named), slices.Clone(a.SeenBeforeAnswer)
		if a.AnsweredAt.IsZero() {
			continue
		}
		for _, id := range a.SeenBeforeAnswer {
			if a.claimInstance(id) {
				record[id] = s.newInstance(id, a.Template, a.ID)
			}
		}
		a.SeenBeforeAnswer = nil
	}
	return pending
}

// claimInstance counts an instance as seen for a launch that was answered. It returns false if the instance does not
// belong to the launch.
func (a *PendingLaunch) claimInstance(id string) (claimed bool) {
	switch at := slices.Index(a.Named, id); {
	case at >= 0:
		a.Named = slices.Delete(a.Named, at, at+1)
	case a.Count <= len(a.Named):
		return false
	}
	a.Count--
	return true
}

// matchInstanceToLaunch returns the launch of a new instance. It returns false if Slipway has not launched the
// instance. The result has the launch's template, because some clouds do not report the type of an instance, or use
// other names for types. An instance with a known other type is not assigned to the launch.
func (s *Observation) matchInstanceToLaunch(pending []PendingLaunch, i cloud.Instance) (r Instance, ours bool) {
	for k := range pending {
		a := &pending[k]
		switch {
		case slices.Contains(a.Named, i.ProviderID):
			return s.newInstance(i.ProviderID, cmp.Or(a.Template, i.Type), a.ID), a.claimInstance(i.ProviderID)
		case slices.Contains(a.SeenBeforeAnswer, i.ProviderID):
			return r, false
		}
	}
	for k := range pending {
		a := &pending[k]
		if a.Template != "" && i.Type != "" && !IsSameTemplate(a.Template, i.Type) || a.Count <= len(a.Named)+len(a.SeenBeforeAnswer) || !s.appearedSince(i, a.RequestedAt) {
			continue
		}
		if a.AnsweredAt.IsZero() {
			a.SeenBeforeAnswer = append(a.SeenBeforeAnswer, i.ProviderID)
			return r, false
		}
		return s.newInstance(i.ProviderID, cmp.Or(a.Template, i.Type), a.ID), a.claimInstance(i.ProviderID)
	}
	return r, false
}

// maxClockSkew is how far the clocks of a cloud and of this process may differ.
const maxClockSkew = 5 * time.Minute

// appearedSince reports whether an instance appeared after a launch: an earlier read did not have it, and it was not
// created before the launch. In the first read of a process, only its creation time decides, in whole seconds.
func (s *Observation) appearedSince(i cloud.Instance, launchedAt time.Time) bool {
	if s.FirstSeen == nil {
		return !i.Created.IsZero() && !i.Created.Before(launchedAt.Truncate(time.Second))
	}
	_, known := s.FirstSeen[i.ProviderID]
	_, requested := s.FirstSeen[i.PreviousProviderID]
	return !known && !requested && (i.Created.IsZero() || !i.Created.Before(launchedAt.Add(-maxClockSkew)))
}

// DropReusedIDs returns the recorded instances without those that the cloud has created anew since they were first
// seen. Some clouds reuse provider IDs, and Slipway has not launched the new instance (invariant I4). The creation times
// must be the cloud's, because a Node may be much younger than its instance. A late creation time alone is no proof: the
// cloud's clock may be ahead.
func DropReusedIDs(recorded []Instance, shown []cloud.Instance) []Instance {
	byID := map[string]cloud.Instance{}
	for _, i := range shown {
		byID[i.ProviderID] = i
	}
	return slices.DeleteFunc(slices.Clone(recorded), func(r Instance) bool {
		i := byID[r.ProviderID]
		isAnother := r.uniqueID != "" && i.UniqueID != "" && i.UniqueID != r.uniqueID || !r.created.IsZero() && !i.Created.Equal(r.created)
		return isAnother && i.Created.After(r.Since.Add(maxClockSkew))
	})
}
