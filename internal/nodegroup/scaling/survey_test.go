package scaling

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// sight is a group that has been watched for an hour and whose machines a and b have Nodes.
func sight(change func(*Sight)) Sight {
	s := Sight{
		Group: cloud.Group{Size: 2}, Instances: []cloud.Instance{{ProviderID: "a", State: cloud.Running}, {ProviderID: "b", State: cloud.Running}},
		Join: func(i cloud.Instance) Join {
			if i.ProviderID == "a" || i.ProviderID == "b" {
				return NodeReady
			}
			return NoNode
		},
		Known: map[string]time.Time{"a": start.Add(-time.Hour), "b": start.Add(-time.Hour)}, Watched: start.Add(-time.Hour), JoinTimeout: 15 * time.Minute, Began: start, Now: start,
	}
	change(&s)
	return s
}

func TestMachinesWithoutANodeAreToldApart(t *testing.T) {
	add := func(s *Sight, i cloud.Instance) { s.Instances, s.Group.Size = append(s.Instances, i), s.Group.Size+1 }
	asked := []Asked{{Kind: "m4", Count: 1, At: start.Add(-time.Minute), Answered: start.Add(-time.Minute)}}
	written := func(since time.Time) []v1alpha1.AwaitedMachine {
		return []v1alpha1.AwaitedMachine{{ProviderID: "c", Template: "m4", Since: metav1.NewTime(since)}}
	}
	const settle = time.Minute
	answered := func(answer Answer, named ...string) []Asked {
		a := Asked{ID: 1, Kind: "m4", Count: 1, At: start.Add(-time.Minute)}
		a.Reply(answer, named, start.Add(-time.Second), settle+time.Second)
		return []Asked{a}
	}
	long := written(start.Add(-time.Hour))
	unsure := func(i cloud.Instance) Join {
		if i.ProviderID == "c" {
			return Unsure
		}
		return NodeReady
	}
	starting := func(cloud.Instance) Join { return HasNode }
	for name, c := range map[string]struct {
		change  func(*Sight)
		awaited []string
		dead    map[string]string
		strays  []string
		record  int
		joined  int
		lapsed  int
		stuck   []string
	}{
		"none": {change: func(*Sight) {}},
		"come after the first of an order, which has joined since another process has seen it come": {
			change: func(s *Sight) {
				s.Instances, s.Group.Size = nil, 0
				add(s, cloud.Instance{ProviderID: "a", State: cloud.Running, Created: start.Add(-time.Minute)})
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Pending, Created: start.Add(-time.Minute)})
				s.Known, s.Asked, s.Joined = nil, asked, map[string]bool{"a": true}
			}, awaited: []string{"c"}, record: 1,
		},
		"asked for and not to be seen yet": {
			change: func(s *Sight) { s.Group.Size, s.Asked = 3, asked }, awaited: []string{"unseen-0"},
		},
		"asked for by somebody else":          {change: func(s *Sight) { s.Group.Size = 3 }, awaited: []string{"unseen-0"}},
		"promised for too long":               {change: func(s *Sight) { s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour) }},
		"asked for, and dropped by the cloud": {change: func(s *Sight) { s.Asked = asked }, lapsed: 1},
		"asked for too long ago": {
			change: func(s *Sight) {
				s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour)
				s.Asked = []Asked{{Kind: "m4", Count: 1, At: start.Add(-time.Hour), Answered: start.Add(-time.Hour)}}
			}, lapsed: 1,
		},
		"asked for, and not answered": {
			change: func(s *Sight) { s.Asked = []Asked{{Kind: "m4", Count: 1, At: start.Add(-time.Hour)}} }, awaited: []string{"unseen-0"},
		},
		"asked for, and answered after the look began": {
			change:  func(s *Sight) { s.Asked, s.Began = asked, start.Add(-time.Hour) },
			awaited: []string{"unseen-0"},
		},
		"asked for twice, once without an answer": {
			change: func(s *Sight) {
				s.Group.Size = 3
				s.Asked = append([]Asked{{ID: 7, Kind: "m4", Count: 2, At: start}}, asked...)
			}, awaited: []string{"unseen-0", "unseen-1", "unseen-2"},
		},
		"come after an order that has no answer": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending})
				s.Asked = []Asked{{Kind: "m4", Count: 2, At: start}}
			}, awaited: []string{"c", "unseen-1"}, // whether it is ours the answer says
		},
		"come after an order": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending})
				s.Asked = asked
			},
			awaited: []string{"c"}, record: 1,
		},
		"come with its Node at once": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Running})
				s.Asked, s.Join = asked, func(cloud.Instance) Join { return NodeReady }
			}, joined: 1,
		},
		"of an earlier process, and young": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Minute)})
				s.Known = nil
			}, awaited: []string{"c"},
		},
		"of an earlier process, of a cloud that does not say how old it is": {
			change: func(s *Sight) { add(s, cloud.Instance{ProviderID: "c", State: cloud.Running}); s.Known = nil }, awaited: []string{"c"},
		},
		"of nobody, seen long ago, of a cloud that does not say how old it is": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Known["c"] = start.Add(-time.Hour)
			}, strays: []string{"c"},
		},
		"of an order of an earlier process": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start.Add(-time.Minute)})
				s.Known, s.Asked = nil, asked
			}, awaited: []string{"c"}, record: 1,
		},
		"older than an order of an earlier process": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start.Add(-2 * time.Minute)})
				s.Known, s.Asked = nil, asked
			}, awaited: []string{"c"}, lapsed: 1,
		},
		"named by the answer, and there before": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start})
				s.Known["c"], s.Asked = start, answered(Taken, "c")
			}, awaited: []string{"c"}, record: 1,
		},
		"not named by the answer": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Created: start})
				s.Asked = answered(Taken, "other")
			}, lapsed: 1,
		},
		"adopted": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Created: start, Adopted: true})
				s.Asked, s.Record = asked, long
			}, lapsed: 1,
		},
		"come although the order was refused": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start})
				s.Asked = answered(Refused)
			}, awaited: []string{"c"}, record: 1,
		},
		"not come, as the order was refused": {change: func(s *Sight) { s.Asked = answered(Refused) }},
		"not come, and the answer to the order was lost": {
			change: func(s *Sight) { s.Asked = answered(Lost) }, awaited: []string{"unseen-0"},
		},
		"not come, long after the answer to the order was lost": {
			change: func(s *Sight) { s.Asked = answered(Lost); s.Now = start.Add(settle) },
		},
		"of ours, with a Node that is not Ready yet": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Join = written(start), starting
			}, record: 1,
		},
		"of ours, with a Node that has never been Ready": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Join = long, starting
			}, record: 1, stuck: []string{"c"},
		},
		"of ours, with a Node that has never been Ready, and this process has only just started": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Join, s.Watched = long, starting, start
			}, record: 1,
		},
		"of nobody, with a Node that is not Ready": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Hour)})
				s.Join = starting
			},
		},
		"of nobody, and old": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Hour)})
			},
			strays: []string{"c"},
		},
		"of nobody, and failed": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Failed, Created: start.Add(-time.Hour)})
			},
			strays: []string{"c"},
		},
		"of ours, and failed": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Refusal: cloud.NoCapacity})
				s.Record = written(start.Add(-time.Second))
			}, dead: map[string]string{"c": "NoCapacity"}, record: 1,
		},
		"of ours, and never joined": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Running})
				s.Record = long
			},
			dead: map[string]string{"c": NeverJoined}, record: 1,
		},
		"of ours, in a state that is not known": { // I7
			change: func(s *Sight) { add(s, cloud.Instance{ProviderID: "c", State: cloud.Unknown}); s.Record = long },
			strays: []string{"c"}, record: 1,
		},
		"of ours, late, and the Nodes do not say whether it has one": { // I7
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Join = long, unsure
			}, record: 1,
		},
		"of ours, failed, and the Nodes do not say whether it has one": { // I7
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Failed})
				s.Record, s.Join = written(start), unsure
			}, record: 1,
		},
		"of ours, young, and the Nodes do not say whether it has one": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Join = written(start), unsure
			}, awaited: []string{"c"}, record: 1,
		},
		"of ours, and this process has only just started": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Watched = long, start
			}, strays: []string{"c"}, record: 1,
		},
		"of ours, and being deleted": {
			change: func(s *Sight) {
				s.Instances, s.Record = append(s.Instances, cloud.Instance{ProviderID: "c", State: cloud.Deleting}), long
			}, record: 1, // it may be back
		},
		"of ours, and made by now, as another ID shows": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "i-c", FormerID: "c", State: cloud.Running})
				s.Record, s.Known["c"] = long, start.Add(-time.Hour)
			}, awaited: []string{"i-c"}, record: 1, // all of its time to join is before it
		},
		"of ours, made long ago, and never joined": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "i-c", FormerID: "c", State: cloud.Running})
				s.Record, s.Known["i-c"] = long, start.Add(-time.Hour)
			}, dead: map[string]string{"i-c": NeverJoined}, record: 1,
		},
		"of nobody, with the ID of one of ours for a former one, which is still there": { // I4
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Pending})
				add(s, cloud.Instance{ProviderID: "x", FormerID: "c", State: cloud.Failed})
				s.Record, s.Known["x"] = written(start), start
			}, awaited: []string{"c"}, record: 1,
		},
		"of nobody, two with the ID of one of ours for a former one": { // I4
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "x", FormerID: "c", State: cloud.Failed})
				add(s, cloud.Instance{ProviderID: "y", FormerID: "c", State: cloud.Failed})
				s.Record, s.Known["x"], s.Known["y"] = written(start), start, start
			},
		},
		"of an order that has no answer, and made by now": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "i-c", FormerID: "c", State: cloud.Running})
				s.Asked, s.Known["c"] = []Asked{{Kind: "m4", Count: 1, At: start, Seen: []string{"c"}}}, start
			}, awaited: []string{"i-c"},
		},
		"of nobody, there before an order, and made after it": { // I4
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "i-c", FormerID: "c", State: cloud.Failed})
				s.Asked, s.Known["c"] = asked, start.Add(-time.Hour)
			}, lapsed: 1,
		},
		"of ours, and gone": {change: func(s *Sight) { s.Record = long }},
	} {
		t.Run(name, func(t *testing.T) {
			v := Look(sight(c.change))
			var awaited []string
			for _, m := range v.Awaited {
				awaited = append(awaited, m.ID)
			}
			var dead map[string]string
			for _, m := range v.Dead {
				if dead == nil {
					dead = map[string]string{}
				}
				dead[m.Instance.ProviderID] = m.Reason
			}
			var stuck []string
			for _, m := range v.NeverReady {
				stuck = append(stuck, m.Instance.ProviderID)
			}
			if diff := cmp.Diff(c.stuck, stuck); diff != "" {
				t.Errorf("never ready: %s", diff)
			}
			if diff := cmp.Diff(c.awaited, awaited); diff != "" {
				t.Errorf("awaited: %s", diff)
			}
			if diff := cmp.Diff(c.dead, dead); diff != "" {
				t.Errorf("dead: %s", diff)
			}
			if diff := cmp.Diff(c.strays, v.Strays); diff != "" {
				t.Errorf("strays: %s", diff)
			}
			if len(v.Record) != c.record || len(v.Joined) != c.joined || len(v.Lapsed) != c.lapsed {
				t.Errorf("%d written down, %d joined, %d lapsed; want %d, %d and %d", len(v.Record), len(v.Joined), len(v.Lapsed), c.record,
					c.joined, c.lapsed)
			}
		})
	}
}
