package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// gkeNode is a Node of GKE in memory, with a source that reads it.
type gkeNode struct {
	t      *testing.T
	source *NodeSource

	mu       sync.Mutex
	node     kubeapi.Node
	fail     bool // patches fail
	patches  int
	snapshot notice.Snapshot
	emitted  int
}

func newGKENode(t *testing.T) *gkeNode {
	t.Helper()
	g := &gkeNode{t: t}
	g.node.Name, g.node.UID = "gke-1", "uid-1"
	g.node.Labels, g.node.Annotations = map[string]string{}, map[string]string{}
	g.start()
	return g
}

// start starts a source, as a restarted agent does.
func (g *gkeNode) start() {
	var err error
	g.source, err = NewNodeSource(NodeSourceOptions{Resource: "vm-1", Leads: poll.Leads{Maintenance: 15 * time.Minute}, API: g})
	must.NoError(g.t, err)
	ctx, cancel := context.WithCancel(g.t.Context())
	var group sync.WaitGroup
	source := g.source
	group.Go(func() {
		source.Run(ctx, func(s notice.Snapshot) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.snapshot, g.emitted = s, g.emitted+1
		})
	})
	g.t.Cleanup(group.Wait)
	g.t.Cleanup(cancel)
}

// PatchNode implements NodePatcher with a JSON merge patch.
func (g *gkeNode) PatchNode(_ context.Context, name string, raw []byte) (*kubeapi.Node, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.patches++
	if g.fail {
		return nil, errors.New("unavailable")
	}
	var patch struct {
		Metadata struct {
			UID                 string
			Labels, Annotations map[string]*string
		}
	}
	must.NoError(g.t, json.Unmarshal(raw, &patch))
	if name != g.node.Name || patch.Metadata.UID != g.node.UID {
		return nil, errors.New("conflict")
	}
	apply(g.node.Labels, patch.Metadata.Labels)
	apply(g.node.Annotations, patch.Metadata.Annotations)
	return nil, nil
}

func apply(to map[string]string, patch map[string]*string) {
	for key, value := range patch {
		if value == nil {
			delete(to, key)
		} else {
			to[key] = *value
		}
	}
}

// edit changes the Node as GKE does, and passes it to the source.
func (g *gkeNode) edit(change func(n *kubeapi.Node)) {
	g.mu.Lock()
	change(&g.node)
	raw, err := json.Marshal(g.node)
	g.mu.Unlock()
	must.NoError(g.t, err)
	seen := &kubeapi.Node{}
	must.NoError(g.t, json.Unmarshal(raw, seen))
	g.source.ObserveNode(seen)
	synctest.Wait()
}

func (g *gkeNode) label(key, value string) {
	g.edit(func(n *kubeapi.Node) {
		if n.Labels[key] = value; value == "" {
			delete(n.Labels, key)
		}
	})
}

func (g *gkeNode) latest() notice.Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.snapshot
}

func inSeconds(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

func TestGKEMaintenanceGoesFromLabelToLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGKENode(t)
		g.edit(func(*kubeapi.Node) {})
		check.Is(t, true, g.latest().HasEnded(nodeMaintenanceID))
		start := time.Now().Add(48 * time.Hour)
		g.label(scheduledLabel, inSeconds(start))
		s := g.latest()
		if len(s.Notices) != 0 || len(s.Planned) != 1 || !s.Planned[0].NotBefore.Equal(start) {
			t.Fatalf("two days before: %+v", s)
		}
		time.Sleep(48*time.Hour - 15*time.Minute + leadCheckInterval)
		synctest.Wait()
		s = g.latest()
		if len(s.Notices) != 1 || s.Notices[0].Type != notice.Redeploy || s.Notices[0].NotApprovable || g.emitted != 3 {
			t.Fatalf("at the lead: %+v after %d snapshots", s, g.emitted)
		}
		must.NoError(t, g.source.Approve(t.Context(), nodeMaintenanceID))
		check.Is(t, "true", g.node.Labels[PerformLabel])
		g.edit(func(*kubeapi.Node) {})
		must.NoError(t, g.source.Approve(t.Context(), nodeMaintenanceID)) // the label is set already
		check.Is(t, 1, g.patches)
		g.label(scheduledLabel, "") // for a moment GKE shows nothing
		time.Sleep(cleanUpDelay / 2)
		g.edit(func(n *kubeapi.Node) {
			n.Labels[activeLabel] = "ONGOING"
			n.Spec.Taints = []kubeapi.Taint{{Key: terminationTaint, Effect: "NoSchedule"}}
		})
		s = g.latest()
		if len(s.Notices) != 1 || s.Notices[0].ID != nodeMaintenanceID || !s.Notices[0].NotApprovable || !s.Notices[0].NotBefore.IsZero() || !s.Notices[0].HasBegun {
			t.Fatalf("ongoing: %+v", s)
		}
		time.Sleep(time.Hour)
		check.Is(t, 1, g.patches)
		g.fail = true
		g.edit(func(n *kubeapi.Node) { delete(n.Labels, activeLabel); n.Spec.Taints = nil })
		check.Is(t, true, g.latest().HasEnded(nodeMaintenanceID))
		g.start() // a restarted agent removes the label, too
		g.edit(func(*kubeapi.Node) {})
		time.Sleep(5 * cleanUpDelay)
		g.mu.Lock()
		g.fail = false
		g.mu.Unlock()
		time.Sleep(2 * cleanUpDelay)
		g.mu.Lock()
		defer g.mu.Unlock()
		check.Equal(t, map[string]string{}, g.node.Labels)
		check.Equal(t, map[string]string{}, g.node.Annotations)
	})
}

// TestI3LabelOfAUserStays covers a user who starts the maintenance.
func TestI3LabelOfAUserStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGKENode(t)
		g.label(PerformLabel, "true")
		g.label(scheduledLabel, inSeconds(time.Now()))
		must.NoError(t, g.source.Approve(t.Context(), nodeMaintenanceID))
		g.label(scheduledLabel, "")
		time.Sleep(time.Hour)
		check.Is(t, 0, g.patches)
		check.Is(t, "true", g.node.Labels[PerformLabel])
		g.label(PerformLabel, "false")
		must.NoError(t, g.source.Approve(t.Context(), nodeMaintenanceID))
		check.Is(t, 0, g.patches)
	})
}

func TestI10DamagedGKEMarksHideNoMaintenance(t *testing.T) {
	due := func(s notice.Snapshot) bool { return len(s.Notices) == 1 && s.Notices[0].Type == notice.Redeploy }
	unknown := func(s notice.Snapshot) bool { return len(s.Notices) == 0 && !s.HasEnded(nodeMaintenanceID) }
	soon := time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC) // the clock of synctest begins in 2000
	for _, tc := range []struct {
		name        string
		labels      map[string]string
		annotations map[string]string
		want        func(notice.Snapshot) bool
	}{
		{"label without a time", map[string]string{scheduledLabel: ""}, nil, due},
		{"label with words", map[string]string{scheduledLabel: "tomorrow"}, nil, due},
		{"label in milliseconds", map[string]string{scheduledLabel: inSeconds(soon) + "000"}, nil, due},
		{"label of the past", map[string]string{scheduledLabel: "946684700"}, nil, due},
		{"only the annotation", nil, map[string]string{upcomingAnnotation: `{"maintenanceStatus":"PENDING","windowStartTime":"2000-01-01T00:10:00Z"}`}, due},
		{"annotation without a time", nil, map[string]string{upcomingAnnotation: `{"maintenanceStatus":"PENDING"}`}, due},
		{"annotation is a page", nil, map[string]string{upcomingAnnotation: `<html>`}, unknown},
		{"annotation is a page, and a label", map[string]string{scheduledLabel: inSeconds(soon)}, map[string]string{upcomingAnnotation: `<html>`}, due},
		{"active with another word", map[string]string{activeLabel: "true"}, nil, due},
		{"not active any more", map[string]string{activeLabel: "COMPLETE"}, nil, func(s notice.Snapshot) bool { return s.HasEnded(nodeMaintenanceID) }},
		{
			"fixed", map[string]string{scheduledLabel: inSeconds(soon)}, map[string]string{upcomingAnnotation: `{"canReschedule":false}`},
			func(s notice.Snapshot) bool { return due(s) && s.Notices[0].NotApprovable },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGKENode(t)
				g.edit(func(n *kubeapi.Node) { n.Labels, n.Annotations = tc.labels, tc.annotations })
				if s := g.latest(); !tc.want(s) {
					t.Errorf("got %+v", s)
				}
			})
		})
	}
}

func TestNextMaintenanceDoesNotFindTheLabelOfTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGKENode(t)
		g.edit(func(n *kubeapi.Node) {
			n.Labels[PerformLabel], n.Annotations[performAnnotation] = "true", "2000-01-01T00:00:00Z"
			n.Labels[scheduledLabel] = inSeconds(time.Now().Add(48 * time.Hour))
		})
		time.Sleep(2 * cleanUpDelay)
		g.mu.Lock()
		defer g.mu.Unlock()
		check.Is(t, "", g.node.Labels[PerformLabel])
	})
}

func TestPreemptionDoesNotWaitForAPlannedMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGKENode(t)
		g.label(spotLabel, "true")
		for after, want := range map[time.Duration]int{14 * 24 * time.Hour: 1, time.Minute: 2} {
			g.edit(func(n *kubeapi.Node) { n.Labels[scheduledLabel] = inSeconds(time.Now().Add(after)) })
			g.edit(func(n *kubeapi.Node) { n.Spec.Taints = []kubeapi.Taint{{Key: terminationTaint}} })
			s := g.latest()
			if len(s.Notices) != want || s.Notices[want-1].Type != notice.Preempt || s.Notices[want-1].NoticePeriod != 0 {
				t.Errorf("%s before the maintenance: %+v, want a Preempt", after, s)
			}
			g.edit(func(n *kubeapi.Node) { n.Spec.Taints = nil; delete(n.Labels, scheduledLabel) })
		}
	})
}

// TestTerminationIsNotALaterMaintenance covers nodes that are not Spot nodes.
func TestTerminationIsNotALaterMaintenance(t *testing.T) {
	for _, tc := range []struct {
		name    string
		after   time.Duration // until the planned maintenance
		perform string
		want    []notice.Type
	}{
		{"in two weeks", 14 * 24 * time.Hour, "", []notice.Type{notice.Terminate}},
		{"in two weeks, not requested", 14 * 24 * time.Hour, "false", []notice.Type{notice.Terminate}},
		{"in two weeks, and requested now", 14 * 24 * time.Hour, "true", []notice.Type{notice.Redeploy}},
		{"in an hour", time.Hour, "", []notice.Type{notice.Redeploy}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGKENode(t)
				g.edit(func(n *kubeapi.Node) {
					n.Labels[scheduledLabel], n.Labels[PerformLabel] = inSeconds(time.Now().Add(tc.after)), tc.perform
					n.Spec.Taints = []kubeapi.Taint{{Key: terminationTaint}}
				})
				var got []notice.Type
				for _, n := range g.latest().Notices {
					got = append(got, n.Type)
					check.Is(t, true, n.NotApprovable)
				}
				check.Equal(t, tc.want, got)
				check.Is(t, tc.want[0] == notice.Terminate, len(g.latest().Planned) == 1) // the maintenance stays planned
			})
		})
	}
}

func TestTerminatingGKENodeIsPreemptOrTerminate(t *testing.T) {
	for labels, want := range map[string]notice.Type{spotLabel: notice.Preempt, preemptibleLabel: notice.Preempt, "other": notice.Terminate} {
		for name, set := range map[string]func(*kubeapi.Node){
			"taint": func(n *kubeapi.Node) { n.Spec.Taints = []kubeapi.Taint{{Key: terminationTaint, Effect: "NoSchedule"}} },
			"condition": func(n *kubeapi.Node) {
				n.Status.Conditions = []kubeapi.Condition{{Type: terminationTaint, Status: "True"}}
			},
		} {
			t.Run(fmt.Sprint(labels, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newGKENode(t)
					g.edit(func(n *kubeapi.Node) { n.Labels[labels] = "true"; set(n) })
					s := g.latest()
					if len(s.Notices) != 1 || s.Notices[0].Type != want || s.Notices[0].ID != nodeTerminationID || !s.Notices[0].NotApprovable {
						t.Errorf("got %+v, want %s", s, want)
					}
				})
			})
		}
	}
}
