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
	"golang.org/x/term"
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

func topCommand() *cobra.Command {
	f := topFlags{cluster: clusterFlags{kube: newKubeFlags("top")}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the nodes by group: how full they are, what each is doing, and which notices stand against them",
		Long: `Top shows the nodes of each NodeGroup with what their pods request of them, what each is doing, and the notices of the
clouds with the time that is left. It is kept current by watching.

Keys: up and down (or k and j) select a node; w says why it can or cannot be removed, and what holds its retirement up;
p says which nodes could be removed together; c calls off the retirement of the selected node, after a question; q quits.

Where the output is no terminal, TERM is dumb, or with --plain, every change is a line. NO_COLOR takes the colours off.`,
		Example: `  slipway top
  slipway top --plain | tee nodes.log`,
		Args: cobra.NoArgs,
		RunE: f.run,
	}
	cmd.Flags().BoolVar(&f.plain, "plain", false, "print a line for each change, also on a terminal")
	f.rules.add(cmd.Flags())
	f.cluster.kube.add(cmd.Flags())
	return cmd
}

func (f *topFlags) run(cmd *cobra.Command, _ []string) error {
	if _, err := f.rules.parse(); err != nil {
		return err
	}
	// What the libraries have to say reaches the view as its problems; on the screen it would only be noise.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	cfg, err := f.cluster.kube.config()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	watch, err := top.NewWatch(ctx, cfg)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f.plain || !screen(out) {
		return f.lines(ctx, watch, out)
	}
	return f.screen(ctx, stop, watch, cfg.Host, out)
}

// screen reports whether a cursor can be moved on what is written to.
func screen(out io.Writer) bool {
	file, is := out.(*os.File)
	name := os.Getenv("TERM")
	return is && term.IsTerminal(int(file.Fd())) && name != "dumb" && name != ""
}

// lines prints each change until the command is ended.
func (f *topFlags) lines(ctx context.Context, watch *top.Watch, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var last top.State
	err := watch.Run(ctx, func(s top.State) {
		for _, change := range top.Changes(last, s) {
			if _, err := fmt.Fprintln(out, top.Line(time.Now(), change)); err != nil {
				stop(err) // nobody reads any more
				return
			}
		}
		last = s
	})
	return unlessEnded(err)
}

// screen shows the view until a person quits, the command is ended, or the watching fails.
func (f *topFlags) screen(ctx context.Context, stop func(), watch *top.Watch, host string, out io.Writer) error {
	actions, err := f.actions()
	if err != nil {
		return err
	}
	ui := top.NewUI(ctx, actions, top.Options{Title: host, ASCII: !utf8Locale(os.Getenv), Now: time.Now()})
	program := onTerminal(ctx, ui, out)
	watched := make(chan error, 1)
	go func() {
		err := watch.Run(ctx, func(s top.State) { program.Send(s) })
		program.Quit()
		watched <- err
	}()
	_, err = program.Run()
	stop()
	if err := unlessEnded(<-watched); err != nil {
		return err
	}
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // it was ended by a signal, which is how one ends it
	}
	return err
}

// onTerminal puts a view on a terminal, in the colours that it has by its environment: none with NO_COLOR.
func onTerminal(ctx context.Context, ui tea.Model, out io.Writer, more ...tea.ProgramOption) *tea.Program {
	return tea.NewProgram(ui, append([]tea.ProgramOption{tea.WithContext(ctx), tea.WithOutput(out)}, more...)...)
}

// unlessEnded is the error of a watch, or nil when it ended because it was to.
func unlessEnded(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// utf8Locale reports whether the locale, as POSIX ranks its variables, says that the terminal takes UTF-8.
func utf8Locale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := env(name); value != "" {
			value = strings.ToLower(value)
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

// topActions are what the keys do, with the code of the commands of the same names.
type topActions struct {
	cluster clusterFlags
	rules   ruleFlags
	objects client.Client
}

func (f *topFlags) actions() (*topActions, error) {
	c, err := f.cluster.kube.objects()
	if err != nil {
		return nil, err
	}
	return &topActions{cluster: f.cluster, rules: f.rules, objects: c}, nil
}

// Why implements [top.Actions].
func (a *topActions) Why(ctx context.Context, node string) (string, error) {
	return a.ask(ctx, func(o *saved.Objects, options planner.PlanOptions, w io.Writer) error {
		answer, err := planner.NewEvacuation(o, node, options)
		if err != nil {
			return err
		}
		return explain.Node(w, answer)
	})
}

// Plan implements [top.Actions].
func (a *topActions) Plan(ctx context.Context) (string, error) {
	return a.ask(ctx, func(o *saved.Objects, options planner.PlanOptions, w io.Writer) error {
		answer, err := planner.NewPlan(o, options)
		if err != nil {
			return err
		}
		return explain.Plan(w, answer, false)
	})
}

// ask reads the cluster and returns what explain writes of it.
func (a *topActions) ask(ctx context.Context, explain func(*saved.Objects, planner.PlanOptions, io.Writer) error) (string, error) {
	policy, err := a.rules.parse()
	if err != nil {
		return "", err
	}
	o, err := a.cluster.read(ctx)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	err = explain(o, planner.PlanOptions{Max: -1, Policy: policy, Rules: a.rules.options(o)}, &text)
	return text.String(), err
}

// CallOff implements [top.Actions].
func (a *topActions) CallOff(ctx context.Context, name string, uid types.UID) error {
	rt := &v1alpha1.NodeRetirement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := a.objects.Delete(ctx, rt, client.Preconditions{UID: &uid})
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("a right is missing: %w (ClusterRole slipway-top in deploy/viewer)", err)
	case apierrors.IsNotFound(err):
		return errors.New("it is over already")
	}
	return err
}
