package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

// placeEvery is the time between two looks at which scale set the pool's nodes are of.
const placeEvery = 10 * time.Second

func vmssPodWatcherCommand() *cobra.Command {
	var c manager.Config
	var minimum int32
	cmd := &cobra.Command{
		Use:   vmsspodwatcher.Tool,
		Short: "Stand in for the VMSS pod watcher: its environment in, the manager with a NodeGroup made of it out",
		Long: "The VMSS pod watcher's environment variables say which pods keep the nodes of which agent pool. The subscription and\n" +
			"the scale set are those of the pool's nodes. Slipway's types are installed at the start. --cloud-config can say what\n" +
			"the environment does not: which Azure it is, and with which credential.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tool, err := vmsspodwatcher.Parse(os.Environ())
			if err != nil {
				return err
			}
			if minimum < 0 {
				return fmt.Errorf("--minimum: %d: want 0 or more", minimum)
			}
			log, err := observe.Logger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return err
			}
			for _, w := range tool.Warnings {
				log.Warn(w, "inputOf", vmsspodwatcher.Tool)
			}
			if c.Selector == "" {
				c.Selector = vmsspodwatcher.GroupLabel + "=" + tool.NodePool
			}
			w := &vmssPodWatcher{tool: tool, minimum: minimum, log: log}
			return w.run(cmd.Context(), c, cmd)
		},
	}
	c.AddFlags(cmd.Flags())
	cmd.Flags().Int32Var(&minimum, "minimum", 0, "how many nodes the pool keeps at least")
	// The tool was one process for each pool, which competed with nobody.
	c.InstallCRDs, cmd.Flags().Lookup("install-crds").DefValue = true, "true"
	c.LeaderElect, cmd.Flags().Lookup("leader-elect").DefValue = false, "false"
	return cmd
}

// vmssPodWatcher is the manager with the tool's NodeGroup.
type vmssPodWatcher struct {
	tool    vmsspodwatcher.Config
	minimum int32
	log     *slog.Logger
	nodes   kubernetes.Interface
	place   atomic.Pointer[vmsspodwatcher.Place]
}

func (w *vmssPodWatcher) run(ctx context.Context, c manager.Config, cmd *cobra.Command) error {
	base, err := manager.ReadClouds(c.CloudConfig)
	if err != nil {
		return err
	}
	kube, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent = "slipway-" + vmsspodwatcher.Tool + "/" + start.Version()
	if w.nodes, err = kubernetes.NewForConfig(kube); err != nil {
		return err
	}
	if err := w.awaitPlace(ctx); err != nil {
		return nil // it was told to end, and does in good order
	}
	subscription := w.tool.Subscription
	if subscription == "" {
		subscription = w.place.Load().Subscription
	}
	clouds := w.tool.Clouds(subscription, base)
	c.Clouds, c.Given = &clouds, w.groups
	following, stop := context.WithCancel(ctx)
	defer stop()
	go w.follow(following)
	return manager.Run(ctx, c, start.Version(), cmd.ErrOrStderr())
}

// groups are the one that the tool was about.
func (w *vmssPodWatcher) groups() []v1alpha1.NodeGroup {
	return []v1alpha1.NodeGroup{w.tool.NodeGroup(w.place.Load().ScaleSet, w.minimum)}
}

// awaitPlace waits for the first node of the pool: without any there is nothing to do.
func (w *vmssPodWatcher) awaitPlace(ctx context.Context) error {
	for said := false; ; said = true {
		found, err := w.look(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			w.log.Warn("the nodes of the pool cannot be listed", "pool", w.tool.NodePool, "err", err)
		case err == nil && found != (vmsspodwatcher.Place{}):
			w.place.Store(&found)
			w.log.Info("the pool's machines are found", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet, "subscription", found.Subscription)
			return nil
		case !said:
			w.log.Info("waiting for the first node of the pool in a uniform scale set", "pool", w.tool.NodePool)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(placeEvery):
		}
	}
}

// follow keeps up with a pool that moves to another scale set.
func (w *vmssPodWatcher) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(placeEvery):
		}
		found, err := w.look(ctx)
		if err == nil && found != (vmsspodwatcher.Place{}) && found != *w.place.Load() {
			w.log.Info("the pool has moved", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet)
			w.place.Store(&found)
		}
	}
}

func (w *vmssPodWatcher) look(ctx context.Context) (vmsspodwatcher.Place, error) {
	selector := labels.Set{vmsspodwatcher.PoolLabel: w.tool.NodePool}.String()
	// From the API server's cache: nothing hangs on the last moment here.
	nodes, err := w.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	if err != nil {
		return vmsspodwatcher.Place{}, err
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	return vmsspodwatcher.PlaceOf(ids), nil
}

// migrateVMSSPodWatcher is slipway migrate vmss-pod-watcher.
func migrateVMSSPodWatcher() *cobra.Command {
	var at vmsspodwatcher.Place
	var cloudConfig bool
	cmd := &cobra.Command{
		Use:   vmsspodwatcher.Tool + " [FILE]",
		Short: "From the tool's environment, or a file of NAME=VALUE lines; - reads it from the standard input",
		Long: "Prints the NodeGroup that does what the tool was told, with the configuration of Azure above it. Without a FILE the\n" +
			"environment of this process is read.",
		Example: "  kubectl -n kube-system set env deploy/vmss-pod-watcher --list | slipway migrate " + vmsspodwatcher.Tool + " -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			environ := os.Environ()
			if len(args) > 0 {
				raw, err := readInput(cmd.InOrStdin(), args[0])
				if err != nil {
					return err
				}
				if environ, err = environment(raw); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
			}
			m, err := vmsspodwatcher.Migrate(environ, at)
			if err != nil {
				return err
			}
			file, err := m.File()
			if cloudConfig {
				file, err = m.CloudConfig()
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(file)
			return err
		},
	}
	cmd.Flags().StringVar(&at.ScaleSet, "scale-set", "", "name of the pool's scale set")
	cmd.Flags().StringVar(&at.Subscription, "subscription", "", "ID of its subscription")
	cmd.Flags().BoolVar(&cloudConfig, "cloud-config", false, "print the file for slipway manager --cloud-config alone")
	return cmd
}

// environment reads NAME=VALUE lines; those that are empty or begin with # are passed over.
func environment(raw []byte) ([]string, error) {
	var environ []string
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok || strings.ContainsAny(name, " \t") {
			errs = append(errs, fmt.Errorf("line %d: want NAME=VALUE", n))
			continue
		}
		environ = append(environ, name+"="+strings.Trim(value, `"'`))
	}
	return environ, errors.Join(append(errs, lines.Err())...)
}
