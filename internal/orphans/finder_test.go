package orphans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeCloud is a cloud with instances.
type fakeCloud struct {
	instances []cloud.Instance
	failing   bool
	deleted   []string
}

func (w *fakeCloud) Normalize(id string) (string, error) {
	if !strings.HasPrefix(id, "cloud:///") {
		return "", errors.New("another cloud's")
	}
	return strings.ToLower(id), nil
}

func (w *fakeCloud) Instance(_ context.Context, id string) (cloud.Instance, error) {
	if w.failing {
		return cloud.Instance{}, errors.New("unreachable")
	}
	for _, m := range w.instances {
		if m.ProviderID == id {
			return m, nil
		}
	}
	return cloud.Instance{}, &cloud.NotFoundError{Kind: "instance", Name: id}
}

func (w *fakeCloud) Delete(_ context.Context, id string) (cloud.Operation, error) {
	w.deleted = append(w.deleted, id)
	return cloud.Operation{}, nil
}

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old   = now.Add(-time.Hour)
	grace = GracePeriod{JoinTimeout: 30 * time.Minute, ConfirmFor: 15 * time.Minute, MinScans: 3}
)

func newOldInstance(id string) cloud.Instance {
	return cloud.Instance{ProviderID: "cloud:///" + id, Name: "m-" + id, ComputerName: "h-" + id, Group: "g", State: cloud.Running, Created: old}
}

// lookRepeatedly scans so many times during the grace period, and returns the last findings as text.
func lookRepeatedly(t *testing.T, w *fakeCloud, nodes []Node, times int) []string {
	t.Helper()
	f := NewFinder(w, grace)
	var found []Finding
	for i := range times {
		var err error
		if found, err = f.FindOrphans(t.Context(), w.instances, nodes, now.Add(time.Duration(i)*grace.ConfirmFor/time.Duration(max(1, times-1)))); err != nil {
			t.Fatal(err)
		}
	}
	var words []string
	for _, f := range found {
		words = append(words, fmt.Sprintf("%s %s %t", f.Kind, f.Name, f.IsDue))
	}
	return words
}

func TestInstanceIsOrphanedOnlyWithoutNode(t *testing.T) {
	w := &fakeCloud{instances: []cloud.Instance{newOldInstance("a")}}
	if got := lookRepeatedly(t, w, nil, 3); !slices.Equal(got, []string{"Instance m-a true"}) {
		t.Errorf("no Node for the instance: %q", got)
	}
	if got := lookRepeatedly(t, w, nil, 2); !slices.Equal(got, []string{"Instance m-a false"}) {
		t.Errorf("two scans: %q", got)
	}
	for name, n := range map[string]Node{
		"provider ID": {Name: "x", ProviderID: "cloud:///A"}, "name": {Name: "M-a"}, "host name": {Name: "h-a"},
		"system UUID": {Name: "x", SystemUUID: "A"},
	} {
		if got := lookRepeatedly(t, w, []Node{n}, 3); len(got) != 0 {
			t.Errorf("a Node has its %s: %q", name, got)
		}
	}
	for name, change := range map[string]func(*cloud.Instance){
		"being deleted": func(m *cloud.Instance) { m.State = cloud.Deleting }, "in an unknown state": func(m *cloud.Instance) { m.State = cloud.Unknown },
		"young": func(m *cloud.Instance) { m.Created = now.Add(-time.Minute) }, "of unknown age": func(m *cloud.Instance) { m.Created = time.Time{} },
	} {
		m := newOldInstance("a")
		change(&m)
		if got := lookRepeatedly(t, &fakeCloud{instances: []cloud.Instance{m}}, nil, 3); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestSilentNodeWithoutInstanceIsOrphaned(t *testing.T) {
	orphan := Node{Name: "n", ProviderID: "cloud:///gone", Created: old}
	w := &fakeCloud{instances: []cloud.Instance{newOldInstance("a")}}
	a := Node{Name: "m-a"}
	if got := lookRepeatedly(t, w, []Node{a, orphan}, 3); !slices.Equal(got, []string{"Node n true"}) {
		t.Errorf("%q", got)
	}
	for name, change := range map[string]func(*Node){
		"Ready": func(n *Node) { n.Ready = true }, "young": func(n *Node) { n.Created = now }, "another cloud's": func(n *Node) { n.ProviderID = "x:///gone" },
		"without a provider ID": func(n *Node) { n.ProviderID = "" }, "there": func(n *Node) { n.ProviderID = "cloud:///a" },
		"there by its name": func(n *Node) { n.Name = "h-a" },
	} {
		n := orphan
		change(&n)
		if got := lookRepeatedly(t, w, []Node{a, n}, 3); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
	w.failing = true
	if found, err := NewFinder(w, GracePeriod{}).FindOrphans(t.Context(), w.instances, []Node{a, orphan}, now); err == nil || len(found) != 0 {
		t.Errorf("I7: the cloud does not answer: %+v, %v", found, err)
	}
}

func TestOnlyOrphanedNodesAreFoundWithoutMarks(t *testing.T) {
	orphan := Node{Name: "n", ProviderID: "cloud:///gone", Created: old}
	w := &fakeCloud{instances: []cloud.Instance{newOldInstance("a")}}
	lists, failing := 0, error(nil)
	list := func(context.Context) ([]cloud.Instance, error) { lists++; return w.instances, failing }
	f := NewFinder(w, GracePeriod{ConfirmFor: 10 * time.Minute, MinScans: 2})
	look := func(minutes int, nodes ...Node) ([]Finding, error) {
		return f.FindOrphanedNodes(t.Context(), list, nodes, now.Add(time.Duration(minutes)*time.Minute))
	}
	readyNode := Node{Name: "m-b", ProviderID: "cloud:///b", Ready: true, Created: old}
	if found, err := look(0, readyNode); len(found) != 0 || err != nil || lists != 0 {
		t.Errorf("no Node is silent: %+v, %v, %d lists", found, err, lists)
	}
	if found, err := look(0, orphan); err != nil || len(found) != 1 || found[0].Kind != OrphanedNode || found[0].IsDue {
		t.Errorf("at first: %+v, %v", found, err)
	}
	if found, err := look(10, orphan); err != nil || len(found) != 1 || !found[0].IsDue || len(found[0].Proofs) < 3 {
		t.Errorf("after the grace: %+v, %v", found, err)
	}
	failing = errors.New("unreachable")
	if found, err := look(20, orphan); err == nil || len(found) != 0 {
		t.Errorf("I7: a list fails: %+v, %v", found, err)
	}
	failing = nil
	if found, err := look(30, orphan); err != nil || len(found) != 1 || found[0].IsDue {
		t.Errorf("the grace period starts again: %+v, %v", found, err)
	}
	if found, err := look(40, Node{Name: "m-a", ProviderID: "cloud:///gone", Created: old}); err != nil || len(found) != 0 {
		t.Errorf("a list has its name: %+v, %v", found, err)
	}
}

func TestGraceRestartsAfterOneMiss(t *testing.T) {
	w := &fakeCloud{instances: []cloud.Instance{newOldInstance("a")}}
	f := NewFinder(w, GracePeriod{ConfirmFor: 10 * time.Minute, MinScans: 2})
	var due []bool
	for i, nodes := range [][]Node{nil, nil, {{Name: "m-a"}}, nil, nil} {
		found, err := f.FindOrphans(t.Context(), w.instances, nodes, now.Add(time.Duration(i)*10*time.Minute))
		must.NoError(t, err)
		due = append(due, len(found) == 1 && found[0].IsDue)
	}
	if !slices.Equal(due, []bool{false, true, false, false, true}) {
		t.Errorf("due %v", due)
	}
}

// TestI4OrphanJoiningDuringDeletionStays lets the second of two orphans join while the first is deleted.
func TestI4OrphanJoiningDuringDeletionStays(t *testing.T) {
	w := &fakeCloud{instances: []cloud.Instance{newOldInstance("a"), newOldInstance("b")}}
	finding := func(id string) Finding {
		return Finding{Kind: OrphanedInstance, ProviderID: "cloud:///" + id, Name: "m-" + id, Group: "g", IsDue: true}
	}
	nodes := func(context.Context) ([]cloud.NodeIdentity, error) {
		if len(w.deleted) > 0 {
			return []cloud.NodeIdentity{{Name: "m-b", ProviderID: "cloud:///b"}}, nil
		}
		return nil, nil
	}
	begun, err := DeleteDueOrphanedInstances(t.Context(), w, nodes, []Finding{finding("a"), finding("b")}, slog.New(slog.DiscardHandler))
	if err != nil || len(begun) != 1 || begun[0].ProviderID != "cloud:///a" || len(w.deleted) != 1 {
		t.Errorf("deleted %q, returned %v, %v; want the first only", w.deleted, begun, err)
	}
}

func TestI4OrphanIsReadAgainBeforeItsDeletion(t *testing.T) {
	finding := Finding{Kind: OrphanedInstance, ProviderID: "cloud:///a", Name: "m-a", Group: "g", IsDue: true}
	for name, tc := range map[string]struct {
		change  func(*fakeCloud, *Finding)
		nodes   []Node
		deleted int
	}{
		"still an orphan":        {nil, nil, 1},
		"not due":                {func(_ *fakeCloud, f *Finding) { f.IsDue = false }, nil, 0},
		"an orphaned Node":       {func(_ *fakeCloud, f *Finding) { f.Kind = OrphanedNode }, nil, 0},
		"it has joined":          {nil, []Node{{Name: "x", ProviderID: "cloud:///a"}}, 0},
		"it is gone":             {func(w *fakeCloud, _ *Finding) { w.instances = nil }, nil, 0},
		"moved to another group": {func(w *fakeCloud, _ *Finding) { w.instances[0].Group = "other" }, nil, 0},
		"another instance":       {func(w *fakeCloud, _ *Finding) { w.instances[0].Name = "other" }, nil, 0},
		"being deleted":          {func(w *fakeCloud, _ *Finding) { w.instances[0].State = cloud.Deleting }, nil, 0},
		"I7 unreadable":          {func(w *fakeCloud, _ *Finding) { w.failing = true }, nil, 0},
	} {
		w, f := &fakeCloud{instances: []cloud.Instance{newOldInstance("a")}}, finding
		if tc.change != nil {
			tc.change(w, &f)
		}
		begun, err := DeleteDueOrphanedInstances(t.Context(), w, newHostReader(tc.nodes), []Finding{f}, slog.New(slog.DiscardHandler))
		if len(w.deleted) != tc.deleted || len(begun) != tc.deleted || (err != nil) != w.failing {
			t.Errorf("%s: deleted %q, returned %v, %v", name, w.deleted, begun, err)
		}
	}
}

// newHostReader returns a reader that finds these Nodes.
func newHostReader(nodes []Node) func(context.Context) ([]cloud.NodeIdentity, error) {
	return func(context.Context) (all []cloud.NodeIdentity, _ error) {
		for _, n := range nodes {
			all = append(all, cloud.NodeIdentity{Name: n.Name, ProviderID: n.ProviderID, SystemUUID: n.SystemUUID})
		}
		return all, nil
	}
}

// newFleet returns orphaned instances, and instances with their Nodes.
func newFleet(orphans, joined int) (w *fakeCloud, nodes []Node) {
	w = &fakeCloud{}
	for i := range orphans + joined {
		m := newOldInstance(fmt.Sprintf("%02d", i))
		w.instances = append(w.instances, m)
		if i >= orphans {
			nodes = append(nodes, Node{Name: m.Name, ProviderID: m.ProviderID, Ready: true, Created: old})
		}
	}
	return w, nodes
}

// lookAndDelete scans some minutes from now and deletes the orphans. It returns the number of deletions.
func lookAndDelete(t *testing.T, w *fakeCloud, f *Finder, nodes []Node, minutes int) int {
	t.Helper()
	before := len(w.deleted)
	found, err := f.FindOrphans(t.Context(), w.instances, nodes, now.Add(time.Duration(minutes)*time.Minute))
	must.NoError(t, err)
	if _, err := DeleteDueOrphanedInstances(t.Context(), w, newHostReader(nodes), found, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return len(w.deleted) - before
}

func TestI7ClusterWithoutNodesLosesNoInstance(t *testing.T) {
	for _, tc := range []struct{ orphans, joined, deleted int }{
		{1, 0, 0}, {40, 0, 0}, {1, 1, 1}, {3, 1, 3}, {4, 1, 0}, {39, 1, 0}, {3, 19, 3}, {4, 19, 0}, {4, 20, 4}, {5, 20, 0}, {20, 100, 20},
	} {
		w, nodes := newFleet(tc.orphans, tc.joined)
		f := NewFinder(w, grace)
		deleted := 0
		for _, minutes := range []int{0, 8, 16, 60} {
			deleted += lookAndDelete(t, w, f, nodes, minutes)
			w.instances = slices.DeleteFunc(w.instances, func(m cloud.Instance) bool { return slices.Contains(w.deleted, m.ProviderID) })
		}
		if deleted != tc.deleted {
			t.Errorf("%d instances without a Node and %d with one: deleted %d, want %d", tc.orphans, tc.joined, deleted, tc.deleted)
		}
	}
}

func TestI7ControlPlaneInstancesDoNotCountAsJoined(t *testing.T) {
	w, nodes := newFleet(3, 3)
	for i := range nodes {
		nodes[i].ControlPlane = true
	}
	f := NewFinder(w, grace)
	for _, minutes := range []int{0, 8, 16, 60} {
		if n := lookAndDelete(t, w, f, nodes, minutes); n != 0 {
			t.Errorf("after %d minutes: deleted %d, although only control plane instances have a Node", minutes, n)
		}
	}
}

func TestRemainingOrphansGetNewTimeToJoin(t *testing.T) {
	w, nodes := newFleet(0, 10)
	f := NewFinder(w, grace)
	for _, step := range []struct{ minutes, joined, deleted int }{
		{0, 1, 0}, {20, 1, 0}, {25, 7, 0}, {35, 8, 0}, {49, 8, 0}, {50, 8, 2},
	} {
		if n := lookAndDelete(t, w, f, nodes[:step.joined], step.minutes); n != step.deleted {
			t.Errorf("after %d minutes, with %d rejoined Nodes: deleted %d, want %d", step.minutes, step.joined, n, step.deleted)
		}
	}
}

// TestI7OrphansThatGetANodeGroupGetNewTimeToJoin creates the NodeGroup of lost instances after the manager has started.
func TestI7OrphansThatGetANodeGroupGetNewTimeToJoin(t *testing.T) {
	type step struct {
		minutes, joined int
		hasNodeGroup    bool
		deleted         int
	}
	for name, steps := range map[string][]step{
		"most have joined before": {{0, 8, false, 0}, {10, 8, false, 0}, {20, 8, true, 0}, {28, 8, true, 0}, {34, 8, true, 0}, {35, 8, true, 2}},
		"none has joined before":  {{0, 0, false, 0}, {18, 0, false, 0}, {20, 8, true, 0}, {36, 8, true, 0}, {47, 8, true, 0}, {48, 8, true, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w, nodes := newFleet(0, 10)
			f := NewFinder(w, grace)
			for _, s := range steps {
				f.KeepReason = func(cloud.Instance) string {
					if s.hasNodeGroup {
						return ""
					}
					return "it has no NodeGroup"
				}
				if n := lookAndDelete(t, w, f, nodes[:s.joined], s.minutes); n != s.deleted {
					t.Errorf("after %d minutes: deleted %d, want %d", s.minutes, n, s.deleted)
				}
			}
		})
	}
}

// For any cluster and cloud: an instance with a Node by any of its names is not an orphan, and nothing is due too
// early.
func TestI7NothingIsDueBeforeItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 4, rapid.ID).Draw(t, "machines")
		w := &fakeCloud{}
		for _, id := range ids {
			w.instances = append(w.instances, newOldInstance(id))
		}
		f := NewFinder(w, grace)
		first := map[string]int{}
		at := 0
		for i := range rapid.IntRange(1, 12).Draw(t, "looks") {
			at += rapid.IntRange(0, 10).Draw(t, "minutes")
			joined := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.ID).Draw(t, "joined")
			var nodes []Node
			for _, id := range joined {
				nodes = append(nodes, Node{Name: "m-" + id, Created: old})
			}
			found, err := f.FindOrphans(context.Background(), w.instances, nodes, now.Add(time.Duration(at)*time.Minute))
			must.NoError(t, err)
			still := map[string]int{}
			for _, one := range found {
				id := strings.TrimPrefix(one.Name, "m-")
				if slices.Contains(joined, id) {
					t.Fatalf("look %d: %s has a Node", i, one)
				}
				still[id] = at
				if since, ok := first[id]; ok {
					still[id] = since
				}
				if one.IsDue && at-still[id] < int(grace.ConfirmFor.Minutes()) {
					t.Fatalf("look %d: %s is due after %d minutes", i, one, at-still[id])
				}
			}
			first = still
		}
	})
}
