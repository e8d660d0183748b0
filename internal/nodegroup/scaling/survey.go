package scaling

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// Sight is what is seen of a group's machines at one moment.
type Sight struct {
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
	Record []v1alpha1.AwaitedMachine
	// Asked are the orders whose machines have not been seen yet, the oldest first.
	Asked []Asked
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
	NoNode  Join = iota
	Unsure       // whether it has a Node could not be found out: it may be on its way, and is not given up (I7)
	HasNode      // and it is not Ready
	NodeReady
)

// Survey is what Look makes of a sight.
type Survey struct {
	// Awaited are the machines that are on their way, those that the cloud does not show yet included.
	Awaited []Machine
	// Dead are those of ours that have had no Node and will have none. They are to be deleted.
	Dead []DeadMachine
	// NeverReady are those of ours whose Nodes have not been Ready in time. The Nodes are to be retired.
	NeverReady []DeadMachine
	// Joined are the machines of ours whose Nodes have been Ready since the last look.
	Joined []v1alpha1.AwaitedMachine
	// Strays are machines without a Node that came after no order of ours that is known, and are too old to be on their
	// way. They are reported and left alone (I4, I7).
	Strays []string
	Record []v1alpha1.AwaitedMachine
	Asked  []Asked
	// Lapsed are orders, or what is left of them, that the cloud has dropped without a word.
	Lapsed []Asked
	// Over are orders that were refused, or whose answers were lost, with as many of their machines as have not come and are
	// not expected any more.
	Over  []Asked
	Known map[string]time.Time
	// UnseenSince is to be given to the next look.
	UnseenSince time.Time
}

// DeadMachine is one that will not have a Node.
type DeadMachine struct {
	Instance cloud.Instance
	// Kind is the one that was ordered.
	Kind string
	// Reason is one for a back-off.
	Reason, Message string
}

// Look tells which machines are on their way, and which will never come. A machine is one of ours when it has come after
// an order, which the cloud says by naming it, or which is seen by its not having been there before; that is written down
// at once, and only those are ever given up.
func Look(s Sight) Survey {
	s = s.renamed()
	out := Survey{Known: map[string]time.Time{}}
	record := map[string]v1alpha1.AwaitedMachine{}
	for _, r := range s.Record {
		record[r.ProviderID] = r
	}
	asked := s.answered(record)
	there := 0
	instances := slices.SortedFunc(slices.Values(s.Instances), func(a, b cloud.Instance) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ProviderID, b.ProviderID))
	})
	for _, i := range instances {
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
			var kind string
			if kind, ours = s.fulfil(asked, i); ours {
				r = s.recordOf(i.ProviderID, cmp.Or(kind, i.Type))
			}
		}
		switch join := s.Join(i); {
		case join == NodeReady && ours:
			out.Joined = append(out.Joined, r)
		case join == HasNode && ours:
			out.starting(s, i, r)
		case join == NoNode || join == Unsure:
			out.place(s, i, join, r, ours)
		}
	}
	out.unseen(s, asked, s.Group.Size-there)
	return out
}

// renamed gives what is remembered of machines under the IDs that they have now. One that its cloud has only just made has all of
// its time to join before it. An ID that is still a machine's, or that two say they had, is nobody's former one (I4).
func (s Sight) renamed() Sight {
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
	s.Record, s.Asked = slices.Clone(s.Record), slices.Clone(s.Asked)
	for k, r := range s.Record {
		if id := now[r.ProviderID]; id != "" {
			s.Record[k] = s.recordOf(id, r.Template)
		}
	}
	for k := range s.Asked {
		s.Asked[k].Named, s.Asked[k].Seen = rename(s.Asked[k].Named), rename(s.Asked[k].Seen)
	}
	return s
}

func (s *Sight) firstSeen(id string) time.Time {
	if at, known := s.Known[id]; known {
		return at
	}
	return s.Now
}

func (s *Sight) recordOf(id, kind string) v1alpha1.AwaitedMachine {
	return v1alpha1.AwaitedMachine{ProviderID: id, Template: kind, Since: metav1.NewTime(s.firstSeen(id)).Rfc3339Copy()}
}

// starting keeps the record of a machine of ours until its Node has been Ready once. What is Ready and then is not has
// joined.
func (v *Survey) starting(s Sight, i cloud.Instance, r v1alpha1.AwaitedMachine) {
	v.Record = append(v.Record, r)
	if s.overdue(i, r.Since.Time) {
		message := fmt.Sprintf("its Node has not been Ready for %s", s.JoinTimeout)
		v.NeverReady = append(v.NeverReady, DeadMachine{i, cmp.Or(r.Template, i.Type), NeverReady, message})
	}
}

// overdue reports whether a machine of ours has had its time to join, and this process has watched it for as long.
func (s *Sight) overdue(i cloud.Instance, since time.Time) bool {
	return i.State != cloud.Unknown && !s.Now.Before(since.Add(s.JoinTimeout)) && !s.Now.Before(s.Watched.Add(s.JoinTimeout))
}

// place says what a machine is that has no Node as far as is known.
func (v *Survey) place(s Sight, i cloud.Instance, join Join, r v1alpha1.AwaitedMachine, ours bool) {
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
		v.Dead = append(v.Dead, DeadMachine{i, kind, cmp.Or(string(i.Refusal), Failed), cmp.Or(i.Message, "the cloud could not make it")})
	case ours && s.overdue(i, since):
		v.Dead = append(v.Dead, DeadMachine{i, kind, NeverJoined, fmt.Sprintf("it was %s and had no Node for %s", i.State, s.JoinTimeout)})
	case late:
		v.Strays = append(v.Strays, i.ProviderID)
	case i.State != cloud.Failed:
		v.Awaited = append(v.Awaited, Machine{ID: i.ProviderID, Kind: kind})
	}
	if ours {
		v.Record = append(v.Record, r)
	}
}

// unseen counts what the cloud means to make and does not show yet: with the kinds that were asked for, as far as that is
// known. After the timeout nothing is expected of it any more.
func (v *Survey) unseen(s Sight, asked []Asked, n int) {
	expect := func(count int, kind string, order int) {
		for range count {
			v.Awaited = append(v.Awaited, Machine{ID: fmt.Sprintf("unseen-%d", len(v.Awaited)), Kind: kind, Order: order})
		}
	}
	if n > 0 {
		v.UnseenSince = s.UnseenSince
		if v.UnseenSince.IsZero() {
			v.UnseenSince = s.Now
		}
	}
	for _, a := range asked {
		if a.Answer != Taken || a.open(s.Began) {
			continue
		}
		missing := a
		a.Count = max(0, min(a.Count, n))
		if !s.Now.Before(a.At.Add(s.JoinTimeout)) {
			a.Count = 0
		}
		if missing.Count -= a.Count; missing.Count > 0 {
			v.Lapsed = append(v.Lapsed, missing)
		}
		if a.Count > 0 {
			n -= a.Count
			v.Asked = append(v.Asked, a)
			expect(a.Count, a.Kind, a.ID)
		}
	}
	for _, a := range asked { // the cloud may count their machines already, or not
		switch {
		case a.kept(s.Began, s.Now):
			n -= a.Expected()
			v.Asked = append(v.Asked, a)
			expect(a.Expected(), a.Kind, a.ID)
		case a.Answer != Taken:
			v.Over = append(v.Over, a)
		}
	}
	if n > 0 && s.Now.Before(v.UnseenSince.Add(s.JoinTimeout)) { // asked for by somebody else, or by an earlier process
		expect(n, "", 0)
	}
}
