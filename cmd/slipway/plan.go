package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

type planFlags struct {
	cluster clusterFlags
	rules   ruleFlags
	output  outputFlag
	most    int
}

func planCommand() *cobra.Command {
	f := planFlags{cluster: clusterFlags{kube: newKubeFlags("plan")}}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say which nodes could be removed together, what would be launched, and why",
		Long: `Plan reads the cluster once and changes nothing. It prints the nodes that can be removed together, in the order in
which to remove them, and for each of the others the rule that decided; when pods are pending, also the machines, like
those that are there, that would take them. Every answer is the one that kube-scheduler's own filters give.`,
		Example: `  slipway plan
  slipway plan --max 3 -o wide
  slipway plan --snapshot cluster.json -o json`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().IntVar(&f.most, "max", -1, "how many nodes are to go at most; negative is as many as can")
	f.rules.add(cmd.Flags())
	f.output.add(cmd.Flags())
	f.cluster.add(cmd.Flags())
	return cmd
}

func (f *planFlags) run(cmd *cobra.Command, _ []string) error {
	if err := f.output.check(); err != nil {
		return err
	}
	policy, err := f.rules.parse()
	if err != nil {
		return err
	}
	o, err := f.cluster.read(cmd.Context())
	if err != nil {
		return err
	}
	answer, err := planner.NewPlan(o, planner.PlanOptions{Max: f.most, Policy: policy, Rules: f.rules.options(o)})
	if err != nil {
		return fmt.Errorf("no plan: %w", err)
	}
	return f.output.print(cmd.OutOrStdout(), answer, func(w io.Writer, wide bool) error {
		return explain.Plan(w, answer, wide)
	})
}
