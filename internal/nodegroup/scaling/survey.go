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
	// HasNode reports whether a machine has a Node.
	HasNode func(cloud.Instance) bool
	// Known are the machines that were seen the last time, by provider ID; nil when this is the first look since the
	// start of the process.
	Known map[string]bool
	// Record is what was written down of the machines that came after an order and had no Node yet.
	Record []v1alpha1.AwaitedMachine
	// Asked are the orders whose machines have not been seen yet, the oldest first.
	Asked []Asked
	// UnseenSince is since when the cloud has meant to make machines that it does not show, as the look before found it.
	UnseenSince time.Time
	// Watched is since when this process has looked at the group: one that has only just started has not seen what
	// became of a machine before.
	Watched     time.Time
	JoinTimeout time.Duration
	Now         time.Time
}

// Asked is an order that the cloud has taken.
type Asked struct {
	Kind  string
	Count int
	At    time.Time
}

// Survey is what Look makes of a sight.
type Survey struct {
	// Awaited are the machines that are on their way, those that the cloud does not show yet included.
	Awaited []Machine
	// Dead are those of ours that have had no Node and will have none. They are to be deleted.
	Dead []DeadMachine
	// Joined are the kinds of machines of ours that have had a Node since the last look.
	Joined []string
	// Strays are machines without a Node that came after no order of ours that is known, and are too old to be on their
	// way. They are reported and left alone (I4, I7).
	Strays []string
	Record []v1alpha1.AwaitedMachine
	Asked  []Asked
	// Lapsed are orders, or what is left of them, that the cloud has dropped without a word.
	Lapsed []Asked
	Known  map[string]bool
	// UnseenSince is to be given to the next look.
	UnseenSince time.Time
}

// DeadMachine is one that will not have a Node.
type DeadMachine struct {
	Instance cloud.Instance
	// Reason is one for a back-off.
	Reason, Message string
}

// Look tells which machines are on their way, and which will never come. A machine is one of ours when it has come after
// an order, which is seen by its not having been there before, and written down at once: only those are ever given up.
func Look(s Sight) Survey {
	out := Survey{Known: map[string]bool{}}
	record := map[string]v1alpha1.AwaitedMachine{}
	for _, r := range s.Record {
		record[r.ProviderID] = r
	}
	asked := slices.Clone(s.Asked)
	there := 0
	instances := slices.SortedFunc(slices.Values(s.Instances), func(a, b cloud.Instance) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ProviderID, b.ProviderID))
	})
	for _, i := range instances {
		out.Known[i.ProviderID] = true
		if i.State == cloud.Deleting {
			continue
		}
		there++
		r, ours := record[i.ProviderID]
		if !ours && s.Known != nil && !s.Known[i.ProviderID] && fulfil(&asked, i.Type) {
			r, ours = v1alpha1.AwaitedMachine{ProviderID: i.ProviderID, Template: i.Type, Since: metav1.NewTime(s.Now)}, true
		}
		if s.HasNode(i) {
			if ours {
				out.Joined = append(out.Joined, i.Type)
			}
			continue
		}
		out.place(s, i, r, ours)
	}
	out.unseen(s, asked, s.Group.Size-there)
	return out
}

// fulfil takes a machine off the orders; false when none is outstanding.
func fulfil(asked *[]Asked, kind string) bool {
	for i := range *asked {
		if a := &(*asked)[i]; a.Count > 0 && (a.Kind == "" || kind == "" || sameKind(a.Kind, kind)) {
			a.Count--
			return true
		}
	}
	return false
}

// place says what a machine without a Node is.
func (v *Survey) place(s Sight, i cloud.Instance, r v1alpha1.AwaitedMachine, ours bool) {
	since := r.Since.Time
	if !ours {
		since = i.Created
	}
	late := !s.Now.Before(since.Add(s.JoinTimeout))
	switch {
	case ours && i.State == cloud.Failed:
		v.Dead = append(v.Dead, DeadMachine{i, cmp.Or(string(i.Refusal), Failed), cmp.Or(i.Message, "the cloud could not make it")})
	case ours && late && i.State != cloud.Unknown && !s.Now.Before(s.Watched.Add(s.JoinTimeout)):
		v.Dead = append(v.Dead, DeadMachine{i, NeverJoined, fmt.Sprintf("it was %s and had no Node for %s", i.State, s.JoinTimeout)})
	case late:
		v.Strays = append(v.Strays, i.ProviderID)
	case i.State != cloud.Failed:
		v.Awaited = append(v.Awaited, Machine{ID: i.ProviderID, Kind: i.Type})
	}
	if ours {
		v.Record = append(v.Record, r)
	}
}

// unseen counts what the cloud means to make and does not show yet: with the kinds that were asked for, as far as that is
// known. After the timeout nothing is expected of it any more.
func (v *Survey) unseen(s Sight, asked []Asked, n int) {
	expect := func(kind string, count int) {
		for range count {
			v.Awaited = append(v.Awaited, Machine{ID: fmt.Sprintf("unseen-%d", len(v.Awaited)), Kind: kind})
		}
	}
	if n > 0 {
		v.UnseenSince = s.UnseenSince
		if v.UnseenSince.IsZero() {
			v.UnseenSince = s.Now
		}
	}
	for _, a := range asked {
		open := a.Count
		a.Count = max(0, min(open, n))
		if !s.Now.Before(a.At.Add(s.JoinTimeout)) {
			a.Count = 0
		}
		if open > a.Count {
			v.Lapsed = append(v.Lapsed, Asked{a.Kind, open - a.Count, a.At})
		}
		if a.Count > 0 {
			n -= a.Count
			v.Asked = append(v.Asked, a)
			expect(a.Kind, a.Count)
		}
	}
	if n > 0 && s.Now.Before(v.UnseenSince.Add(s.JoinTimeout)) { // asked for by somebody else, or by an earlier process
		expect("", n)
	}
}
