package placement

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// commandGC is GOGC of slipway plan and slipway why.
const commandGC = 400

// askDiverse measures the questions of slipway plan and slipway why, with a loaded cluster and with loading.
func askDiverse() ([]result.Result, error) {
	o := &placementtest.Diverse(seed, 5000, 150_000, 200).Objects
	for i := range 100 {
		o.Pods = append(o.Pods, placementtest.Pod("waiting", i, "", 3000, 4096))
	}
	var file bytes.Buffer
	if err := o.Write(&file, saved.Compact); err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(commandGC))
	var cluster *planner.Cluster
	load, err := measure(3, func() (err error) {
		loaded, err := saved.Decode(file.Bytes())
		if err != nil {
			return err
		}
		cluster, err = planner.NewCluster(loaded)
		return err
	})
	if err != nil {
		return nil, err
	}
	a := asked{cluster: cluster, objects: o, text: "5,000 nodes, 150,000 placed pods, 100 pending, 200 disruption budgets; " + mix}
	results := []result.Result{{
		Name: "load a saved cluster", Value: milliseconds(load.cpu), Unit: "ms",
		Setup: load.setup(fmt.Sprintf("%s; %d MB, from memory to the first question", a.text, file.Len()/1e6)),
	}}
	for _, ask := range []func() (result.Result, error){a.node, a.pod, a.plan} {
		measured, err := ask()
		if err != nil {
			return nil, err
		}
		results = append(results, measured)
	}
	return results, nil
}

// asked is a cluster with its objects, which verify every answer.
type asked struct {
	cluster *planner.Cluster
	objects *saved.Objects
	text    string
}

var options = planner.PlanOptions{Max: -1, Policy: planner.LeastDisruption}

const reachWarm = 1000 // ms

func (a *asked) node() (result.Result, error) {
	var answers []*planner.Evacuation
	f, err := measure(5, func() error {
		answers = answers[:0]
		for i := range 20 {
			answer, err := a.cluster.Evacuate(a.objects.Nodes[i*251].Name, options)
			if err != nil {
				return err
			}
			answers = append(answers, answer)
		}
		return nil
	})
	if err != nil {
		return result.Result{}, err
	}
	s, err := a.served()
	if err != nil {
		return result.Result{}, err
	}
	feasible := 0
	for _, e := range answers {
		if !e.Feasible() {
			continue
		}
		feasible++
		if err := placementtest.CarryOut(s, []planner.Evacuation{*e}); err != nil {
			return result.Result{}, fmt.Errorf("apply why %s: %w", e.Node, err)
		}
	}
	if feasible == 0 {
		return result.Result{}, fmt.Errorf("none of %d nodes can be removed", len(answers))
	}
	setup := f.setup(fmt.Sprintf("%s; mean of 20 nodes, %d of them removable, verified", a.text, feasible))
	return atMost("why NODE, cache warm", milliseconds(f.cpu)/20, "ms", reachWarm, setup), nil
}

func (a *asked) pod() (result.Result, error) {
	p := a.objects.Pods[len(a.objects.Pods)-1]
	key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
	var answer *planner.Pending
	f, err := measure(9, func() (err error) {
		answer, err = a.cluster.JudgePending(key)
		return err
	})
	if err != nil {
		return result.Result{}, err
	}
	s, err := a.objects.Snapshot()
	if err != nil {
		return result.Result{}, err
	}
	for _, n := range a.objects.Nodes {
		verdict, err := s.JudgePod(key, n.Name)
		if err != nil {
			return result.Result{}, err
		}
		if (verdict.Outcome == placement.Fits) != slices.Contains(answer.Fits, n.Name) {
			return result.Result{}, fmt.Errorf("pod %s on %s: %s, which is missing in the answer", key, n.Name, verdict)
		}
	}
	setup := f.setup(fmt.Sprintf("%s; a pending pod that fits on %d nodes, each verdict verified", a.text, len(answer.Fits)))
	return atMost("why POD, cache warm", milliseconds(f.cpu), "ms", reachWarm, setup), nil
}

func (a *asked) plan() (result.Result, error) {
	var answer *planner.Plan
	f, err := measure(5, func() (err error) {
		answer, err = a.cluster.Plan(options)
		return err
	})
	if err != nil {
		return result.Result{}, err
	}
	if len(answer.Remove.Victims) == 0 || answer.Launch == nil {
		return result.Result{}, fmt.Errorf("a plan with %d victims, pending pods placed: %t", len(answer.Remove.Victims), answer.Launch != nil)
	}
	s, err := a.served()
	if err != nil {
		return result.Result{}, err
	}
	if err := placementtest.CarryOut(s, answer.Remove.Victims); err != nil {
		return result.Result{}, fmt.Errorf("apply the plan: %w", err)
	}
	setup := f.setup(fmt.Sprintf("%s; all removable nodes, %d found and verified together with the pending pods", a.text,
		len(answer.Remove.Victims)))
	return atMost("plan, cache warm", milliseconds(f.cpu), "ms", reachWarm, setup), nil
}

// served returns a new snapshot with the pending pods on the nodes reserved for them.
func (a *asked) served() (*snapshot.Snapshot, error) {
	s, err := a.objects.Snapshot()
	if err != nil {
		return nil, err
	}
	packing, err := planner.Pack(s, nil, planner.Flavours(a.objects), planner.LeastWaste)
	if err != nil {
		return nil, err
	}
	places := map[placement.PodKey]string{}
	for _, m := range packing.Moves {
		places[m.Pod] = m.To
	}
	for _, p := range a.objects.Pods {
		if p.Spec.NodeName != "" {
			continue
		}
		bound := p.DeepCopy()
		if bound.Spec.NodeName = places[placement.PodKey{Namespace: p.Namespace, Name: p.Name}]; bound.Spec.NodeName == "" {
			return nil, fmt.Errorf("pending pod %s has no node", p.Name)
		}
		if err := s.SetPod(bound); err != nil {
			return nil, err
		}
	}
	return s, nil
}
