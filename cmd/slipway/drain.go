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

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Exit codes of `slipway drain`, beside 0 and 1.
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
	output       string
}

func drainCommand() *cobra.Command {
	f := drainFlags{kube: newKubeFlags("drain")}
	cmd := &cobra.Command{
		Use:   "drain NODE...",
		Short: "Move the pods off a node, and say exactly what blocks",
		Long: `Drain cordons the node and evicts its pods, with the flags of kubectl drain.

Without --deadline the node stays if its pods cannot leave: disruption budgets and protections are respected, and when
it gives up (--timeout, interrupt, refusal) a node that it cordoned is uncordoned again, unless an agent, a retirement
or another tool needs it cordoned by then. With --deadline the machine is taken to go at that time whatever is on it:
pods get no more time to stop than is left, and one that still waits for a disruption budget when its time to stop must
begin is deleted past it, and named. The node stays cordoned when the deadline has passed.

Of several nodes all are cordoned before the first pod is asked to go. They are drained one after another, and those
that have a deadline side by side.

Exit codes: 0 drained; 1 error; 2 refused, since policy keeps a pod; 3 time was over; 130 interrupted.`,
		Example: `  slipway drain node-7
  slipway drain node-7 --delete-emptydir-data --timeout 10m
  slipway drain node-7 --dry-run=server
  slipway drain node-7 --deadline 30s -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	f.add(cmd)
	return cmd
}

func (f *drainFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.selector, "selector", "l", "", "drain the nodes with these labels instead of naming them")
	fs.StringVar(&f.podSelector, "pod-selector", "", "drain only the pods with these labels")
	fs.StringVar(&f.dryRun, "dry-run", "none", `"client" says what would be done; "server" also asks the API server which evictions it would deny`)
	fs.Lookup("dry-run").NoOptDefVal = "client"
	fs.BoolVar(&f.force, "force", false, "also evict pods that no controller would replace")
	fs.BoolVar(&f.ignoreDaemons, "ignore-daemonsets", true, "leave the pods of DaemonSets; false refuses when there are any")
	fs.BoolVar(&f.deleteEmptyDir, "delete-emptydir-data", false, "also evict pods with an emptyDir, whose content is lost")
	fs.BoolVar(&f.disableEvict, "disable-eviction", false, "delete instead of evicting, past all disruption budgets")
	fs.Int64Var(&f.gracePeriod, "grace-period", -1, "seconds every pod gets to stop; negative is its own")
	fs.DurationVar(&f.timeout, "timeout", 0, "give up on a node after this time; 0 is never")
	fs.IntVar(&f.skipTerminated, "skip-wait-for-delete-timeout", 0, "do not wait for pods that have been terminating for more seconds than this; 0 waits for all")
	fs.Int64Var(&f.chunkSize, "chunk-size", 500, "accepted as kubectl has it; pods are always listed in pages")

	fs.DurationVar(&f.deadline, "deadline", 0, "the machine goes after this time, whatever is on it")
	fs.BoolVar(&f.keepCordoned, "keep-cordoned", false, "leave the node cordoned when giving up")
	fs.BoolVar(&f.waitDetach, "wait-for-detach", false, "also wait until the pods' volumes are detached")
	fs.StringVarP(&f.output, "output", "o", "", `"json" prints the receipt`)
	_ = fs.MarkHidden("chunk-size")
	f.kube.add(fs)
}

func (f *drainFlags) check(args []string) error {
	switch {
	case len(args) == 0 && f.selector == "":
		return errors.New("no node: name one or more, or give --selector")
	case len(args) > 0 && f.selector != "":
		return fmt.Errorf("both node %q and --selector %q: want one of the two", args[0], f.selector)
	case f.dryRun != "none" && f.dryRun != "client" && f.dryRun != "server":
		return fmt.Errorf("--dry-run: %q: want none, client or server", f.dryRun)
	case f.output != "" && f.output != "json":
		return fmt.Errorf("--output: %q: want json or nothing", f.output)
	case f.deadline < 0:
		return fmt.Errorf("--deadline: %s: want 0 or more", f.deadline)
	case f.timeout < 0:
		return fmt.Errorf("--timeout: %s: want 0 or more", f.timeout)
	case f.deadline > 0 && f.timeout > 0:
		return errors.New("--deadline and --timeout: want one: a deadline ends the drain by itself")
	}
	if _, err := labels.Parse(f.selector); err != nil {
		return fmt.Errorf("--selector: %q: %w", f.selector, err)
	}
	return nil
}

// options are those of one node's drain, but for its name.
func (f *drainFlags) options() (drain.Options, error) {
	policy := podrules.Voluntary().With(podrules.ByHostPath, podrules.Evict)
	if f.deadline > 0 {
		policy = podrules.Forced()
	}
	if f.force {
		policy = policy.With(podrules.ByUnmanaged, podrules.Evict)
	}
	if f.deleteEmptyDir {
		policy = policy.With(podrules.ByLocalStorage, podrules.Evict)
	}
	if !f.ignoreDaemons {
		policy = policy.With(podrules.ByDaemonSet, podrules.Refuse)
	}
	o := drain.Options{
		Policy: &policy, DisableEviction: f.disableEvict,
		SkipTerminatingFor: time.Duration(f.skipTerminated) * time.Second,
	}
	if f.gracePeriod >= 0 {
		o.GraceSeconds = &f.gracePeriod
	}
	if f.podSelector != "" {
		sel, err := labels.Parse(f.podSelector)
		if err != nil {
			return o, fmt.Errorf("--pod-selector: %w", err)
		}
		o.Select = func(p kubeapi.Pod) bool { return sel.Matches(labels.Set(p.Labels)) }
	}
	return o, nil
}

// terms count from now. A time to give up counts for each node by itself; see nodeDrain.run.
func (f *drainFlags) terms() drain.Terms {
	var t drain.Terms
	if f.deadline > 0 {
		t.Deadline, t.Margin = time.Now().Add(f.deadline), min(f.deadline/10, 2*time.Second)
	}
	return t
}

func (f *drainFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(args); err != nil {
		return err
	}
	o, err := f.options()
	if err != nil {
		return err
	}
	nodes, err := nodeNames(args)
	if err != nil {
		return err
	}
	api, err := f.kube.api()
	if err != nil {
		return err
	}
	return f.drain(cmd.Context(), api, nodes, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// drain drains the nodes that are named, or selected.
func (f *drainFlags) drain(
	ctx context.Context, api *kubeapi.Client, nodes []string, o drain.Options, out, stderr io.Writer,
) error {
	var err error
	if f.selector != "" {
		if nodes, err = nodesWith(ctx, api, f.selector); err != nil {
			return interrupted(ctx, err)
		}
	}
	if f.waitDetach {
		o.Volumes = api
	}
	o.Terms = f.terms()
	var drains []*nodeDrain
	for i, node := range nodes {
		if slices.Contains(nodes[:i], node) {
			continue // it is named twice
		}
		o.Node = node
		drains = append(drains, &nodeDrain{flags: f, api: api, o: o, out: out, err: stderr, beside: 1})
	}
	if f.selector == "" {
		if err := findAll(ctx, drains); err != nil {
			return interrupted(ctx, err)
		}
	}
	if f.dryRun != "none" {
		return gravest(inTurn(drains, func(d *nodeDrain) error { return d.preview(ctx) }))
	}
	cordonAll(ctx, drains, f.deadline/4)
	if f.deadline > 0 && len(drains) > 1 {
		return gravest(sideBySide(ctx, drains, out, stderr))
	}
	return gravest(inTurn(drains, func(d *nodeDrain) error { return d.run(ctx) }))
}

// interrupted gives an error the exit code of an interrupt, if there was one.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &exitError{exitInterrupted, err}
	}
	return err
}

func nodesWith(ctx context.Context, api *kubeapi.Client, selector string) ([]string, error) {
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

// gravest joins the errors under the highest exit code among them.
func gravest(errs []error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	code := 0
	for _, one := range errs {
		code = max(code, exitCode(one))
	}
	return &exitError{code, err}
}

// nodeDrain drains one node for a person.
type nodeDrain struct {
	flags *drainFlags
	api   *kubeapi.Client
	o     drain.Options
	out   io.Writer
	err   io.Writer

	// uid is that of the node when it was first read. cordoned is the node as it was before this drain cordoned it, nil when it did
	// not; failed is why it could not.
	uid      string
	cordoned *kubeapi.Node
	failed   error
	// unsure is true while the patch that cordons the node has no answer.
	unsure      bool
	managerName string
	// beside is how many nodes are drained at the same time.
	beside int
}

// run drains the node, which cordonAll has seen to.
func (d *nodeDrain) run(ctx context.Context) error {
	switch {
	case d.failed == nil:
	case d.flags.deadline > 0 && ctx.Err() == nil && isUnanswered(d.failed) && !cordon.IsReplaced(d.failed):
		fmt.Fprintf(d.err, "%s: cordoning it failed; it is drained all the same, since the machine goes: %v\n", d.o.Node, d.failed)
	default:
		d.giveBack(ctx)
		return interrupted(ctx, d.failed)
	}
	if d.flags.deadline == 0 { // else no node was drained before this one
		if err := d.stillCordoned(ctx); err != nil && ctx.Err() == nil {
			d.giveBack(ctx)
			return err
		}
	}
	if d.flags.timeout > 0 {
		d.o.Terms.GiveUp = time.Now().Add(d.flags.timeout)
	}
	show := newProgressLine(d.err)
	show.every *= time.Duration(d.beside)
	d.o.OnProgress = show.update
	receipt, err := drain.Run(ctx, d.api, d.o)
	show.end()
	d.print(receipt)
	goes := receipt.Outcome == drain.DeadlinePassed // the machine, whatever is on it
	if err != nil && !goes {
		d.giveBack(ctx)
	}
	if err == nil && d.failed != nil {
		return fmt.Errorf("node %s: drained, but cordoning it failed: %w", d.o.Node, d.failed)
	}
	return withCode(receipt, err)
}

func (d *nodeDrain) print(r drain.Receipt) {
	if d.flags.output == "json" {
		fmt.Fprintf(d.out, "%s\n", r.JSON())
		return
	}
	fmt.Fprintln(d.out, r.Summary())
	for _, p := range r.Pods {
		if p.Asked == drain.Forced || p.CutShort() {
			fmt.Fprintf(d.out, "  %s/%s: %s with %d s of the %d s it wanted, %s\n", p.Namespace, p.Name, p.Asked,
				p.GraceGiven, p.GraceWanted, p.End)
		}
	}
}

func withCode(r drain.Receipt, err error) error {
	var refused *drain.Refused
	var unfinished *drain.Unfinished
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
