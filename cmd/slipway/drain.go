package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// The exit codes of `slipway drain`, in addition to 0 and 1.
const (
	exitRefused     = 2
	exitUnfinished  = 3
	exitInterrupted = 130
)

type drainFlags struct {
	kube kubeFlags

	selector       string
	podSelector    string
	dryRun         string
	force          bool
	ignoreDaemons  bool
	deleteEmptyDir bool
	disableEvict   bool
	gracePeriod    int64
	timeout        time.Duration
	skipTerminated int
	chunkSize      int64

	deadline     time.Duration
	keepCordoned bool
	waitDetach   bool
	output       outputFlag
	surge        surgeFlags
	// evictionRequests is config.EvictionRequestsAuto or config.EvictionRequestsNever.
	evictionRequests string
	// readForRooms reads the cluster for a preview with surges.
	readForRooms func(context.Context) (*saved.Objects, []v1alpha1.NodeGroup, error)
}

func newDrainCommand() *cobra.Command {
	f := drainFlags{kube: newKubeFlags("drain")}
	f.readForRooms = f.kube.readForRooms
	cmd := &cobra.Command{
		Use:   "drain NODE...",
		Short: "Drain nodes and report what blocks an eviction",
		Long: `Drain cordons the node and evicts its pods, with the flags of kubectl drain.

Without --deadline, PodDisruptionBudgets and protected pods are respected. If the drain fails (--timeout, interrupt,
refusal), a node that it cordoned is uncordoned again, unless an agent, a retirement or another tool needs the cordon.

On a terminal, drain shows each pod and what the pod waits for. If its output is not a terminal, or if TERM is dumb or
not set, drain prints progress lines. NO_COLOR removes colours.

Ctrl-C stops the drain, uncordons the node, and explains the state of node and pods. A second Ctrl-C exits at once with
code 1, and the node can stay cordoned.

With --deadline, the instance is assumed to stop at that time. Grace periods are capped to the time left. A pod that is
still blocked by a PodDisruptionBudget when its termination must start is deleted without eviction, and reported. The
node stays cordoned after the deadline.

With --surge, a pod gets a successor on another node before it leaves, if its owner would have no ready pod without it, or
if its PodDisruptionBudget never allows its eviction, or has denied it for a minute. Without the flag no pod gets one.
"--surge=annotated" does it only for pods with the annotation slipway.dev/surge: "true", on the pod or its owner.
"--surge=always", or only "--surge", does it for all pods without the annotation "false". Ctrl-C restores the size of the
owners.

Several nodes are all cordoned before the first eviction. They are drained one after another, or at the same time if
--deadline is set.

With -o json or yaml, drain prints the drain report of each node: one line or one document. With -o wide, it prints a row for
each pod, and with -o name only the drained nodes.

Exit codes: 0 drained; 1 error; 2 refused because of a protected pod; 3 timeout; 130 interrupted.`,
		Example: `  slipway drain node-7
  slipway drain node-7 --delete-emptydir-data --timeout 10m
  slipway drain node-7 --dry-run=server
  slipway drain node-7 --surge
  slipway drain node-7 --deadline 30s -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	f.addFlags(cmd)
	return cmd
}

func (f *drainFlags) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.selector, "selector", "l", "", "label selector of the nodes to drain, instead of names")
	fs.StringVar(&f.podSelector, "pod-selector", "", "label selector of the pods to evict")
	fs.StringVar(&f.dryRun, "dry-run", "none", `"client" prints what would be done; "server" also sends the evictions with dryRun to the API server`)
	fs.Lookup("dry-run").NoOptDefVal = "client"
	fs.BoolVar(&f.force, "force", false, "also evict pods without a controller")
	fs.BoolVar(&f.ignoreDaemons, "ignore-daemonsets", true, "ignore pods of DaemonSets; if false, refuse to drain a node with such pods")
	fs.BoolVar(&f.deleteEmptyDir, "delete-emptydir-data", false, "also evict pods with an emptyDir volume; its content is lost")
	fs.BoolVar(&f.disableEvict, "disable-eviction", false, "delete pods instead of evicting them, which bypasses all PodDisruptionBudgets")
	fs.Int64Var(&f.gracePeriod, "grace-period", -1, "termination grace period of every pod in seconds; negative uses the pod's own")
	fs.DurationVar(&f.timeout, "timeout", 0, "time limit for each node; 0 means no limit")
	fs.IntVar(&f.skipTerminated, "skip-wait-for-delete-timeout", 0, "do not wait for pods that have been terminating for longer than this many seconds; 0 waits for all")
	fs.Int64Var(&f.chunkSize, "chunk-size", 500, "accepted for compatibility with kubectl; pods are always listed in pages")

	fs.DurationVar(&f.deadline, "deadline", 0, "time until the instance stops, whether the node is drained or not")
	fs.BoolVar(&f.keepCordoned, "keep-cordoned", false, "keep the node cordoned if the drain fails")
	fs.StringVar(&f.evictionRequests, "eviction-requests", config.EvictionRequestsAuto, config.EvictionRequestsUsage)
	fs.BoolVar(&f.waitDetach, "wait-for-detach", false, "also wait until the pods' volumes are detached")
	f.output.addFlag(fs)
	f.surge.addFlags(fs, "start the successor of a pod first, if the pod is the last ready one of its owner, or if its PDB does not allow its eviction: never, annotated or always")
	_ = fs.MarkHidden("chunk-size")
	f.kube.addFlags(fs)
}

func (f *drainFlags) validate(args []string) error {
	switch {
	case len(args) == 0 && f.selector == "":
		return errors.New("no node: want one or more names, or --selector")
	case len(args) > 0 && f.selector != "":
		return fmt.Errorf("both node %q and --selector %q: want one of the two", args[0], f.selector)
	case f.dryRun != "none" && f.dryRun != "client" && f.dryRun != "server":
		return fmt.Errorf("--dry-run: %q: want none, client or server", f.dryRun)
	case f.evictionRequests != config.EvictionRequestsAuto && f.evictionRequests != config.EvictionRequestsNever:
		return fmt.Errorf("--eviction-requests: %q: want auto or never", f.evictionRequests)
	case f.deadline < 0:
		return fmt.Errorf("--deadline: %s: want more than 0", f.deadline)
	case f.timeout < 0:
		return fmt.Errorf("--timeout: %s: want 0 or more", f.timeout)
	case f.deadline > 0 && f.timeout > 0:
		return errors.New("--deadline and --timeout: want only one of the two: a deadline already limits the drain")
	case f.surge.enabled() && f.disableEvict:
		return errors.New("--surge and --disable-eviction: want only one of the two: pods that are deleted at once get no successor first")
	}
	if err := errors.Join(f.output.validate(), f.surge.validate()); err != nil {
		return err
	}
	if _, err := labels.Parse(f.selector); err != nil {
		return fmt.Errorf("--selector: %q: %w", f.selector, err)
	}
	return nil
}

// newDrainPolicy returns the pod policy of `slipway drain` with these flags.
func newDrainPolicy(hasDeadline, force, deleteEmptyDir bool) podrules.Policy {
	policy := podrules.VoluntaryPolicy().WithAction(podrules.RuleHostPath, podrules.Evict)
	if hasDeadline {
		policy = podrules.ForcedPolicy()
	}
	if force {
		policy = policy.WithAction(podrules.RuleUnmanaged, podrules.Evict)
	}
	if deleteEmptyDir {
		policy = policy.WithAction(podrules.RuleLocalStorage, podrules.Evict)
	}
	return policy
}

// drainOptions returns the options that all node drains share. The caller adds the node name.
func (f *drainFlags) drainOptions() (drain.Options, error) {
	policy := newDrainPolicy(f.deadline > 0, f.force, f.deleteEmptyDir)
	if !f.ignoreDaemons {
		policy = policy.WithAction(podrules.RuleDaemonSet, podrules.RefuseDrain)
	}
	o := drain.Options{
		Policy: &policy, DisableEviction: f.disableEvict,
		SkipTerminatingAfter: time.Duration(f.skipTerminated) * time.Second,
	}
	if f.gracePeriod >= 0 {
		o.GraceSeconds = &f.gracePeriod
	}
	if f.podSelector != "" {
		sel, err := labels.Parse(f.podSelector)
		if err != nil {
			return o, fmt.Errorf("--pod-selector: %w", err)
		}
		o.ShouldDrainPod = func(p kubeapi.Pod) bool { return sel.Matches(labels.Set(p.Labels)) }
	}
	return o, nil
}

func (f *drainFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.validate(args); err != nil {
		return err
	}
	if f.deadline == 0 && cmd.Flags().Changed("deadline") { // a script may have computed it
		return fmt.Errorf("--deadline: %s: want more than 0, or leave it out to drain without a deadline", f.deadline)
	}
	o, err := f.drainOptions()
	if err != nil {
		return err
	}
	nodes, err := parseNodeNames(args)
	if err != nil {
		return err
	}
	api, err := f.kube.newAPIClient()
	if err != nil {
		return err
	}
	if f.surge.enabled() {
		surger, err := f.surge.newSurger(api, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		o.Surger = surger
		if f.dryRun == "none" {
			core, err := f.kube.newClientset()
			if err != nil {
				return err
			}
			if err := f.surge.checkRecords(cmd.Context(), core); err != nil {
				return withInterruptCode(cmd.Context(), err)
			}
			defer startRestoring(cmd.Context(), surger)()
		}
	}
	return f.drainNodes(cmd.Context(), api, nodes, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// drainNodes drains the nodes in the arguments, or the nodes that the selector matches.
func (f *drainFlags) drainNodes(
	ctx context.Context, api *kubeapi.Client, nodes []string, o drain.Options, out, stderr io.Writer,
) error {
	var err error
	if f.selector != "" {
		if nodes, err = listNodeNames(ctx, api, f.selector); err != nil {
			return withInterruptCode(ctx, err)
		}
	}
	if f.waitDetach {
		o.Volumes = api
	}
	if f.evictionRequests == config.EvictionRequestsAuto {
		o.EvictionRequests = api
	}
	o.TimeLimits = newTimeLimits(f.deadline) // the timeout of each node starts separately
	rooms := &successorRooms{read: f.readForRooms}
	var drains []*nodeDrain
	for i, node := range nodes {
		if slices.Contains(nodes[:i], node) {
			continue // given twice
		}
		o.Node = node
		drains = append(drains, &nodeDrain{flags: f, api: api, options: o, out: out, errOut: stderr, concurrentDrains: 1, rooms: rooms})
		rooms.drained = append(rooms.drained, node)
	}
	if f.selector == "" {
		if err := checkNodesExist(ctx, drains); err != nil {
			return withInterruptCode(ctx, err)
		}
	}
	if f.dryRun != "none" {
		return withInterruptCode(ctx, joinWithHighestExitCode(runSequentially(drains, func(d *nodeDrain) error { return d.previewDrain(ctx) })))
	}
	cordonNodes(ctx, drains, f.deadline/4)
	var errs []error
	if f.deadline > 0 && len(drains) > 1 {
		errs = drainConcurrently(ctx, drains, out, stderr)
	} else {
		errs = runSequentially(drains, func(d *nodeDrain) error { return d.drainCordonedNode(ctx) })
	}
	if ctx.Err() != nil && len(drains) > 1 {
		printCordonedNodes(stderr, drains)
	}
	return joinWithHighestExitCode(errs)
}

// withInterruptCode returns err with the exit code of an interrupt if ctx has ended. Otherwise it returns err
// unchanged.
func withInterruptCode(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return &exitError{exitInterrupted, err}
	}
	return err
}

func listNodeNames(ctx context.Context, api *kubeapi.Client, selector string) ([]string, error) {
	nodes, err := api.ListNodes(ctx, selector)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("--selector: %q: no node has these labels", selector)
	}
	names := make([]string, len(nodes))
	for i := range nodes {
		names[i] = nodes[i].Name
	}
	return names, nil
}

// joinWithHighestExitCode joins errors. The exit code of the result is the highest exit code of the errors.
func joinWithHighestExitCode(errs []error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	code := 0
	for _, e := range errs {
		code = max(code, toExitCode(e))
	}
	return &exitError{code, err}
}

// nodeDrain holds the state of a user's drain of one node.
type nodeDrain struct {
	flags   *drainFlags
	api     *kubeapi.Client
	options drain.Options
	out     io.Writer
	errOut  io.Writer

	// uid is the UID of the node at its first read. cordonedNode is the node before this drain cordoned it, or nil if it did not.
	// cordonError is the error of the cordon.
	uid          string
	cordonedNode *kubeapi.Node
	cordonError  error
	// cordonUnanswered is true while it is unknown whether the cordoning patch took effect.
	cordonUnanswered bool
	fieldManagerName string
	// left is the state of the node after this drain.
	left cordonState
	// concurrentDrains is the number of nodes that are drained at the same time. view is their common view, or nil.
	concurrentDrains int
	view             *drainView
	// rooms says where the successors of all drained nodes could run. Only a preview uses it.
	rooms *successorRooms
}

// drainCordonedNode drains a node that cordonNodes has cordoned.
func (d *nodeDrain) drainCordonedNode(ctx context.Context) error {
	switch {
	case d.cordonError == nil:
	case d.flags.deadline > 0 && ctx.Err() == nil && isUnanswered(d.cordonError) && !cordon.IsReplacedError(d.cordonError):
		fmt.Fprintf(d.errOut, "%s: cannot cordon the node; draining it anyway because of the deadline: %v\n", d.options.Node, d.cordonError)
	default:
		d.restoreAndExplain(ctx, drain.Report{}, func() {})
		return withInterruptCode(ctx, d.cordonError)
	}
	if d.flags.deadline == 0 { // with a deadline all nodes start at the same time
		if err := d.ensureCordoned(ctx); err != nil && ctx.Err() == nil {
			var result string
			d.left, result = d.restoreNode(ctx)
			d.printResult(result)
			return err
		}
	}
	d.startTimeout()
	progress := d.startProgress()
	d.options.OnProgress = func(p drain.Progress) {
		progress.show(p)
		if ctx.Err() != nil && p.Surging > 0 { // the last call before Run waits for them
			fmt.Fprintf(d.errOut, "%s: interrupted: restoring the size of %s; a second Ctrl-C exits at once and leaves that to other processes of Slipway\n",
				d.options.Node, observe.FormatCount(p.Surging, "owner"))
		}
	}
	report, err := drain.Run(ctx, d.api, d.options)
	printReport := func() {
		progress.finish(report.Outcome)
		d.printReport(report)
	}
	if err != nil && report.Outcome != drain.DeadlinePassed {
		d.restoreAndExplain(ctx, report, printReport)
	} else { // at the deadline the instance stops, so the node stays cordoned
		printReport()
		d.left.status = cordoned
		if d.cordonError != nil {
			d.left.status = cordonUnknown
		}
	}
	if err == nil && d.cordonError != nil {
		return fmt.Errorf("node %s: drained, but not cordoned: %v", d.options.Node, d.cordonError)
	}
	return toExitError(report, err)
}

// startTimeout starts the time of --timeout.
func (d *nodeDrain) startTimeout() {
	if d.flags.timeout > 0 {
		d.options.TimeLimits.TimeoutAt = time.Now().Add(d.flags.timeout)
	}
}

// restoreAndExplain restores the node after a failed drain, while printReport prints its report. So an output that blocks
// does not delay the restore. If the user interrupted the drain, it also explains the state.
func (d *nodeDrain) restoreAndExplain(ctx context.Context, r drain.Report, printReport func()) {
	interrupted := ctx.Err() != nil
	uncordons := d.cordonedNode != nil && !d.flags.keepCordoned
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		printReport()
		if interrupted && uncordons {
			fmt.Fprintf(d.errOut, "%s: interrupted: uncordoning the node; a second Ctrl-C exits at once and can leave it cordoned\n", d.options.Node)
		}
	}()
	state, result := d.restoreNode(ctx)
	<-printed
	d.left = state
	d.printResult(result)
	if interrupted {
		d.explainInterrupt(r, state)
	}
}

// printResult prints a line about the node, if there is one.
func (d *nodeDrain) printResult(line string) {
	if line != "" {
		fmt.Fprintf(d.errOut, "%s: %s\n", d.options.Node, line)
	}
}

func toExitError(r drain.Report, err error) error {
	var refused *drain.RefusedError
	var unfinished *drain.UnfinishedError
	switch {
	case err == nil:
		return nil
	case r.Outcome == drain.Cancelled:
		return &exitError{exitInterrupted, err}
	case errors.As(err, &refused):
		return &exitError{exitRefused, refused}
	case errors.As(err, &unfinished):
		return &exitError{exitUnfinished, unfinished}
	}
	return err
}
