package launch

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

var start = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

// newObservation returns a group that was watched for an hour. Its instances a and b have Nodes.
func newObservation(change func(*Observation)) Observation {
	s := Observation{
		Group: cloud.Group{Size: 2}, Instances: []cloud.Instance{{ProviderID: "a", State: cloud.Running}, {ProviderID: "b", State: cloud.Running}},
		JoinState: func(i cloud.Instance) JoinState {
			if i.ProviderID == "a" || i.ProviderID == "b" {
				return NodeUsable
			}
			return NoNode
		},
		FirstSeen: map[string]time.Time{"a": start.Add(-time.Hour), "b": start.Add(-time.Hour)}, WatchedSince: start.Add(-time.Hour), JoinTimeout: 15 * time.Minute, ReadAt: start, Now: start,
	}
	change(&s)
	return s
}

func TestTrackClassifiesInstances(t *testing.T) {
	add := func(s *Observation, i cloud.Instance) {
		s.Instances, s.Group.Size = append(s.Instances, i), s.Group.Size+1
	}
	asked := []PendingLaunch{{Template: "m4", Count: 1, RequestedAt: start.Add(-time.Minute), AnsweredAt: start.Add(-time.Minute)}}
	written := func(since time.Time) []Instance {
		return []Instance{{ProviderID: "c", Template: "m4", Since: metav1.NewTime(since)}}
	}
	const settle = time.Minute
	answered := func(answer Answer, named ...string) []PendingLaunch {
		a := PendingLaunch{ID: "1", Template: "m4", Count: 1, RequestedAt: start.Add(-time.Minute)}
		a.ApplyAnswer(answer, named, start.Add(-time.Second), settle+time.Second)
		return []PendingLaunch{a}
	}
	long := written(start.Add(-time.Hour))
	unsure := func(i cloud.Instance) JoinState {
		if i.ProviderID == "c" {
			return NodeUncertain
		}
		return NodeUsable
	}
	starting := func(cloud.Instance) JoinState { return NodeNotReady }
	for name, c := range map[string]struct {
		change  func(*Observation)
		awaited []string
		dead    map[string]string
		unknown []string
		record  int
		joined  int
		lapsed  int
		stuck   []string
	}{
		"none": {change: func(*Observation) {}},
		"second instance of a launch whose first has joined": {
			change: func(s *Observation) {
				s.Instances, s.Group.Size = nil, 0
				add(s, cloud.Instance{ProviderID: "a", State: cloud.Running, Created: start.Add(-time.Minute)})
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Pending, Created: start.Add(-time.Minute)})
				s.FirstSeen, s.Pending, s.PreviouslyJoined = nil, asked, map[string]bool{"a": true}
			}, awaited: []string{"c"}, record: 1,
		},
		"launched and not listed yet": {
			change: func(s *Observation) { s.Group.Size, s.Pending = 3, asked }, awaited: []string{"unseen-0"},
		},
		"listed twice": {
			change: func(s *Observation) {
				c := cloud.Instance{ProviderID: "c", State: cloud.Pending, Created: start.Add(-time.Minute)}
				add(s, c)
				s.Instances, s.Pending = append(s.Instances, c), asked
			}, awaited: []string{"c"}, record: 1,
		},
		"launched by another client":        {change: func(s *Observation) { s.Group.Size = 3 }, awaited: []string{"unseen-0"}},
		"unlisted for too long":             {change: func(s *Observation) { s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour) }},
		"launched and dropped by the cloud": {change: func(s *Observation) { s.Pending = asked }, lapsed: 1},
		"operation runs and the size excludes it": { // I5
			change: func(s *Observation) {
				s.Pending = []PendingLaunch{asked[0]}
				s.Pending[0].Running = true
			}, awaited: []string{"unseen-0"},
		},
		"operation runs for too long": {
			change: func(s *Observation) {
				s.Pending = []PendingLaunch{{Template: "m4", Count: 1, RequestedAt: start.Add(-time.Hour), AnsweredAt: start.Add(-time.Hour), Running: true}}
			}, lapsed: 1,
		},
		"launched too long ago": {
			change: func(s *Observation) {
				s.Group.Size, s.UnseenSince = 3, start.Add(-time.Hour)
				s.Pending = []PendingLaunch{{Template: "m4", Count: 1, RequestedAt: start.Add(-time.Hour), AnsweredAt: start.Add(-time.Hour)}}
			}, lapsed: 1,
		},
		"launched and unanswered": {
			change: func(s *Observation) {
				s.Pending = []PendingLaunch{{Template: "m4", Count: 1, RequestedAt: start.Add(-time.Hour)}}
			}, awaited: []string{"unseen-0"},
		},
		"answered after the read began": {
			change:  func(s *Observation) { s.Pending, s.ReadAt = asked, start.Add(-time.Hour) },
			awaited: []string{"unseen-0"},
		},
		"two launches, one unanswered": {
			change: func(s *Observation) {
				s.Group.Size = 3
				s.Pending = append([]PendingLaunch{{ID: "7", Template: "m4", Count: 2, RequestedAt: start}}, asked...)
			}, awaited: []string{"unseen-0", "unseen-1", "unseen-2"},
		},
		"appeared after an unanswered launch": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending})
				s.Pending = []PendingLaunch{{Template: "m4", Count: 2, RequestedAt: start}}
			}, awaited: []string{"c", "unseen-1"}, // only the answer tells whether it is ours
		},
		"appeared after a launch": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending})
				s.Pending = asked
			},
			awaited: []string{"c"}, record: 1,
		},
		"appeared with its Node": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Running})
				s.Pending, s.JoinState = asked, func(cloud.Instance) JoinState { return NodeUsable }
			}, joined: 1,
		},
		"young, from an earlier process": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Minute)})
				s.FirstSeen = nil
			}, awaited: []string{"c"},
		},
		"from an earlier process, creation time unknown": {
			change: func(s *Observation) { add(s, cloud.Instance{ProviderID: "c", State: cloud.Running}); s.FirstSeen = nil }, awaited: []string{"c"},
		},
		"unknown, seen long ago, creation time unknown": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.FirstSeen["c"] = start.Add(-time.Hour)
			}, unknown: []string{"c"},
		},
		"launched by an earlier process": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start.Add(-time.Minute)})
				s.FirstSeen, s.Pending = nil, asked
			}, awaited: []string{"c"}, record: 1,
		},
		"older than an earlier process's launch": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start.Add(-2 * time.Minute)})
				s.FirstSeen, s.Pending = nil, asked
			}, awaited: []string{"c"}, lapsed: 1,
		},
		"named in the answer, existed before": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start})
				s.FirstSeen["c"], s.Pending = start, answered(Accepted, "c")
			}, awaited: []string{"c"}, record: 1,
		},
		"not named in the answer": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Created: start})
				s.Pending = answered(Accepted, "other")
			}, lapsed: 1,
		},
		"adopted": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Created: start, OwnerUncertain: true})
				s.Pending, s.Unjoined = asked, long
			}, lapsed: 1,
		},
		"appeared despite a refusal": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start})
				s.Pending = answered(Refused)
			}, awaited: []string{"c"}, record: 1,
		},
		"refused and not appeared": {change: func(s *Observation) { s.Pending = answered(Refused) }},
		"not created, and the size counts it": {change: func(s *Observation) {
			s.Group.Size, s.Pending = 3, answered(NotMade)
		}},
		"not created, and the size excludes it": {change: func(s *Observation) { s.Pending = answered(NotMade) }},
		"appeared after a failed operation": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Pending, Created: start})
				s.Pending = answered(NotMade)
			}, awaited: []string{"c"}, record: 1,
		},
		"answer lost, not appeared": {
			change: func(s *Observation) { s.Pending = answered(Lost) }, awaited: []string{"unseen-0"},
		},
		"answer lost long ago, not appeared": {
			change: func(s *Observation) { s.Pending = answered(Lost); s.Now = start.Add(settle) },
		},
		"ours, Node not Ready yet": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.JoinState = written(start), starting
			}, record: 1,
		},
		"ours, Node never Ready": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.JoinState = long, starting
			}, record: 1, stuck: []string{"c"},
		},
		"ours, Node never Ready, process just started": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.JoinState, s.WatchedSince = long, starting, start
			}, record: 1,
		},
		"unknown, Node not Ready": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Hour)})
				s.JoinState = starting
			},
		},
		"unknown and old": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running, Created: start.Add(-time.Hour)})
			},
			unknown: []string{"c"},
		},
		"unknown and failed": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Failed, Created: start.Add(-time.Hour)})
			},
			unknown: []string{"c"},
		},
		"ours and failed": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Failed, Refusal: cloud.NoCapacity})
				s.Unjoined = written(start.Add(-time.Second))
			}, dead: map[string]string{"c": "NoCapacity"}, record: 1,
		},
		"ours and never joined": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", Type: "m4", State: cloud.Running})
				s.Unjoined = long
			},
			dead: map[string]string{"c": NeverJoined}, record: 1,
		},
		"ours, state unknown": { // I7
			change:  func(s *Observation) { add(s, cloud.Instance{ProviderID: "c", State: cloud.Unknown}); s.Unjoined = long },
			unknown: []string{"c"}, record: 1,
		},
		"ours, late, Node uncertain": { // I7
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.JoinState = long, unsure
			}, record: 1,
		},
		"ours, failed, Node uncertain": { // I7
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Failed})
				s.Unjoined, s.JoinState = written(start), unsure
			}, record: 1,
		},
		"ours, young, Node uncertain": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.JoinState = written(start), unsure
			}, awaited: []string{"c"}, record: 1,
		},
		"ours, process just started": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Running})
				s.Unjoined, s.WatchedSince = long, start
			}, unknown: []string{"c"}, record: 1,
		},
		"ours, being deleted": {
			change: func(s *Observation) {
				s.Instances, s.Unjoined = append(s.Instances, cloud.Instance{ProviderID: "c", State: cloud.Deleting}), long
			}, record: 1, // it may be back
		},
		"ours, renamed": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "i-c", PreviousProviderID: "c", State: cloud.Running})
				s.Unjoined, s.FirstSeen["c"] = long, start.Add(-time.Hour)
			}, awaited: []string{"i-c"}, record: 1, // its full join timeout is ahead
		},
		"ours, renamed long ago, never joined": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "i-c", PreviousProviderID: "c", State: cloud.Running})
				s.Unjoined, s.FirstSeen["i-c"] = long, start.Add(-time.Hour)
			}, dead: map[string]string{"i-c": NeverJoined}, record: 1,
		},
		"unknown, former ID still in use": { // I4
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "c", State: cloud.Pending})
				add(s, cloud.Instance{ProviderID: "x", PreviousProviderID: "c", State: cloud.Failed})
				s.Unjoined, s.FirstSeen["x"] = written(start), start
			}, awaited: []string{"c"}, record: 1,
		},
		"unknown, two with the same former ID": { // I4
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "x", PreviousProviderID: "c", State: cloud.Failed})
				add(s, cloud.Instance{ProviderID: "y", PreviousProviderID: "c", State: cloud.Failed})
				s.Unjoined, s.FirstSeen["x"], s.FirstSeen["y"] = written(start), start, start
			},
		},
		"unanswered launch, renamed": {
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "i-c", PreviousProviderID: "c", State: cloud.Running})
				s.Pending, s.FirstSeen["c"] = []PendingLaunch{{Template: "m4", Count: 1, RequestedAt: start, SeenBeforeAnswer: []string{"c"}}}, start
			}, awaited: []string{"i-c"},
		},
		"unknown, older than a launch, renamed after it": { // I4
			change: func(s *Observation) {
				add(s, cloud.Instance{ProviderID: "i-c", PreviousProviderID: "c", State: cloud.Failed})
				s.Pending, s.FirstSeen["c"] = asked, start.Add(-time.Hour)
			}, lapsed: 1,
		},
		"ours and gone": {change: func(s *Observation) { s.Unjoined = long }},
	} {
		t.Run(name, func(t *testing.T) {
			v := TrackInstances(newObservation(c.change))
			var awaited []string
			for _, m := range v.Provisioning {
				awaited = append(awaited, m.ID)
			}
			var dead map[string]string
			for _, m := range v.FailedWithoutNode {
				if dead == nil {
					dead = map[string]string{}
				}
				dead[m.Instance.ProviderID] = m.Reason
			}
			var stuck []string
			for _, m := range v.NeverReady {
				stuck = append(stuck, m.Instance.ProviderID)
			}
			check.Equal(t, c.stuck, stuck)
			check.Equal(t, c.awaited, awaited)
			check.Equal(t, c.dead, dead)
			check.Equal(t, c.unknown, v.UnknownInstances)
			if len(v.Unjoined) != c.record || len(v.Joined) != c.joined || len(v.Dropped) != c.lapsed {
				t.Errorf("%d written down, %d joined, %d lapsed; want %d, %d and %d", len(v.Unjoined), len(v.Joined), len(v.Dropped), c.record,
					c.joined, c.lapsed)
			}
		})
	}
}

func TestFutureTimesAreClamped(t *testing.T) {
	future := metav1.NewTime(start.Add(24 * time.Hour))
	v := TrackInstances(newObservation(func(s *Observation) {
		s.Instances = append(s.Instances, cloud.Instance{ProviderID: "c", State: cloud.Pending})
		s.Group.Size = 4
		s.Unjoined = []Instance{{ProviderID: "c", Template: "m4", Since: future}}
		s.Pending = []PendingLaunch{{ID: "1", Template: "m4", Count: 1, RequestedAt: future.Time, AnsweredAt: start.Add(-time.Minute)}}
	}))
	if len(v.Unjoined) != 1 || v.Unjoined[0].Since.After(start) || len(v.Pending) != 1 || v.Pending[0].RequestedAt.After(start) {
		t.Errorf("record %+v, launches %+v: want no time in the future", v.Unjoined, v.Pending)
	}
	b := ClampBackOff(v1alpha1.BackOff{Template: "m4", Reason: NeverJoined, Failures: 1, Until: future}, start)
	if left := b.Until.Sub(start); left > time.Hour {
		t.Errorf("a back-off lasts %s more, want at most an hour", left)
	}
}

// TestI7EmptyListOfAGroupWithASizeErasesNothing has a cloud that lists no instance for a while, and then all of them.
// Its instances have no creation time.
func TestI7EmptyListOfAGroupWithASizeErasesNothing(t *testing.T) {
	all := []cloud.Instance{{ProviderID: "a", State: cloud.Running}, {ProviderID: "b", State: cloud.Running}, {ProviderID: "c", State: cloud.Pending}}
	for name, c := range map[string]struct {
		size      int
		emptied   time.Duration // how long the list is empty
		record    int
		claimed   bool // whether the pending launch claims an old instance
		restarted bool // the empty list is the first read of the process
	}{
		"one read":                    {4, 0, 1, false, false},
		"the first read of a process": {4, 0, 1, false, true},
		"until the settle time":       {4, SettleTime, 0, true, false},
		"the size is 0":               {0, 0, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObservation(func(s *Observation) {
				s.FirstSeen["c"] = start.Add(-time.Minute)
				s.Unjoined = []Instance{{ProviderID: "c", Template: "m4", Launch: "1", Since: metav1.NewTime(start.Add(-time.Minute))}}
				s.Pending = []PendingLaunch{{ID: "2", Count: 1, RequestedAt: start.Add(-time.Second), AnsweredAt: start.Add(-time.Second), Running: true}}
				if c.restarted {
					s.FirstSeen = nil
				}
			})
			read := func(size int, list []cloud.Instance) Tracking {
				s.Group.Size, s.Instances, s.ReadAt = size, list, s.Now
				v := TrackInstances(s)
				s.FirstSeen, s.Unjoined, s.Pending, s.UnseenSince, s.EmptySince = v.FirstSeen, v.Unjoined, v.Pending, v.UnseenSince, v.EmptySince
				return v
			}
			read(c.size, nil)
			if c.emptied > 0 {
				s.Now = s.Now.Add(c.emptied)
				read(c.size, nil)
			}
			check.Len(t, c.record, s.Unjoined)
			s.Now = s.Now.Add(time.Second)
			v := read(4, all)
			check.Is(t, c.claimed, len(v.Pending) == 0, v.Pending, v.Unjoined)
			check.Not(t, !v.EmptySince.IsZero(), "empty since %s", v.EmptySince)
		})
	}
}

// TestReusedIDNeedsASecondProof has a recorded instance with a creation time long after it was first seen.
func TestReusedIDNeedsASecondProof(t *testing.T) {
	late := start.Add(time.Hour)
	for name, c := range map[string]struct {
		before, now cloud.Instance
		kept        int
	}{
		"the cloud's clock is ahead":    {cloud.Instance{Created: late}, cloud.Instance{Created: late}, 1},
		"the time was not known before": {cloud.Instance{}, cloud.Instance{Created: late}, 1},
		"the unique ID was not known":   {cloud.Instance{Created: late}, cloud.Instance{Created: late, UniqueID: "2"}, 1},
		"created anew":                  {cloud.Instance{Created: start}, cloud.Instance{Created: late}, 0},
		"another unique ID":             {cloud.Instance{Created: late, UniqueID: "1"}, cloud.Instance{Created: late, UniqueID: "2"}, 0},
	} {
		listed := func(i cloud.Instance) []cloud.Instance {
			i.ProviderID, i.State = "c", cloud.Pending
			return []cloud.Instance{i}
		}
		v := TrackInstances(newObservation(func(s *Observation) {
			s.Instances, s.Group.Size = listed(c.before), 1
			s.Unjoined = []Instance{{ProviderID: "c", Template: "m4", Launch: "1", Since: metav1.NewTime(start)}}
		}))
		check.Is(t, c.kept, len(DropReusedIDs(v.Unjoined, listed(c.now))), name)
	}
}
