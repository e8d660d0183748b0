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
		HasNode: func(i cloud.Instance) bool { return i.ProviderID == "a" || i.ProviderID == "b" },
		Known:   map[string]bool{"a": true, "b": true}, Watched: start.Add(-time.Hour), JoinTimeout: 15 * time.Minute, Now: start,
	}
	change(&s)
	return s
}

func TestMachinesWithoutANodeAreToldApart(t *testing.T) {
	add := func(s *Sight, i cloud.Instance) { s.Instances, s.Group.Size = append(s.Instances, i), s.Group.Size+1 }
	asked := []Asked{{Kind: "m4", Count: 1, At: start.Add(-time.Minute)}}
	written := func(since time.Time) []v1alpha1.AwaitedMachine {
		return []v1alpha1.AwaitedMachine{{ProviderID: "c", Template: "m4", Since: metav1.NewTime(since)}}
	}
	long := written(start.Add(-time.Hour))
	for name, c := range map[string]struct {
		change  func(*Sight)
		awaited []string
		dead    map[string]string
		strays  []string
		record  int
		joined  int
		lapsed  int
	}{
		"none": {change: func(*Sight) {}},
		"asked for and not to be seen yet": {
			change: func(s *Sight) { s.Group.Size, s.Asked = 3, asked }, awaited: []string{"unseen-0"},
		},
		"asked for by somebody else":          {change: func(s *Sight) { s.Group.Size = 3 }, awaited: []string{"unseen-0"}},
		"promised for too long":               {change: func(s *Sight) { s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour) }},
		"asked for, and dropped by the cloud": {change: func(s *Sight) { s.Asked = asked }, lapsed: 1},
		"asked for too long ago": {
			change: func(s *Sight) {
				s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour)
				s.Asked = []Asked{{Kind: "m4", Count: 1, At: start.Add(-time.Hour)}}
			}, lapsed: 1,
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
				s.Asked, s.HasNode = asked, func(cloud.Instance) bool { return true }
			}, joined: 1,
		},
		"of an earlier process, and young": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Minute)})
				s.Known = nil
			}, awaited: []string{"c"},
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
		"of ours, and this process has only just started": {
			change: func(s *Sight) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Record, s.Watched = long, start
			}, strays: []string{"c"}, record: 1,
		},
		"of ours, and being deleted": {
			change: func(s *Sight) {
				s.Instances, s.Record = append(s.Instances, cloud.Instance{ProviderID: "c", State: cloud.Deleting}), long
			},
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
