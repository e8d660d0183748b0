package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

var (
	pairs = flag.Int("pairs", 100_000, "how many pairs of a pod and a node to judge")
	seed  = flag.Uint64("seed", 1, "seed of the first cluster")

	churned = flag.Int("churned", 50_000, "how many pairs to judge in the middle of events")
)

// compare judges every candidate on every node twice and returns the first disagreement.
func compare(ctx context.Context, judge *Scheduler, c *placementtest.Cluster, s *snapshot.Snapshot, plugins map[string]int) (judged, undecided int, err error) {
	for i, p := range slices.Concat(c.Candidates, c.PendingPods()) {
		rulings, err := judge.JudgePod(ctx, p, c.Nodes)
		if err != nil {
			return judged, undecided, err
		}
		for _, n := range c.Nodes {
			verdict, err := s.JudgeNewPod(p, n.Name)
			if i >= len(c.Candidates) {
				verdict, err = s.JudgeRecreatedPod(placement.PodKey{Namespace: p.Namespace, Name: p.Name}, n.Name)
			}
			if err != nil {
				return judged, undecided, err
			}
			judged++
			ruling := rulings[n.Name]
			plugins[ruling.Plugin]++
			if verdict.Outcome == placement.Undecidable {
				undecided++
				continue
			}
			if (verdict.Outcome == placement.Fits) != ruling.Fits || len(p.Spec.ResourceClaims) == 0 && !haveSameReasons(verdict, ruling) {
				return judged, undecided, &disagreement{p.Name, n.Name, verdict, ruling}
			}
		}
	}
	return judged, undecided, nil
}

// predicates are the plugins that must each refuse at least one pair, so that the comparison is meaningful. "" means no plugin.
var predicates = []string{
	"", "SchedulingGates", "PreFilter", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts",
	"NodeResourcesFit", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread",
	"InterPodAffinity", "NodeDeclaredFeatures",
}

type disagreement struct {
	pod, node string
	verdict   placement.Verdict
	ruling    Ruling
}

func (d *disagreement) Error() string {
	return fmt.Sprintf("%s on %s: placement says %s, the scheduler says fits=%t %s %q", d.pod, d.node, d.verdict, d.ruling.Fits,
		d.ruling.Plugin, d.ruling.Reasons)
}

// haveSameReasons compares the reasons that placement quotes from the scheduler. It ignores the order of several claims or
// resources.
func haveSameReasons(v placement.Verdict, r Ruling) bool {
	if r.Plugin == "PreFilter" || len(v.Reasons) > 0 && mayBeSkipped(r.Plugin) && v.Reasons[0].Predicate != r.Plugin {
		return true
	}
	var texts []string
	for _, reason := range v.Reasons {
		if reason.Scheduler == "" {
			return true
		}
		texts = append(texts, reason.Scheduler)
	}
	slices.Sort(texts)
	if len(texts) == 1 && len(r.Reasons) == 1 && strings.HasSuffix(texts[0], driverMissing) {
		return strings.HasSuffix(r.Reasons[0], driverMissing) // any of several drivers
	}
	if len(texts) == 1 && len(r.Reasons) == 1 && strings.HasPrefix(r.Reasons[0], "running ") {
		return strings.HasSuffix(r.Reasons[0], texts[0]) // the framework wraps a plugin's error
	}
	if r.Plugin == "VolumeBinding" { // it may have more reasons, for volumes that placement does not check
		return !slices.ContainsFunc(texts, func(text string) bool { return !slices.Contains(r.Reasons, text) })
	}
	return slices.Equal(texts, r.Reasons)
}

const driverMissing = " CSI driver is not installed on the node"

// mayBeSkipped reports whether placement may skip a plugin's check, so that a later plugin refuses the pod.
func mayBeSkipped(plugin string) bool {
	return plugin == "NodeVolumeLimits" || plugin == "VolumeBinding" || plugin == "DynamicResources"
}

func TestPlacementAgreesWithScheduler(t *testing.T) {
	t.Parallel()
	judge := newScheduler(t)
	var judged, undecided, clusters int
	plugins := map[string]int{}
	for s := *seed; judged < *pairs; s++ {
		c := placementtest.NewRandomCluster(s)
		clusters++
		n, u, err := compareFreshSnapshot(t.Context(), judge, c, plugins)
		judged, undecided = judged+n, undecided+u
		if err != nil {
			shrinkAndFail(t, judge, c, fmt.Errorf("seed %d: %w", s, err))
		}
	}
	t.Logf("%d pairs in %d clusters, %d undecidable; refused by %v", judged, clusters, undecided, plugins)
	for _, name := range predicates {
		if *pairs >= 100_000 && plugins[name] == 0 {
			t.Errorf("no pair was refused by %s: the clusters do not exercise it", name)
		}
	}
}

func newScheduler(t *testing.T) *Scheduler {
	t.Helper()
	judge, err := NewScheduler(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return judge
}

// compareFreshSnapshot builds placement's snapshot of a cluster and compares.
func compareFreshSnapshot(ctx context.Context, judge *Scheduler, c *placementtest.Cluster, plugins map[string]int) (judged, undecided int, err error) {
	if err := judge.LoadCluster(c); err != nil {
		return 0, 0, err
	}
	snapshot, err := c.BuildSnapshot()
	if err != nil {
		return 0, 0, err
	}
	return compare(ctx, judge, c, snapshot, plugins)
}

// shrinkAndFail shrinks a cluster with a disagreement and stores it as a case.
func shrinkAndFail(t *testing.T, judge *Scheduler, c *placementtest.Cluster, err error) {
	t.Helper()
	disagree := func(c *placementtest.Cluster) bool {
		_, _, err := compareFreshSnapshot(t.Context(), judge, c, map[string]int{})
		var d *disagreement
		return errors.As(err, &d)
	}
	small := ShrinkCluster(c, disagree)
	text, _ := json.MarshalIndent(small, "", " ")
	path := filepath.Join("testdata", "found.json")
	if writeErr := os.WriteFile(path, append(text, '\n'), 0o644); writeErr != nil {
		t.Error(writeErr)
	}
	_, _, smallErr := compareFreshSnapshot(t.Context(), judge, small, map[string]int{})
	t.Fatalf("%v\nshrunk to %s (rename it to keep it as a case): %v", err, path, smallErr)
}

// TestEarlierDisagreements replays the clusters with earlier disagreements.
func TestEarlierDisagreements(t *testing.T) {
	judge := newScheduler(t)
	paths, err := filepath.Glob(filepath.Join("testdata", "case-*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases found: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var c placementtest.Cluster
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatal(err)
			}
			judged, _, err := compareFreshSnapshot(t.Context(), judge, &c, map[string]int{})
			if err != nil || judged == 0 {
				t.Fatalf("%d pairs judged: %v", judged, err)
			}
		})
	}
}

// TestAgreementAfterForksMovesAndRollbacks tries random plans and compares during and after them.
func TestAgreementAfterForksMovesAndRollbacks(t *testing.T) {
	t.Parallel()
	judge := newScheduler(t)
	judged := 0
	for s := *seed; judged < *pairs/4; s++ {
		c := placementtest.NewRandomCluster(s)
		if len(c.Pods) == 0 {
			continue
		}
		c.Pods = slices.DeleteFunc(c.Pods, placementtest.IsFinished)
		snapshot, err := c.BuildSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		g := rand.New(rand.NewPCG(s, 5))
		outer := snapshot.Fork()
		moved := makeRandomMoves(t, g, c, outer)
		judged += compareAndFail(t, judge, moved, snapshot, s)
		inner := snapshot.Fork()
		again := makeRandomMoves(t, g, moved, inner)
		judged += compareAndFail(t, judge, again, snapshot, s)
		inner.Rollback()
		judged += compareAndFail(t, judge, moved, snapshot, s)
		outer.Rollback()
		judged += compareAndFail(t, judge, c, snapshot, s)
	}
	t.Logf("%d pairs", judged)
}

func compareAndFail(t *testing.T, judge *Scheduler, c *placementtest.Cluster, snapshot *snapshot.Snapshot, seed uint64) int {
	t.Helper()
	if err := judge.LoadCluster(c); err != nil {
		t.Fatal(err)
	}
	n, _, err := compare(t.Context(), judge, c, snapshot, map[string]int{})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return n
}

// makeRandomMoves makes the same random steps in the fork and in a copy of the cluster.
func makeRandomMoves(t *testing.T, g *rand.Rand, c *placementtest.Cluster, fork snapshot.Fork) *placementtest.Cluster {
	t.Helper()
	after := *c
	after.Nodes, after.Pods = slices.Clone(c.Nodes), slices.Clone(c.Pods)
	for range 1 + g.IntN(12) {
		var err error
		switch i := g.IntN(10); {
		case i == 0 && len(after.Nodes) > 2:
			n := g.IntN(len(after.Nodes))
			err = fork.RemoveNamedNodeAndPods(after.Nodes[n].Name)
			gone := after.Nodes[n].Name
			after.Nodes = slices.Delete(after.Nodes, n, n+1)
			after.Pods = slices.DeleteFunc(after.Pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == gone })
		case i == 1:
			n := placementtest.NewRandomNode(g, 100+len(after.Nodes)+g.IntN(1<<40))
			err = fork.AddNewNode(n)
			after.Nodes = append(after.Nodes, n)
		case len(after.Pods) > 0:
			i := g.IntN(len(after.Pods))
			p := after.Pods[i].DeepCopy()
			p.Spec.NodeName = after.Nodes[g.IntN(len(after.Nodes))].Name
			p.Status = corev1.PodStatus{}
			err = fork.MovePod(placement.PodKey{Namespace: p.Namespace, Name: p.Name}, p.Spec.NodeName)
			after.Pods[i] = p
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &after
}
