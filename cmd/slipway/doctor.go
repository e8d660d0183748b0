package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/doctor"
)

// exitProblems is the exit code of a doctor that has found problems. Others, 1 among them, are for not having looked.
const exitProblems = 2

type doctorFlags struct {
	kube    kubeFlags
	output  outputFlag
	options doctor.Options
}

func doctorCommand() *cobra.Command {
	f := doctorFlags{kube: newKubeFlags("doctor")}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look a cluster and an installation over, and say what is wrong and what to do",
		Long: `Doctor reads the cluster once and changes nothing, before an installation or after. It finds what will be in the way
when a node has to leave (disruption budgets that never allow an eviction, pods without a controller, other tools that do
the same), what is wrong with Slipway's parts (rights, definitions, the leader, agents that are missing or cut off), and
clocks that differ. Each finding says what it means and what to do; docs/doctor.md has a section for each rule.

A right that is missing is a finding, and the rules that need it are listed as not checked. The ClusterRole
slipway-doctor of deploy/viewer has them all.

The exit code is 0 when there is no problem (warnings and notes are none), 2 when there is one, and 1 when the cluster
could not be looked at.`,
		Example: `  slipway doctor
  slipway doctor -o json | jq '.findings[] | select(.severity == "problem")'
  slipway doctor --ask-agents -o wide`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().BoolVar(&f.options.AskAgents, "ask-agents", false,
		"read the agents' metrics through the API server (get pods/proxy), to know when each last reached the metadata service")
	f.output.add(cmd.Flags())
	f.kube.add(cmd.Flags())
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command, _ []string) error {
	if err := f.output.check(); err != nil {
		return err
	}
	config, err := f.kube.config()
	if err != nil {
		return err
	}
	config.QPS = -1 // as for plan: priority and fairness is there for that
	facts, err := doctor.Read(cmd.Context(), config, f.options)
	if err != nil {
		return err
	}
	report := doctor.Diagnose(facts)
	if err := f.output.print(cmd.OutOrStdout(), report, func(w io.Writer, wide bool) error {
		return report.Print(w, wide)
	}); err != nil {
		return err
	}
	if n := report.Count(doctor.Problem); n > 0 {
		return &exitError{exitProblems, fmt.Errorf("%d problems", n)}
	}
	return nil
}
