package placementtest

import (
	"fmt"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// CheckRemovalsExecutable executes the removals in a fork, in order. It fails if a pod does not fit on its target, or if a target is
// removed too.
func CheckRemovalsExecutable(s *snapshot.Snapshot, victims []planner.Evacuation) error {
	fork := s.Fork()
	defer fork.Rollback()
	removed := map[string]bool{}
	for _, v := range victims {
		removed[v.Node] = true
	}
	for _, v := range victims {
		if err := fork.RemoveNamedNodeAndPods(v.Node); err != nil {
			return err
		}
		if err := checkAndMovePods(s, fork, v.Moves, removed); err != nil {
			return fmt.Errorf("while %s goes: %w", v.Node, err)
		}
	}
	return nil
}

// CheckPackingExecutable executes a packing in a fork: it launches all instances, and fails if a pod does not fit on its target.
func CheckPackingExecutable(s *snapshot.Snapshot, templates []planner.Template, packing *planner.Packing) error {
	fork := s.Fork()
	defer fork.Rollback()
	byName := map[string]*planner.Template{}
	for i := range templates {
		byName[templates[i].Name] = &templates[i]
	}
	for _, m := range packing.Instances {
		f, zone := byName[m.Template], m.Zone
		if len(f.Zones) == 0 {
			zone = ""
		}
		if err := f.AddInstance(s, fork, f.NewNode(m.Name, zone)); err != nil {
			return err
		}
	}
	return checkAndMovePods(s, fork, packing.Moves, nil)
}

func checkAndMovePods(s *snapshot.Snapshot, fork snapshot.Fork, moves []planner.Move, removed map[string]bool) error {
	for _, m := range moves {
		verdict, err := s.JudgeRecreatedPod(m.Pod, m.To)
		if err != nil {
			return err
		}
		if verdict.Outcome != placement.Fits || removed[m.To] {
			return fmt.Errorf("pod %s does not go to %s: %s", m.Pod, m.To, verdict)
		}
		if err := fork.MovePod(m.Pod, m.To); err != nil {
			return err
		}
	}
	return nil
}

// CheckRanks compares a ranking with PlanEvacuation. It checks all nodes that are not removable, and executes the plan
// of every n-th removable node.
func CheckRanks(s *snapshot.Snapshot, ranks []planner.Rank, everyNth int) error {
	if len(ranks) != s.Nodes.Len() {
		return fmt.Errorf("%d nodes ranked of %d", len(ranks), s.Nodes.Len())
	}
	for i, r := range ranks {
		if r.Removable && i%everyNth != 0 {
			continue
		}
		e, err := planner.PlanEvacuation(s, r.Node, planner.LeastDisruption, planner.Options{})
		if err != nil {
			return err
		}
		if e.IsFeasible() != r.Removable || e.Cost != r.Cost && r.Removable || r.Groups != len(e.Groups) {
			return fmt.Errorf("%s is ranked %+v, its evacuation says %v at %v", r.Node, r, e.Refusals, e.Cost)
		}
		if r.Removable {
			if err := CheckRemovalsExecutable(s, []planner.Evacuation{*e}); err != nil {
				return err
			}
		}
	}
	return nil
}
