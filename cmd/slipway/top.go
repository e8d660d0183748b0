package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/top"
)

type topFlags struct {
	cluster clusterFlags
	rules   ruleFlags
	plain   bool
}

func newTopCommand() *cobra.Command {
	f := topFlags{cluster: clusterFlags{kube: newKubeFlags("top")}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch nodes by group: utilization, state and notices",
		Long: `Top shows the nodes of each NodeGroup: the requests of their pods, their state, and cloud notices with the time left. It
is updated by watches.

Keys: up and down (or k and j) select a node; enter shows its pods and why each stays; e shows Events; tab lets up and down
scroll these; / filters; capital letters sort; w shows why the node can or cannot be removed; p shows which nodes could be
removed together; c cancels the retirement of the selected node after confirmation; ? shows all keys; q quits.

If the output is not a terminal, TERM is dumb, or --plain is set, each change is printed as a line. NO_COLOR removes
colours.`,
		Example: `  slipway top
  slipway top --plain | tee nodes.log`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().BoolVar(&f.plain, "plain", false, "print each change as a line, even on a terminal")
	f.rules.addFlags(cmd.Flags())
	f.rules.addSurgeFlags(cmd.Flags())
	f.cluster.kube.addFlags(cmd.Flags())
	return cmd
}

func (f *topFlags) run(cmd *cobra.Command, _ []string) error {
	if _, err := f.rules.parsePolicy(); err != nil {
		return err
	}
	if err := f.rules.surge.validate(); err != nil {
		return err
	}
	// The view shows problems of the libraries itself. Log lines would garble the screen.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	cfg, err := f.cluster.kube.restConfig()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	watch, err := top.NewWatcher(ctx, cfg)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f.plain || !supportsScreen(out) {
		return f.printLines(ctx, watch, out)
	}
	return f.runScreen(ctx, stop, watch, cfg.Host, out)
}

// printLines prints each change of the State as a line until the user ends the command.
func (f *topFlags) printLines(ctx context.Context, watch *top.Watcher, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var last top.State
	err := watch.Run(ctx, func(s top.State) {
		for _, change := range top.ListChanges(last, s) {
			if _, err := fmt.Fprintln(out, top.FormatChange(time.Now(), change)); err != nil {
				stop(err) // the output is closed
				return
			}
		}
		last = s
	})
	return ignoreCanceled(err)
}

// runScreen shows the live view. It returns when the user quits, the command is ended, or the watch fails.
func (f *topFlags) runScreen(ctx context.Context, stop func(), watch *top.Watcher, host string, out io.Writer) error {
	actions, err := f.newActions(watch)
	if err != nil {
		return err
	}
	ui := top.NewUI(ctx, actions, top.Options{Title: host, ASCII: !isUTF8Locale(os.Getenv), Now: time.Now()})
	program := newProgram(ctx, ui, out)
	watched := make(chan error, 1)
	go func() {
		err := watch.Run(ctx, func(s top.State) { program.Send(s) })
		program.Quit()
		watched <- err
	}()
	_, err = program.Run()
	stop()
	if err := ignoreCanceled(<-watched); err != nil {
		return err
	}
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // ended by a signal
	}
	return err
}

// newProgram returns the terminal program of a live view. It uses the colors that the environment allows, and none with
// NO_COLOR.
func newProgram(ctx context.Context, ui tea.Model, out io.Writer, more ...tea.ProgramOption) *tea.Program {
	return tea.NewProgram(ui, append([]tea.ProgramOption{tea.WithContext(ctx), tea.WithOutput(out)}, more...)...)
}

// ignoreCanceled returns nil if err means that a watch was cancelled. Otherwise it returns err.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// isUTF8Locale reports whether the locale uses UTF-8. It reads the environment variables in the order of precedence
// that POSIX defines.
func isUTF8Locale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := env(name); value != "" {
			value = strings.ToLower(value)
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

// topActions implements top.Actions. It calls the code of the corresponding commands.
type topActions struct {
	cluster clusterFlags
	rules   ruleFlags
	objects client.Client
	watch   *top.Watcher
}

func (f *topFlags) newActions(watch *top.Watcher) (*topActions, error) {
	c, err := f.cluster.kube.newObjectClient()
	if err != nil {
		return nil, err
	}
	return &topActions{cluster: f.cluster, rules: f.rules, objects: c, watch: watch}, nil
}

// ExplainNode implements [top.Actions].
func (a *topActions) ExplainNode(ctx context.Context, node string) (string, error) {
	return a.explainCluster(ctx, func(o *saved.Objects, options planner.PlanOptions, w io.Writer) error {
		answer, err := planner.PlanEvacuationFromObjects(o, node, options)
		if err != nil {
			return err
		}
		stop := findStopTime(findNode(o, node), 0)
		surges, err := a.rules.predictSurges(ctx, a.cluster.kube, o, []string{node}, stop, w)
		if err != nil {
			return err
		}
		return errors.Join(explain.PrintEvacuation(w, answer), printSurges(w, surges, stop))
	})
}

// DescribeNodePods implements [top.Actions].
func (a *topActions) DescribeNodePods(ctx context.Context, node string) (top.NodePods, error) {
	policy, err := a.rules.parsePolicy()
	if err != nil {
		return top.NodePods{}, err
	}
	return a.watch.DescribeNodePods(ctx, node, policy, a.rules.plannerOptions(&saved.Objects{}))
}

// ExplainPlan implements [top.Actions].
func (a *topActions) ExplainPlan(ctx context.Context) (string, error) {
	return a.explainCluster(ctx, func(o *saved.Objects, options planner.PlanOptions, w io.Writer) error {
		answer, err := planner.PlanFromObjects(o, options)
		if err != nil {
			return err
		}
		return explain.PrintPlan(w, answer, false)
	})
}

// explainCluster reads the cluster and returns the text that explain writes.
func (a *topActions) explainCluster(ctx context.Context, explain func(*saved.Objects, planner.PlanOptions, io.Writer) error) (string, error) {
	policy, err := a.rules.parsePolicy()
	if err != nil {
		return "", err
	}
	o, err := a.cluster.readCluster(ctx)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	err = explain(o, planner.PlanOptions{MaxRemovals: -1, Policy: policy, Rules: a.rules.plannerOptions(o)}, &text)
	return text.String(), err
}

// CancelRetirement implements [top.Actions].
func (a *topActions) CancelRetirement(ctx context.Context, name string, uid types.UID) error {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := a.objects.Delete(ctx, rt, client.Preconditions{UID: &uid})
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("missing permission: %w (see ClusterRole slipway-top in deploy/viewer)", err)
	case apierrors.IsNotFound(err):
		return errors.New("it has already finished")
	}
	return err
}
