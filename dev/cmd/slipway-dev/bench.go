package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/bench/agent"
	"github.com/slipway-dev/slipway/dev/bench/autoscale"
	"github.com/slipway-dev/slipway/dev/bench/cloudpool"
	"github.com/slipway-dev/slipway/dev/bench/placement"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/bench/retirement"
	"github.com/slipway-dev/slipway/dev/bench/storm"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// benchOptions is what the groups can be told.
type benchOptions struct {
	kubernetes string
	seed       uint64
	idle       time.Duration
	profile    string
	only       string
	doomed     int
	progress   io.Writer
}

// benchGroup is a set of measures that are taken together.
type benchGroup struct {
	name, about string
	run         func(context.Context, benchOptions) ([]result.Result, error)
}

var benchGroups = []benchGroup{
	{"agent", "the agent on a real control plane: its speed, its size, and what it asks of the API server", benchAgent},
	{"agent-storm", "200 agents, of which 100 are told at once that their machine goes", benchStorm},
	{"cloudpool", "a smaller pool: the decision, what it costs the API server, and what is added to reads meanwhile", benchCloudpool},
	{"autoscale", "machines for pods without room: how many are ordered, how fast that is decided, and how soon they are asked for", benchAutoscale},
	{"autoscale-nova", "the last of these at a real OpenStack", benchAutoscaleNova},
	{"retirement", "100 of 500 nodes taken out of service, 20 at a time: the time against what is forced, and the requests", benchRetirement},
	{"manager", "a manager with 5,000 nodes and 150,000 pods in its caches: memory, and CPU when nothing happens", benchManager},
	{"placement", "which nodes can go and what machines the pending pods need: speed and memory, on one core", benchPlacement},
}

func benchPlacement(ctx context.Context, _ benchOptions) ([]result.Result, error) {
	return placement.Run(ctx)
}

func benchAutoscale(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return autoscale.Run(ctx, autoscale.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchAutoscaleNova(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return autoscale.RunNova(ctx, autoscale.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchAgent(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return agent.Run(ctx, agent.Options{Kubernetes: o.kubernetes, Idle: o.idle, Only: o.only, Seed: o.seed, Progress: o.progress})
}

func benchStorm(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return storm.Run(ctx, storm.Options{Kubernetes: o.kubernetes, Progress: o.progress, Profile: o.profile, Only: o.only, Doomed: o.doomed})
}

func benchRetirement(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return retirement.Run(ctx, retirement.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchManager(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return retirement.Hold(ctx, retirement.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchCloudpool(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return cloudpool.Run(ctx, cloudpool.Options{Kubernetes: o.kubernetes, Profile: o.profile, Progress: o.progress})
}

func benchCommand() *cobra.Command {
	o := benchOptions{}
	var names, abouts []string
	for _, g := range benchGroups {
		names = append(names, g.name)
		abouts = append(abouts, fmt.Sprintf("  %-14s %s", g.name, g.about))
	}
	cmd := &cobra.Command{
		Use:   "bench [GROUP]",
		Short: "Measure, print a table, and write dev/bench/results/GROUP.json",
		Long: "Measure, print a table, and write dev/bench/results/GROUP.json; without GROUP, all groups.\n" +
			"It fails when a figure does not reach what it has to.\n\nGroups:\n" + strings.Join(abouts, "\n"),
		ValidArgs: names,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.progress = cmd.ErrOrStderr()
			if parts := []string{"agent", "agent-storm"}; o.only != "" && (len(args) == 0 || !slices.Contains(parts, args[0])) {
				return fmt.Errorf("only: %q: want a group that has parts, which are %s", o.only, strings.Join(parts, " and "))
			}
			root, err := testbed.Root()
			if err != nil {
				return err
			}
			var errs []error
			for _, g := range benchGroups {
				if len(args) == 0 || args[0] == g.name {
					errs = append(errs, g.measure(cmd.Context(), o, filepath.Join(root, "dev", "bench", "results"), cmd.OutOrStdout()))
				}
			}
			return errors.Join(errs...)
		},
	}
	versionFlag(cmd, &o.kubernetes)
	cmd.Flags().Uint64Var(&o.seed, "seed", 1, "of what is random in the measures")
	cmd.Flags().DurationVar(&o.idle, "idle", agent.IdleWindow, "for how long the idle agent is watched; less is for trying out")
	cmd.Flags().StringVar(&o.only, "only", "", "measure a part alone: of agent-storm agents or floor, of agent those measures that have this in their names")
	cmd.Flags().IntVar(&o.doomed, "doomed", 0, "of agent-storm: how many machines go, a multiple of 10 (default 100)")
	cmd.Flags().StringVar(&o.profile, "profile", "", "directory for profiles and audit logs of the API server, where a group keeps them "+
		"(agent-storm, cloudpool); it then is slower")
	return cmd
}

// forwardCommand is a process of the cloudpool group.
func forwardCommand() *cobra.Command {
	var listen, to string
	cmd := &cobra.Command{
		Use: "forward", Short: "Forward requests, as the proxy that slipway cloudpool is measured against", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cloudpool.Forward(cmd.Context(), listen, to) },
	}
	cmd.Flags().StringVar(&listen, "listen", "", "loopback address and port")
	cmd.Flags().StringVar(&to, "to", "", "URL of the server")
	return cmd
}

// measure runs a group, prints and writes its results, and fails when one of them does not reach what it has to.
func (g benchGroup) measure(ctx context.Context, o benchOptions, dir string, out io.Writer) error {
	results, err := g.run(ctx, o)
	if err != nil {
		return fmt.Errorf("bench %s: %w", g.name, err)
	}
	if err := result.Print(out, g.name, results); err != nil {
		return err
	}
	if err := result.Write(dir, g.name, results); err != nil {
		return err
	}
	if missed := result.Missed(results); len(missed) > 0 {
		return fmt.Errorf("bench %s: not reached: %s", g.name, strings.Join(missed, "; "))
	}
	return nil
}
