package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/oracle"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// commandGCPercent is the GOGC value of slipway plan and slipway why.
const commandGCPercent = 400

// measureCommands measures how long slipway plan and slipway why take to answer. It measures both the answer from a
// loaded cluster, and the loading itself.
func measureCommands() ([]result.Result, error) {
	o := &placementtest.NewDiverseCluster(seed, 5000, 150_000, 200).Objects
	for i := range 100 {
		o.Pods = append(o.Pods, placementtest.NewPod("waiting", i, "", 3000, 4096))
	}
	var file bytes.Buffer
	if err := o.WriteReduced(&file, saved.Compact); err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(commandGCPercent))
	var cluster *planner.Cluster
	load, err := measureRuns(3, func() (err error) {
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
	a := loadedCluster{cluster: cluster, objects: o, text: "5,000 nodes, 150,000 placed pods, 100 pending, 200 disruption budgets; " + mix}
	results := []result.Result{{
		Name: "load a saved cluster", Value: toMillis(load.cpu), Unit: "ms",
		Setup: load.describeSetup(fmt.Sprintf("%s; %d MB, from memory to the first question", a.text, file.Len()/1e6)),
	}}
	for _, ask := range []func() (result.Result, error){a.measureWhyNode, a.measureWhyPod, a.measureSchedulerFilters, a.measurePlan} {
		measured, err := ask()
		if err != nil {
			return nil, err
		}
		results = append(results, measured)
	}
	return results, nil
}

// loadedCluster is a cluster as the commands load it, with the objects that it was loaded from. The benchmark
// verifies each answer with these objects.
type loadedCluster struct {
	cluster *planner.Cluster
	objects *saved.Objects
	text    string
}

var planOptions = planner.PlanOptions{MaxRemovals: -1, Policy: planner.LeastDisruption}

const maxWarmMillis = 1000 // ms

func (a *loadedCluster) measureWhyNode() (result.Result, error) {
	var answers []*planner.Evacuation
	f, err := measureRuns(5, func() error {
		answers = answers[:0]
		for i := range 20 {
			answer, err := a.cluster.PlanEvacuation(a.objects.Nodes[i*251].Name, planOptions)
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
	s, err := a.snapshotWithPendingPods()
	if err != nil {
		return result.Result{}, err
	}
	feasible := 0
	for _, e := range answers {
		if !e.IsFeasible() {
			continue
		}
		feasible++
		if err := placementtest.CheckRemovalsExecutable(s, []planner.Evacuation{*e}); err != nil {
			return result.Result{}, fmt.Errorf("apply why %s: %w", e.Node, err)
		}
	}
	if feasible == 0 {
		return result.Result{}, fmt.Errorf("none of %d nodes can be removed", len(answers))
	}
	setup := f.describeSetup(fmt.Sprintf("%s; mean of 20 nodes, %d of them removable, verified", a.text, feasible))
	return newMaxResult("why NODE, cache warm", toMillis(f.cpu)/20, "ms", maxWarmMillis, setup), nil
}

func (a *loadedCluster) measureWhyPod() (result.Result, error) {
	p := a.objects.Pods[len(a.objects.Pods)-1]
	key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
	var answer *planner.PendingPod
	f, err := measureRuns(9, func() (err error) {
		answer, err = a.cluster.JudgePendingPod(key)
		return err
	})
	if err != nil {
		return result.Result{}, err
	}
	s, err := a.objects.BuildSnapshot()
	if err != nil {
		return result.Result{}, err
	}
	for _, n := range a.objects.Nodes {
		verdict, err := s.JudgeRecreatedPod(key, n.Name)
		if err != nil {
			return result.Result{}, err
		}
		if (verdict.Outcome == placement.Fits) != slices.Contains(answer.FittingNodes, n.Name) {
			return result.Result{}, fmt.Errorf("pod %s on %s: %s, which is missing in the answer", key, n.Name, verdict)
		}
	}
	setup := f.describeSetup(fmt.Sprintf("%s; a pending pod that fits on %d nodes, each verdict verified", a.text, len(answer.FittingNodes)))
	return newMaxResult("why POD, cache warm", toMillis(f.cpu), "ms", maxWarmMillis, setup), nil
}

// measureSchedulerFilters measures the Filter plugins of kube-scheduler on the pod and nodes of measureWhyPod. It checks
// that they find the same nodes.
func (a *loadedCluster) measureSchedulerFilters() (result.Result, error) {
	ctx := context.Background()
	scheduler, err := oracle.NewScheduler(ctx)
	if err != nil {
		return result.Result{}, err
	}
	if err := scheduler.LoadCluster(&placementtest.Cluster{Objects: *a.objects}); err != nil {
		return result.Result{}, err
	}
	p := a.objects.Pods[len(a.objects.Pods)-1]
	var rulings map[string]oracle.Ruling
	f, err := measureRuns(9, func() (err error) {
		rulings, err = scheduler.JudgePod(ctx, p, a.objects.Nodes)
		return err
	})
	if err != nil {
		return result.Result{}, err
	}
	answer, err := a.cluster.JudgePendingPod(placement.PodKey{Namespace: p.Namespace, Name: p.Name})
	if err != nil {
		return result.Result{}, err
	}
	for node, ruling := range rulings {
		if ruling.Fits != slices.Contains(answer.FittingNodes, node) {
			return result.Result{}, fmt.Errorf("pod %s on %s: kube-scheduler's filters say %t, slipway why says %t", p.Name, node, ruling.Fits, !ruling.Fits)
		}
	}
	return result.Result{
		Name: "peer: kube-scheduler's filters, same pod and nodes", Value: toMillis(f.cpu), Unit: "ms",
		Setup: f.describeSetup(a.text + "; PreFilter once, Filter for each node in this process, same verdicts"),
	}, nil
}

func (a *loadedCluster) measurePlan() (result.Result, error) {
	var answer *planner.Plan
	f, err := measureRuns(5, func() (err error) {
		answer, err = a.cluster.PlanLaunchesAndRemovals(planOptions)
		return err
	})
	if err != nil {
		return result.Result{}, err
	}
	if len(answer.Remove.Victims) == 0 || answer.Launch == nil {
		return result.Result{}, fmt.Errorf("a plan with %d victims, pending pods placed: %t", len(answer.Remove.Victims), answer.Launch != nil)
	}
	s, err := a.snapshotWithPendingPods()
	if err != nil {
		return result.Result{}, err
	}
	if err := placementtest.CheckRemovalsExecutable(s, answer.Remove.Victims); err != nil {
		return result.Result{}, fmt.Errorf("apply the plan: %w", err)
	}
	setup := f.describeSetup(fmt.Sprintf("%s; all removable nodes, %d found and verified together with the pending pods", a.text,
		len(answer.Remove.Victims)))
	return newMaxResult("plan, cache warm", toMillis(f.cpu), "ms", maxWarmMillis, setup), nil
}

// snapshotWithPendingPods returns a new snapshot of the cluster. In this snapshot, each pending pod is on the node
// that a packing assigns to the pod.
func (a *loadedCluster) snapshotWithPendingPods() (*snapshot.Snapshot, error) {
	s, err := a.objects.BuildSnapshot()
	if err != nil {
		return nil, err
	}
	packing, err := planner.PackPods(s, nil, planner.DeriveTemplates(s, a.objects), planner.LeastWaste)
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
