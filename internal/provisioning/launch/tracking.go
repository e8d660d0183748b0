package launch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// Observation is the input of TrackInstances: a group's instances and launches at one moment.
type Observation struct {
	Group     cloud.Group
	Instances []cloud.Instance
	// JoinState returns how far an instance has joined the cluster.
	JoinState func(cloud.Instance) JoinState
	// FirstSeen are the instances of the previous read, with the time when each was first seen, by provider ID. It is nil
	// in the first read of a process.
	FirstSeen map[string]time.Time
	// PreviouslyJoined are instances that joined before, by provider ID. They are not assigned to a launch.
	PreviouslyJoined map[string]bool
	// Unjoined are the recorded instances without a usable Node.
	Unjoined []Instance
	// Pending are the launches with instances that were not seen, the oldest first.
	Pending []PendingLaunch
	// ReadAt is when the cloud read began. It may not show launches that were answered later.
	ReadAt time.Time
	// UnseenSince is since when the cloud's size counts instances that it does not list, from the previous read.
	UnseenSince time.Time
	// EmptySince is since when the cloud lists no instance although the size counts some, from the previous read.
	EmptySince time.Time
	// WatchedSince is since when this process has tracked the group. It does not know what happened to instances before.
	WatchedSince time.Time
	JoinTimeout  time.Duration
	Now          time.Time
}

// JoinState is how far an instance has joined the cluster.
type JoinState int

// The states of an instance.
const (
	NoNode        JoinState = iota
	NodeUncertain           // a Node could not be ruled out: the instance is not deleted (I7)
	NodeNotReady            // the Node is not Ready
	NodeUnusable            // the Node is Ready, but takes no pods of the group; see WhyUnusable
	NodeLeaving             // the Node is Ready and is being retired
	NodeUsable
)

// Tracking is the result of TrackInstances.
type Tracking struct {
	// Provisioning are the provisioning instances, including those that the cloud does not list yet.
	Provisioning []ProvisioningInstance
	// FailedWithoutNode are our instances that have no Node and will get none. They must be deleted.
	FailedWithoutNode []FailedInstance
	// NeverReady are our instances with a Node that was not Ready in time. The Nodes must be retired.
	NeverReady []FailedInstance
	// NeverUsable are our instances with a Node that took no pods of the group in time.
	NeverUsable []FailedInstance
	// Overdue are our instances with a Node that was not usable in time, by provider ID.
	Overdue map[string]bool
	// Joined are our instances with a Node that became usable since the previous read.
	Joined []Instance
	// UnknownInstances are instances without a Node that belong to no known launch and are older than the join timeout. They are
	// reported and kept (I4, I7).
	UnknownInstances []string
	Unjoined         []Instance
	Pending          []PendingLaunch
	// Dropped are launches, or parts of them, that the cloud has dropped without an error.
	Dropped []PendingLaunch
	// Ended are refused or lost launches, with the instances that did not appear and are not expected any more.
	Ended     []PendingLaunch
	FirstSeen map[string]time.Time
	// UnseenSince and EmptySince are the input of the next Observation.
	UnseenSince, EmptySince time.Time
	// Late are the launches with instances that were not seen within the join timeout, by ID.
	Late map[string]bool
	// Unmade is how many instances Group.Size counts that do not exist and are not expected.
	Unmade int
}

// FailedInstance is an instance that failed to join.
type FailedInstance struct {
	Instance cloud.Instance
	// Template is the launched template, and Launch the launch's ID.
	Template, Launch string
	// Reason is the reason of a back-off.
	Reason, Message string
}

// ProvisioningInstance is a requested instance without a Node.
type ProvisioningInstance struct {
	// ID is the provider ID, or a number if the cloud does not list the instance yet.
	ID       string
	Template string // empty if unknown: the group's first
	// LaunchID is the ID of the launch of an unlisted instance. It is empty if unknown.
	LaunchID string
}

// TrackInstances decides for each instance whether it is provisioning, has joined or has failed.
//
// Slipway has launched an instance if the cloud names it in the answer to a launch, or if it appeared after a launch.
// Such instances are recorded at once. Only recorded instances are ever deleted.
func TrackInstances(s Observation) Tracking {
	s = s.withCurrentIDsAndTimes()
	out := Tracking{FirstSeen: map[string]time.Time{}, Overdue: map[string]bool{}, Late: map[string]bool{}}
	record := map[string]Instance{}
	for _, r := range s.Unjoined {
		record[r.ProviderID] = r
	}
	pending := s.recordSeenBeforeAnswer(record)
	for k := range pending {
		a := &pending[k]
		out.Late[a.ID] = !a.Unrequested && !s.Now.Before(a.RequestedAt.Add(s.JoinTimeout))
		a.Running = a.Running && !out.Late[a.ID]
	}
	present := 0
	instances := slices.SortedFunc(slices.Values(s.Instances), func(a, b cloud.Instance) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ProviderID, b.ProviderID))
	})
	for _, i := range instances {
		if _, listed := out.FirstSeen[i.ProviderID]; listed { // a list that changes between its pages may repeat an instance
			continue
		}
		out.FirstSeen[i.ProviderID] = s.firstSeenOrNow(i.ProviderID)
		r, ours := record[i.ProviderID]
		if i.State == cloud.Deleting {
			if ours { // its deletion may fail
				out.Unjoined = append(out.Unjoined, r)
			}
			continue
		}
		present++
		if i.OwnerUncertain || s.PreviouslyJoined[i.ProviderID] {
			ours = false
		} else if !ours {
			r, ours = s.matchInstanceToLaunch(pending, i)
		}
		r.uniqueID, r.created = i.UniqueID, i.Created
		switch join := s.JoinState(i); {
		case (join == NodeUsable || join == NodeLeaving) && ours: // a retiring Node was Ready: its own retirement replaces it
			out.Joined = append(out.Joined, r)
		case (join == NodeNotReady || join == NodeUnusable) && ours:
			out.trackStartingInstance(s, i, join, r)
		case join == NoNode || join == NodeUncertain:
			out.classifyWithoutNode(s, i, join, r, ours)
		}
	}
	if len(instances) == 0 && s.Group.Size > 0 {
		out.keepWhileListIsEmpty(s, record)
	}
	out.trackUnlistedInstances(s, pending, s.Group.Size-present)
	return out
}

// keepWhileListIsEmpty keeps what the previous read has shown, because an empty list of a group that has a size may be
// an error of the cloud (invariant I7). Otherwise the next list would consist of new instances, and the recorded ones
// would have vanished. The list is believed after the settle time.
func (v *Tracking) keepWhileListIsEmpty(s Observation, record map[string]Instance) {
	v.EmptySince = s.EmptySince
	if v.EmptySince.IsZero() {
		v.EmptySince = s.Now
	}
	if !s.Now.Before(v.EmptySince.Add(SettleTime)) {
		return
	}
	v.FirstSeen = maps.Clone(s.FirstSeen) // nil stays nil: the next read is the first that shows old instances
	for _, id := range slices.Sorted(maps.Keys(record)) {
		v.Unjoined = append(v.Unjoined, record[id])
	}
}

// UpdateLaunch sets the state of a launch from the result of TrackInstances.
func (v *Tracking) UpdateLaunch(l *v1alpha1.Launch, now time.Time) {
	var pending PendingLaunch
	if i := slices.IndexFunc(v.Pending, func(a PendingLaunch) bool { return a.ID == l.ID }); i >= 0 {
		pending = v.Pending[i]
	}
	l.Count, l.Named, l.Instances = int32(pending.Count), pending.Named, nil
	for _, r := range v.Unjoined {
		if r.Launch == l.ID {
			l.Instances = append(l.Instances, v1alpha1.LaunchedInstance{ProviderID: r.ProviderID, Since: r.Since})
		}
	}
	for _, i := range slices.Concat(v.FailedWithoutNode, v.NeverReady, v.NeverUsable) {
		if i.Launch == l.ID {
			l.State, l.Reason, l.Message = v1alpha1.LaunchFailed, i.Reason, clipMessage(i.Instance.ProviderID+": "+i.Message)
			return
		}
	}
	if l.Count > 0 || len(l.Instances) > 0 {
		if l.State == v1alpha1.LaunchRequested && (len(l.Instances) > 0 || pending.Answer == Accepted) { // its answer was lost
			l.State, l.AnsweredAt = v1alpha1.LaunchProvisioning, new(metav1.NewTime(now).Rfc3339Copy())
		}
		return
	}
	if i := slices.IndexFunc(v.Joined, func(r Instance) bool { return r.Launch == l.ID }); i >= 0 {
		SetLaunchReady(l, v.Joined[i])
		return
	}
	l.State = v1alpha1.LaunchFailed
	switch over := slices.ContainsFunc(v.Ended, func(a PendingLaunch) bool { return a.ID == l.ID && a.Answer == Lost }); {
	case l.Reason != "":
	case over:
		l.Reason, l.Message = Unclear, "the cloud's answer was lost, and the cloud shows no instance of the launch"
	case v.Late[l.ID]:
		l.Reason, l.Message = NeverJoined, "the cloud counts its instance but did not show it in time"
	default:
		l.Reason, l.Message = InstanceVanished, "the cloud has dropped its instance before a Node was usable"
	}
}

// SetLaunchReady records that an instance of a launch is usable.
func SetLaunchReady(l *v1alpha1.Launch, r Instance) {
	l.State, l.Count, l.Named = v1alpha1.LaunchReady, 0, nil
	l.Instances = []v1alpha1.LaunchedInstance{{ProviderID: r.ProviderID, Since: r.Since}}
}

// withCurrentIDsAndTimes returns the observation with the new provider ID of each recorded instance with a changed ID.
// If another instance has the old ID, or two instances claim it, the old ID stays (invariant I4). An instance with a
// new ID gets the full join timeout again. Times in the future become now.
func (s Observation) withCurrentIDsAndTimes() Observation {
	now, taken := map[string]string{}, map[string]bool{}
	for _, i := range s.Instances {
		taken[i.ProviderID] = true
	}
	for _, i := range s.Instances {
		if id := i.PreviousProviderID; id != "" && !taken[id] {
			now[id], taken[id] = i.ProviderID, true
		} else {
			delete(now, id)
		}
	}
	rename := func(ids []string) []string {
		ids = slices.Clone(ids)
		for k, id := range ids {
			ids[k] = cmp.Or(now[id], id)
		}
		return ids
	}
	s.Unjoined, s.Pending = slices.Clone(s.Unjoined), slices.Clone(s.Pending)
	for k := range s.Unjoined {
		if elapsed.IsFuture(s.Unjoined[k].Since.Time, s.Now) {
			s.Unjoined[k].Since = metav1.NewTime(s.Now).Rfc3339Copy()
		}
	}
	for k := range s.Pending {
		s.Pending[k].clampTimes(s.Now)
	}
	for k, r := range s.Unjoined {
		if id := now[r.ProviderID]; id != "" {
			s.Unjoined[k] = s.newInstance(id, r.Template, r.Launch)
		}
	}
	for k := range s.Pending {
		s.Pending[k].Named, s.Pending[k].SeenBeforeAnswer = rename(s.Pending[k].Named), rename(s.Pending[k].SeenBeforeAnswer)
	}
	return s
}

func (s *Observation) firstSeenOrNow(id string) time.Time {
	if at, known := s.FirstSeen[id]; known {
		return at
	}
	return s.Now
}

func (s *Observation) newInstance(id, template, launch string) Instance {
	return Instance{ProviderID: id, Template: template, Launch: launch, Since: metav1.NewTime(s.firstSeenOrNow(id)).Rfc3339Copy()}
}

// trackStartingInstance leaves an instance in the record until its Node has been usable once. If the Node becomes
// unusable later, the instance stays joined.
func (v *Tracking) trackStartingInstance(s Observation, i cloud.Instance, join JoinState, r Instance) {
	v.Unjoined = append(v.Unjoined, r)
	if !s.isOverdue(i, r.Since.Time) {
		return
	}
	v.Overdue[i.ProviderID] = true
	template := cmp.Or(r.Template, i.Type)
	if join == NodeNotReady {
		message := fmt.Sprintf("its Node was not Ready for %s", s.JoinTimeout)
		v.NeverReady = append(v.NeverReady, FailedInstance{i, template, r.Launch, NeverReady, message})
		return
	}
	message := fmt.Sprintf("its Node could run no pods of the group for %s", s.JoinTimeout)
	v.NeverUsable = append(v.NeverUsable, FailedInstance{i, template, r.Launch, NeverUsable, message})
}

// isOverdue reports whether an instance was not usable within the join timeout. It returns false if this process has
// watched the instance for a shorter time.
func (s *Observation) isOverdue(i cloud.Instance, since time.Time) bool {
	return i.State != cloud.Unknown && !s.Now.Before(since.Add(s.JoinTimeout)) && !s.Now.Before(s.WatchedSince.Add(s.JoinTimeout))
}

// classifyWithoutNode classifies an instance that has no known Node.
func (v *Tracking) classifyWithoutNode(s Observation, i cloud.Instance, join JoinState, r Instance, ours bool) {
	since, template := r.Since.Time, cmp.Or(r.Template, i.Type)
	switch {
	case ours:
	case i.Created.IsZero(): // the cloud does not report the creation time
		since = s.firstSeenOrNow(i.ProviderID)
	default:
		since = i.Created
	}
	late := !s.Now.Before(since.Add(s.JoinTimeout))
	switch {
	case join == NodeUncertain && (late || i.State == cloud.Failed):
	case ours && i.State == cloud.Failed:
		v.FailedWithoutNode = append(v.FailedWithoutNode, FailedInstance{i, template, r.Launch, cmp.Or(string(i.Refusal), Failed), cmp.Or(i.Message, "the cloud could not create it")})
	case ours && s.isOverdue(i, since):
		v.FailedWithoutNode = append(v.FailedWithoutNode, FailedInstance{i, template, r.Launch, NeverJoined, fmt.Sprintf("it was %s and had no Node for %s", i.State, s.JoinTimeout)})
	case late:
		v.UnknownInstances = append(v.UnknownInstances, i.ProviderID)
	case i.State != cloud.Failed:
		v.Provisioning = append(v.Provisioning, ProvisioningInstance{ID: i.ProviderID, Template: template})
	}
	if ours {
		v.Unjoined = append(v.Unjoined, r)
	}
}

// trackUnlistedInstances counts the instances that are in the cloud's size and not in its list. It counts them for each
// launch, if their launch is known. After the join timeout they are not expected any longer.
func (v *Tracking) trackUnlistedInstances(s Observation, pending []PendingLaunch, unlisted int) {
	expect := func(count int, template, launchID string) {
		for range count {
			v.Provisioning = append(v.Provisioning, ProvisioningInstance{ID: fmt.Sprintf("unseen-%d", len(v.Provisioning)), Template: template, LaunchID: launchID})
		}
	}
	if unlisted > 0 {
		v.UnseenSince = s.UnseenSince
		if v.UnseenSince.IsZero() {
			v.UnseenSince = s.Now
		}
	}
	for _, a := range pending {
		if a.Answer != Accepted || a.wasUnanswered(s.ReadAt) || a.Running {
			continue
		}
		missing := a
		a.Count = max(0, min(a.Count, unlisted))
		if v.Late[a.ID] {
			a.Count = 0
		}
		if missing.Count -= a.Count; missing.Count > 0 {
			v.Dropped = append(v.Dropped, missing)
		}
		if a.Count > 0 {
			unlisted -= a.Count
			v.Pending = append(v.Pending, a)
			expect(a.Count, a.Template, a.ID)
		}
	}
	for _, a := range pending { // the cloud's size may count instances that it could not create
		if a.Answer != NotMade || a.wasUnanswered(s.ReadAt) {
			continue
		}
		if a.Count = min(a.Count, unlisted); a.Count > 0 && !v.Late[a.ID] {
			unlisted -= a.Count
			v.Unmade += a.Count
			v.Pending = append(v.Pending, a)
		}
	}
	for _, a := range pending { // the cloud's size may or may not count their instances
		switch {
		case a.Answer == NotMade && !a.wasUnanswered(s.ReadAt):
		case a.mayStillShowInstances(s.ReadAt, s.Now):
			unlisted -= a.ExpectedCount()
			v.Pending = append(v.Pending, a)
			expect(a.ExpectedCount(), a.Template, a.ID)
		case a.Answer != Accepted:
			if a.Answer == Lost && !v.Late[a.ID] && unlisted >= a.ExpectedCount() { // the size proves that the launch was accepted
				unlisted -= a.ExpectedCount()
				a.Answer = Accepted
				v.Pending = append(v.Pending, a)
				expect(a.ExpectedCount(), a.Template, a.ID)
				continue
			}
			v.Ended = append(v.Ended, a)
		}
	}
	if unlisted > 0 && s.Now.Before(v.UnseenSince.Add(s.JoinTimeout)) { // launched by another client or by an earlier process
		expect(unlisted, "", "")
	} else {
		v.Unmade += max(0, unlisted)
	}
}
