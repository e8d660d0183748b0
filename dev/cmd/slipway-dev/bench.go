package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/dev/bench/agent"
	"github.com/slipway-dev/slipway/dev/bench/autoscale"
	"github.com/slipway-dev/slipway/dev/bench/cloudpool"
	"github.com/slipway-dev/slipway/dev/bench/peers"
	"github.com/slipway-dev/slipway/dev/bench/queue"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/bench/retirement"
	"github.com/slipway-dev/slipway/dev/bench/storm"
	"github.com/slipway-dev/slipway/dev/bench/surge"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// benchOptions holds the flags that all benchmark groups have.
type benchOptions struct {
	kubernetes     string
	seed           uint64
	idleTime       time.Duration
	profile        string
	onlyPart       string
	nodes          []int
	pods           int
	peer, peerArgs string
	rounds         int
	quietTime      time.Duration
	progress       io.Writer
}

// benchGroup is a set of benchmarks that run together.
type benchGroup struct {
	name, about string
	run         func(context.Context, benchOptions) ([]result.Result, error)
}

var benchGroups = []benchGroup{
	{"agent", "the agent on a real control plane: speed, memory, and API requests", benchAgent},
	{"peers", "the agent, slipway drain, kubectl drain and another handler on equal nodes: speed and memory", benchPeers},
	{"surge", "50 pods that must not be missing: time without ready endpoints, drain time, memory of the agent", benchSurge},
	{"agent-storm", "200 agents, 50 of them with a simultaneous notice", benchStorm},
	{"cloudpool", "shrinking a pool: decision time, API requests, and added latency of reads", benchCloudpool},
	{"autoscale", "scale-up for unschedulable pods: number of instances, decision time, and time to the launch", benchAutoscale},
	{"autoscale-nova", "time to the launch with a real OpenStack", benchAutoscaleNova},
	{"retirement", "100 of 500 nodes retired, 20 at a time: time compared with the minimum, and requests", benchRetirement},
	{"manager", "a manager with 5,000 nodes and 150,000 pods in its caches: memory, and CPU when idle", benchManager},
	{"queue", "10,000 messages of AWS with duplicates, faults and kills: nodes lost, and nodes drained twice", benchQueue},
	{"placement", "which nodes can be removed and which instances the pending pods need: time and memory, on one core", benchPlacement},
}

// benchPlacement runs the program dev/bench/placement, which prints its results.
func benchPlacement(ctx context.Context, o benchOptions) ([]result.Result, error) {
	root, err := testbed.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	args := slices.Concat([]string{"run"}, controlplane.BuildFlags, []string{"./bench/placement"})
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // constants
	cmd.Dir, cmd.Stderr = filepath.Join(root, "dev"), o.progress
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	printed, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var results []result.Result
	return results, json.Unmarshal(printed, &results)
}

func benchQueue(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return queue.RunBenchmarks(ctx, o.progress)
}

func benchAutoscale(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return autoscale.RunBenchmarks(ctx, autoscale.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchAutoscaleNova(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return autoscale.RunNovaBenchmark(ctx, autoscale.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchAgent(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return agent.RunBenchmarks(ctx, agent.Options{Kubernetes: o.kubernetes, IdleTime: o.idleTime, Only: o.onlyPart, Seed: o.seed, Progress: o.progress})
}

func benchStorm(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return storm.RunBenchmarks(ctx, storm.Options{Kubernetes: o.kubernetes, Progress: o.progress, Profile: o.profile, Only: o.onlyPart, Sizes: o.nodes})
}

func benchPeers(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return peers.RunBenchmarks(ctx, peers.Options{
		Kubernetes: o.kubernetes, Seed: o.seed, Peer: o.peer, PeerArgs: o.peerArgs, Rounds: o.rounds, Progress: o.progress,
	})
}

func benchSurge(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return surge.RunBenchmarks(ctx, surge.Options{Kubernetes: o.kubernetes, Only: o.onlyPart, Pods: o.pods, Progress: o.progress})
}

func benchRetirement(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return retirement.RunBenchmarks(ctx, retirement.Options{Kubernetes: o.kubernetes, Progress: o.progress})
}

func benchManager(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return retirement.MeasureIdleManager(ctx, retirement.IdleOptions{
		Options: retirement.Options{Kubernetes: o.kubernetes, Progress: o.progress}, Nodes: o.nodes, Pods: o.pods, QuietTime: o.quietTime,
	})
}

func benchCloudpool(ctx context.Context, o benchOptions) ([]result.Result, error) {
	return cloudpool.RunBenchmarks(ctx, cloudpool.Options{Kubernetes: o.kubernetes, Profile: o.profile, Progress: o.progress})
}

func newBenchCommand() *cobra.Command {
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
			"It fails if a result misses its target.\n\nGroups:\n" + strings.Join(abouts, "\n"),
		ValidArgs: names,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.progress = cmd.ErrOrStderr()
			if err := checkGroupFlags(cmd, args); err != nil {
				return err
			}
			root, err := testbed.RepositoryRoot()
			if err != nil {
				return err
			}
			var errs []error
			for _, g := range benchGroups {
				if len(args) == 0 || args[0] == g.name {
					errs = append(errs, g.runAndReport(cmd.Context(), o, filepath.Join(root, "dev", "bench", "results"), cmd.OutOrStdout()))
				}
			}
			return errors.Join(errs...)
		},
	}
	addVersionFlag(cmd, &o.kubernetes)
	cmd.Flags().Uint64Var(&o.seed, "seed", 1, "random seed")
	cmd.Flags().DurationVar(&o.idleTime, "idle", agent.IdleWindow, "measuring time of the idle agent; use less only for experiments")
	cmd.Flags().StringVar(&o.onlyPart, "only", "", "measure only a part: agents or floor of agent-storm, or the measurements of agent or surge with this text in their names")
	cmd.Flags().IntSliceVar(&o.nodes, "nodes", nil, "numbers of nodes, each of which is measured. agent-storm: machines with a notice, multiples of 10 "+
		"(default 50). manager: nodes in the caches (default 5000)")
	cmd.Flags().IntVar(&o.pods, "pods", 0, "manager: number of pods (default 30 for each node, at most 150000). surge: Deployments on the node (default 50)")
	cmd.Flags().DurationVar(&o.quietTime, "quiet", 0, "manager: measuring time; use less than 3m only for experiments")
	cmd.Flags().StringVar(&o.peer, "peer", "", "peers: program of another handler of Azure's Scheduled Events or EC2's notices, such as "+
		"aks-node-termination-handler or aws-node-termination-handler")
	cmd.Flags().StringVar(&o.peerArgs, "peer-args", "", "peers: its arguments, separated by spaces, with {node}, {resource}, {kubeconfig}, {endpoint} and "+
		"{listen}; {metadata} instead of {endpoint} means EC2 (default: the flags of aks-node-termination-handler, or of "+
		"aws-node-termination-handler if the program has this name)")
	cmd.Flags().IntVar(&o.rounds, "rounds", 0, "peers: how often each program drains a node (default 3)")
	cmd.Flags().StringVar(&o.profile, "profile", "", "directory for profiles and audit logs of the API server, if the group writes them "+
		"(agent-storm, cloudpool); this slows the measurement down")
	return cmd
}

// groupFlags lists the groups that a flag applies to.
var groupFlags = map[string][]string{
	"only": {"agent", "agent-storm", "surge"}, "nodes": {"agent-storm", "manager"}, "pods": {"manager", "surge"}, "quiet": {"manager"}, "peer": {"peers"},
	"peer-args": {"peers"}, "rounds": {"peers"},
}

// checkGroupFlags returns an error if a flag was given that does not apply to the group in args.
func checkGroupFlags(cmd *cobra.Command, args []string) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if groups := groupFlags[f.Name]; groups != nil && (len(args) == 0 || !slices.Contains(groups, args[0])) {
			err = errors.Join(err, fmt.Errorf("%s is %q: requires the group %s", f.Name, f.Value, strings.Join(groups, " or ")))
		}
	})
	return err
}

// newCacheCommand returns the command that the manager benchmark starts as a separate process.
func newCacheCommand() *cobra.Command {
	var listen, kubeconfig string
	cmd := &cobra.Command{
		Use: "cache", Short: "Cache all pods and nodes; slipway manager is compared with this", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return retirement.RunCache(cmd.Context(), listen, kubeconfig)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "loopback address and port")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "credentials")
	return cmd
}

// newForwardCommand returns the command that runs the bare proxy for the cloudpool benchmarks. The benchmarks start
// it as a separate process.
func newForwardCommand() *cobra.Command {
	var listen, to string
	cmd := &cobra.Command{
		Use: "forward", Short: "Forward requests; slipway cloudpool is compared with this proxy", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cloudpool.RunForwardProxy(cmd.Context(), listen, to)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "loopback address and port")
	cmd.Flags().StringVar(&to, "to", "", "URL of the server")
	return cmd
}

// runAndReport runs a benchmark group, prints the results and writes them to dir. If a result misses its target, it
// returns an error.
func (g benchGroup) runAndReport(ctx context.Context, o benchOptions, dir string, out io.Writer) error {
	results, err := g.run(ctx, o)
	if err != nil {
		return fmt.Errorf("bench %s: %w", g.name, err)
	}
	if err := result.PrintTable(out, g.name, results); err != nil {
		return err
	}
	if err := result.WriteJSON(dir, g.name, results); err != nil {
		return err
	}
	if missed := result.MissedTargets(results); len(missed) > 0 {
		return fmt.Errorf("bench %s: missed targets: %s", g.name, strings.Join(missed, "; "))
	}
	return nil
}
