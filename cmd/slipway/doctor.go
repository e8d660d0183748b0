package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/doctor"
)

// exitProblems is the exit code if the doctor finds problems. Exit code 1 means that the check itself failed.
const exitProblems = 2

type doctorFlags struct {
	kube    kubeFlags
	output  outputFlag
	options doctor.Options
}

func newDoctorCommand() *cobra.Command {
	f := doctorFlags{kube: newKubeFlags("doctor")}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a cluster and an installation for problems and suggest fixes",
		Long: `Doctor reads the cluster once and changes nothing. Run it before or after an installation. It finds:

  - obstacles to draining nodes: PodDisruptionBudgets that never allow an eviction, pods without a controller, other
    tools that drain nodes
  - problems of Slipway's parts: permissions, CRDs, the leader, missing or disconnected agents
  - clocks that differ

Each finding says what it means and what to do; docs/doctor.md has a section for each rule.

A missing permission is a finding, and the rules that need it are listed as not checked. The ClusterRole
slipway-doctor in deploy/viewer contains all permissions.

Exit codes: 0 no problem (warnings and notes do not count); 1 the cluster could not be read; 2 at least one problem.`,
		Example: `  slipway doctor
  slipway doctor -o json | jq '.findings[] | select(.severity == "problem")'
  slipway doctor --ask-agents -o wide`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().BoolVar(&f.options.AskAgents, "ask-agents", false,
		"read the agents' metrics through the API server (get pods/proxy) and check when each last reached the metadata service")
	f.output.addFlag(cmd.Flags())
	f.kube.addFlags(cmd.Flags())
	return cmd
}

func (f *doctorFlags) run(cmd *cobra.Command, _ []string) error {
	if err := f.output.validate(); err != nil {
		return err
	}
	config, err := f.kube.restConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // the API server has priority and fairness
	facts, err := doctor.ReadFacts(cmd.Context(), config, f.options)
	if err != nil {
		return err
	}
	report := doctor.Diagnose(facts)
	if err := f.output.printAnswer(cmd.OutOrStdout(), report, func(w io.Writer, wide bool) error {
		return report.Print(w, wide)
	}, listFindingNames(report)...); err != nil {
		return err
	}
	if n := report.CountFindings(doctor.Problem); n > 0 {
		return &exitError{exitProblems, fmt.Errorf("problems: %d", n)}
	}
	return nil
}

// listFindingNames returns the names of the objects with findings, the most serious finding first, each name once.
func listFindingNames(r *doctor.Report) []string {
	var names []string
	for i := range r.Findings {
		o := r.Findings[i].Object
		if name := formatName(o.Kind, o.Name); o.Name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
