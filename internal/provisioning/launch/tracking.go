package launch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// Observation is what is known of a group's instances at one moment.
type Observation struct {
	Group     cloud.Group
	Instances []cloud.Instance
	// Join tells how far a machine has come with joining the cluster.
	Join func(cloud.Instance) Join
	// Known are the machines that were seen the last time, by provider ID, with when each was seen first; nil when this is
	// the first look since the start of the process.
	Known map[string]time.Time
	// Joined are machines that came after an order and have joined since, by provider ID: they come after no other one.
	Joined map[string]bool
	// Record is what was written down of the machines that came after an order and had no Node yet.
	Record []Instance
	// Pending are the orders whose machines have not been seen yet, the oldest first.
	Pending []Pending
	// Began is when the cloud began to be asked: of an order that it had not answered by then it may not tell yet.
	Began time.Time
	// UnseenSince is since when the cloud has meant to make machines that it does not show, as the look before found it.
	UnseenSince time.Time
	// Watched is since when this process has looked at the group: one that has only just started has not seen what
	// became of a machine before.
	Watched     time.Time
	JoinTimeout time.Duration
	Now         time.Time
}

// Join is how far a machine has come with joining the cluster.
type Join int

// How far machines come.
const (
	NoNode       Join = iota
	Unsure            // whether it has a Node could not be found out: it may be on its way, and is not given up (I7)
	HasNode           // and it is not Ready
	NodeUnusable      // it is Ready, and takes no pods of the group; see WhyUnusable
	NodeLeaving       // it is Ready, and is being taken out of service
	NodeUsable
)

// Tracking is what Track makes of an observation.
type Tracking struct {
	// Awaited are the machines that are on their way, those that the cloud does not show yet included.
	Awaited []Expected
	// Dead are those of ours that have had no Node and will have none. They are to be deleted.
	Dead []FailedInstance
	// NeverReady are those of ours whose Nodes have not been Ready in time. The Nodes are to be retired.
	NeverReady []FailedInstance
	// NeverUsable are those of ours whose Nodes have taken no pods of the group in time.
	NeverUsable []FailedInstance
	// Overdue are the machines of ours, by provider ID, that have a Node and have had their time to become usable.
	Overdue map[string]bool
	// Joined are the machines of ours whose Nodes have become usable since the last look.
	Joined []Instance
	// Strays are machines without a Node that came after no order of ours that is known, and are too old to be on their
	// way. They are reported and left alone (I4, I7).
	Strays  []string
	Record  []Instance
	Pending []Pending
	// Lapsed are orders, or what is left of them, that the cloud has dropped without a word.
	Lapsed []Pending
	// Over are orders that were refused, or whose answers were lost, with as many of their machines as have not come and are
	// not expected any more.
	Over  []Pending
	Known map[string]time.Time
	// UnseenSince is to be given to the next look.
	UnseenSince time.Time
	// Late are the launches, by ID, of which not all instances were seen within the join timeout.
	Late map[string]bool
	// Unmade is how many machines the cloud counts in Group.Size that it does not have, and that are not expected.
	Unmade int
}

// FailedInstance is one that will not have a Node.
type FailedInstance struct {
	Instance cloud.Instance
	// Kind is the one that was ordered, and Launch the launch's ID.
	Kind, Launch string
	// Reason is one for a back-off.
	Reason, Message string
}

// Expected is an instance that was requested and has no Node yet.
type Expected struct {
	// ID tells it from others: its provider ID, or a number if its cloud does not show it yet.
	ID   string
	Kind string // empty if not known: the group's first
	// Order is the ID of its launch, as long as its cloud does not show it; empty if none is known.
	Order string
}

// Track tells which machines are on their way, and which will never come. A machine is one of ours when it has come after
// an order, which the cloud says by naming it, or which is seen by its not having been there before; that is written down
// at once, and only those are ever given up.
func Track(s Observation) Tracking {
	s = s.withCurrentIDs()
	out := Tracking{Known: map[string]time.Time{}, Overdue: map[string]bool{}, Late: map[string]bool{}}
	record := map[string]Instance{}
	for _, r := range s.Record {
		record[r.ProviderID] = r
	}
	asked := s.applyAnswers(record)
	for k := range asked {
		a := &asked[k]
		out.Late[a.ID] = !a.Unrequested && !s.Now.Before(a.At.Add(s.JoinTimeout))
		a.Running = a.Running && !out.Late[a.ID]
	}
	there := 0
	instances := slices.SortedFunc(slices.Values(s.Instances), func(a, b cloud.Instance) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ProviderID, b.ProviderID))
	})
	for _, i := range instances {
		if _, listed := out.Known[i.ProviderID]; listed { // a list that changes between its pages may have an instance twice
			continue
		}
		out.Known[i.ProviderID] = s.firstSeen(i.ProviderID)
		r, ours := record[i.ProviderID]
		if i.State == cloud.Deleting {
			if ours { // its deletion may fail
				out.Record = append(out.Record, r)
			}
			continue
		}
		there++
		if i.Adopted || s.Joined[i.ProviderID] {
			ours = false
		} else if !ours {
			r, ours = s.matchInstance(asked, i)
		}
		switch join := s.Join(i); {
		case (join == NodeUsable || join == NodeLeaving) && ours: // one that leaves was Ready: it is replaced by its own retirement
			out.Joined = append(out.Joined, r)
		case (join == HasNode || join == NodeUnusable) && ours:
			out.trackStarting(s, i, join, r)
		case join == NoNode || join == Unsure:
			out.trackWithoutNode(s, i, join, r, ours)
		}
	}
	out.trackUnseen(s, asked, s.Group.Size-there)
	return out
}

// Update sets how far a launch is by what was tracked.
func (v *Tracking) Update(l *v1alpha1.Launch, now time.Time) {
	var pending Pending
	if i := slices.IndexFunc(v.Pending, func(a Pending) bool { return a.ID == l.ID }); i >= 0 {
		pending = v.Pending[i]
	}
	l.Count, l.Named, l.Instances = int32(pending.Count), pending.Named, nil
	for _, r := range v.Record {
		if r.Launch == l.ID {
			l.Instances = append(l.Instances, v1alpha1.LaunchedInstance{ProviderID: r.ProviderID, Since: r.Since})
		}
	}
	for _, i := range slices.Concat(v.Dead, v.NeverReady, v.NeverUsable) {
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
		SetReady(l, v.Joined[i])
		return
	}
	l.State = v1alpha1.LaunchFailed
	switch over := slices.ContainsFunc(v.Over, func(a Pending) bool { return a.ID == l.ID && a.Answer == Lost }); {
	case l.Reason != "":
	case over:
		l.Reason, l.Message = Unclear, "the answer of the cloud was lost, and it shows no instance of the launch"
	case v.Late[l.ID]:
		l.Reason, l.Message = NeverJoined, "the cloud counts its instance and has not shown it in time"
	default:
		l.Reason, l.Message = InstanceVanished, "the cloud has dropped its instance before a Node was usable"
	}
}

// SetReady notes that an instance of a launch is usable.
func SetReady(l *v1alpha1.Launch, r Instance) {
	l.State, l.Count, l.Named = v1alpha1.LaunchReady, 0, nil
	l.Instances = []v1alpha1.LaunchedInstance{{ProviderID: r.ProviderID, Since: r.Since}}
}

// withCurrentIDs gives what is remembered of machines under the IDs that they have now, and with no time in the future. One that its cloud has only just made has all of
// its time to join before it. An ID that is still a machine's, or that two say they had, is nobody's former one (I4).
func (s Observation) withCurrentIDs() Observation {
	now, taken := map[string]string{}, map[string]bool{}
	for _, i := range s.Instances {
		taken[i.ProviderID] = true
	}
	for _, i := range s.Instances {
		if id := i.FormerID; id != "" && !taken[id] {
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
	s.Record, s.Pending = slices.Clone(s.Record), slices.Clone(s.Pending)
	for k := range s.Record {
		if elapsed.Future(s.Record[k].Since.Time, s.Now) {
			s.Record[k].Since = metav1.NewTime(s.Now).Rfc3339Copy()
		}
	}
	for k := range s.Pending {
		s.Pending[k].clampTimes(s.Now)
	}
	for k, r := range s.Record {
		if id := now[r.ProviderID]; id != "" {
			s.Record[k] = s.newInstance(id, r.Template, r.Launch)
		}
	}
	for k := range s.Pending {
		s.Pending[k].Named, s.Pending[k].Seen = rename(s.Pending[k].Named), rename(s.Pending[k].Seen)
	}
	return s
}

func (s *Observation) firstSeen(id string) time.Time {
	if at, known := s.Known[id]; known {
		return at
	}
	return s.Now
}

func (s *Observation) newInstance(id, kind, launch string) Instance {
	return Instance{ProviderID: id, Template: kind, Launch: launch, Since: metav1.NewTime(s.firstSeen(id)).Rfc3339Copy()}
}

// trackStarting keeps the record of a machine of ours until its Node has been usable once. What is usable and then is not has
// joined.
func (v *Tracking) trackStarting(s Observation, i cloud.Instance, join Join, r Instance) {
	v.Record = append(v.Record, r)
	if !s.isOverdue(i, r.Since.Time) {
		return
	}
	v.Overdue[i.ProviderID] = true
	kind := cmp.Or(r.Template, i.Type)
	if join == HasNode {
		message := fmt.Sprintf("its Node has not been Ready for %s", s.JoinTimeout)
		v.NeverReady = append(v.NeverReady, FailedInstance{i, kind, r.Launch, NeverReady, message})
		return
	}
	message := fmt.Sprintf("its Node has taken no pods of the group for %s", s.JoinTimeout)
	v.NeverUsable = append(v.NeverUsable, FailedInstance{i, kind, r.Launch, NeverUsable, message})
}

// isOverdue reports whether a machine of ours has had its time to join, and this process has watched it for as long.
func (s *Observation) isOverdue(i cloud.Instance, since time.Time) bool {
	return i.State != cloud.Unknown && !s.Now.Before(since.Add(s.JoinTimeout)) && !s.Now.Before(s.Watched.Add(s.JoinTimeout))
}

// trackWithoutNode says what a machine is that has no Node as far as is known.
func (v *Tracking) trackWithoutNode(s Observation, i cloud.Instance, join Join, r Instance, ours bool) {
	since, kind := r.Since.Time, cmp.Or(r.Template, i.Type)
	switch {
	case ours:
	case i.Created.IsZero(): // its cloud does not say
		since = s.firstSeen(i.ProviderID)
	default:
		since = i.Created
	}
	late := !s.Now.Before(since.Add(s.JoinTimeout))
	switch {
	case join == Unsure && (late || i.State == cloud.Failed):
	case ours && i.State == cloud.Failed:
		v.Dead = append(v.Dead, FailedInstance{i, kind, r.Launch, cmp.Or(string(i.Refusal), Failed), cmp.Or(i.Message, "the cloud could not make it")})
	case ours && s.isOverdue(i, since):
		v.Dead = append(v.Dead, FailedInstance{i, kind, r.Launch, NeverJoined, fmt.Sprintf("it was %s and had no Node for %s", i.State, s.JoinTimeout)})
	case late:
		v.Strays = append(v.Strays, i.ProviderID)
	case i.State != cloud.Failed:
		v.Awaited = append(v.Awaited, Expected{ID: i.ProviderID, Kind: kind})
	}
	if ours {
		v.Record = append(v.Record, r)
	}
}

// trackUnseen counts what the cloud means to make and does not show yet: with the kinds that were asked for, as far as that is
// known. After the timeout nothing is expected of it any more.
func (v *Tracking) trackUnseen(s Observation, asked []Pending, n int) {
	expect := func(count int, kind, order string) {
		for range count {
			v.Awaited = append(v.Awaited, Expected{ID: fmt.Sprintf("unseen-%d", len(v.Awaited)), Kind: kind, Order: order})
		}
	}
	if n > 0 {
		v.UnseenSince = s.UnseenSince
		if v.UnseenSince.IsZero() {
			v.UnseenSince = s.Now
		}
	}
	for _, a := range asked {
		if a.Answer != Accepted || a.wasUnanswered(s.Began) || a.Running {
			continue
		}
		missing := a
		a.Count = max(0, min(a.Count, n))
		if v.Late[a.ID] {
			a.Count = 0
		}
		if missing.Count -= a.Count; missing.Count > 0 {
			v.Lapsed = append(v.Lapsed, missing)
		}
		if a.Count > 0 {
			n -= a.Count
			v.Pending = append(v.Pending, a)
			expect(a.Count, a.Kind, a.ID)
		}
	}
	for _, a := range asked { // the cloud may count machines that it could not make
		if a.Answer != NotMade || a.wasUnanswered(s.Began) {
			continue
		}
		if a.Count = min(a.Count, n); a.Count > 0 && !v.Late[a.ID] {
			n -= a.Count
			v.Unmade += a.Count
			v.Pending = append(v.Pending, a)
		}
	}
	for _, a := range asked { // the cloud may count their machines already, or not
		switch {
		case a.Answer == NotMade && !a.wasUnanswered(s.Began):
		case a.mayStillShow(s.Began, s.Now):
			n -= a.Expected()
			v.Pending = append(v.Pending, a)
			expect(a.Expected(), a.Kind, a.ID)
		case a.Answer != Accepted:
			if a.Answer == Lost && !v.Late[a.ID] && n >= a.Expected() { // the size shows that it was accepted
				n -= a.Expected()
				a.Answer = Accepted
				v.Pending = append(v.Pending, a)
				expect(a.Expected(), a.Kind, a.ID)
				continue
			}
			v.Over = append(v.Over, a)
		}
	}
	if n > 0 && s.Now.Before(v.UnseenSince.Add(s.JoinTimeout)) { // asked for by somebody else, or by an earlier process
		expect(n, "", "")
	} else {
		v.Unmade += max(0, n)
	}
}
