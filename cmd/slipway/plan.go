package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

type planFlags struct {
	cluster  clusterFlags
	rules    ruleFlags
	output   outputFlag
	maxNodes int
}

func newPlanCommand() *cobra.Command {
	f := planFlags{cluster: clusterFlags{kube: newKubeFlags("plan")}}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show which nodes could be removed together and what would be launched",
		Long: `Plan reads the cluster once and changes nothing. It prints the nodes that can be removed together, in the order of
removal, and for each other node the rule that prevents its removal. For pending pods it prints which additional
instances of the existing kinds would fit them. All answers use kube-scheduler's filters.`,
		Example: `  slipway plan
  slipway plan --max 3 -o wide
  slipway plan --snapshot cluster.json -o json`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().IntVar(&f.maxNodes, "max", -1, "maximum number of nodes to remove; negative means no limit")
	f.rules.addFlags(cmd.Flags())
	f.rules.addSurgeFlags(cmd.Flags())
	f.output.addFlag(cmd.Flags())
	f.cluster.addFlags(cmd.Flags())
	return cmd
}

func (f *planFlags) run(cmd *cobra.Command, _ []string) error {
	if err := f.output.validate(); err != nil {
		return err
	}
	policy, err := f.rules.parsePolicy()
	if err != nil {
		return err
	}
	if err := f.rules.surge.validateForCluster(f.cluster); err != nil {
		return err
	}
	o, err := f.cluster.readCluster(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := planner.PlanFromObjects(o, planner.PlanOptions{MaxRemovals: f.maxNodes, Policy: policy, Rules: f.rules.plannerOptions(o)})
	if err != nil {
		return fmt.Errorf("no plan: %w", err)
	}
	victims := make([]string, len(answer.Remove.Victims))
	for i := range answer.Remove.Victims {
		victims[i] = answer.Remove.Victims[i].Node
	}
	surges, err := f.rules.predictSurges(cmd.Context(), f.cluster.kube, o, victims, stopTime{}, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	return f.output.printAnswer(cmd.OutOrStdout(), planWithSurges{answer, surges}, func(w io.Writer, wide bool) error {
		return errors.Join(explain.PrintPlan(w, answer, wide), printSurges(w, surges, stopTime{}))
	}, listVictimNames(answer)...)
}

// planWithSurges is the answer about the cluster.
type planWithSurges struct {
	*planner.Plan

	Surges []podSurge `json:"surges,omitempty"`
}

// listVictimNames returns the names of the nodes to remove, in the order of removal.
func listVictimNames(p *planner.Plan) []string {
	names := make([]string, len(p.Remove.Victims))
	for i := range p.Remove.Victims {
		names[i] = formatName("Node", p.Remove.Victims[i].Node)
	}
	return names
}
