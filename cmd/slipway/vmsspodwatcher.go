package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/renamed"
)

// placeEvery is the time between two looks at which scale set the pool's nodes are of.
const placeEvery = 10 * time.Second

// lookTime is how long one question of a look may take.
const lookTime = 10 * time.Second

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
				return fmt.Errorf("--min-size: %d: want 0 or more", minimum)
			}
			log, err := observe.Logger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return err
			}
			for _, w := range tool.Warnings {
				log.Warn(w, "inputOf", vmsspodwatcher.Tool)
			}
			ofPool(&c, tool.NodePool)
			c.InstallUnasked = !cmd.Flags().Changed("install-crds")
			w := &vmssPodWatcher{tool: tool, minimum: minimum, log: log}
			return w.run(cmd.Context(), c, cmd)
		},
	}
	c.AddFlags(cmd.Flags())
	cmd.Flags().Int32Var(&minimum, "min-size", 0, "lowest number of nodes in the pool")
	renamed.Flag(cmd.Flags(), "minimum", "min-size")
	// The tool was one process for each pool, which competed with nobody.
	c.InstallCRDs, cmd.Flags().Lookup("install-crds").DefValue = true, "true"
	c.LeaderElect, cmd.Flags().Lookup("leader-elect").DefValue = false, "false"
	return cmd
}

// ofPool has a manager see to one pool only: its own group and retirements, and a Lease of its own, as the process of another pool
// does other work.
func ofPool(c *manager.Config, pool string) {
	c.Selector = cmp.Or(c.Selector, vmsspodwatcher.GroupLabel+"="+pool)
	c.LeaseName = "slipway-" + vmsspodwatcher.Tool + "-" + pool
}

// vmssPodWatcher is the manager with the tool's NodeGroup.
type vmssPodWatcher struct {
	tool    vmsspodwatcher.Config
	minimum int32
	log     *slog.Logger
	cluster client.Reader
	place   atomic.Pointer[vmsspodwatcher.Place]
}

func (w *vmssPodWatcher) run(ctx context.Context, c manager.Config, cmd *cobra.Command) error {
	base, err := manager.ReadClouds(c.CloudConfig)
	if err != nil {
		return err
	}
	if w.cluster, err = readerFor(c.Kubeconfig); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c.Given = w.groups
	c.FindClouds = func(ctx context.Context, told func(error)) (manager.Clouds, error) {
		if err := w.awaitPlace(ctx, told); err != nil {
			return manager.Clouds{}, err
		}
		go w.follow(ctx)
		return w.tool.Clouds(cmp.Or(w.tool.Subscription, w.place.Load().Subscription), base), nil
	}
	return manager.Run(ctx, c, start.Version(), cmd.ErrOrStderr())
}

// readerFor reads Nodes and NodeRetirements past all caches.
func readerFor(kubeconfig string) (client.Reader, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent = "slipway-" + vmsspodwatcher.Tool + "/" + start.Version()
	kube.Timeout = lookTime
	return objectsOf(kube)
}

// groups are the one that the tool was about.
func (w *vmssPodWatcher) groups() []v1alpha1.NodeGroup {
	return []v1alpha1.NodeGroup{w.tool.NodeGroup(w.place.Load().ScaleSet, w.minimum)}
}

// awaitPlace waits for the first node of the pool, or for what an earlier process has left undone: without either there is
// nothing to do. It tells what it cannot find out, or nil.
func (w *vmssPodWatcher) awaitPlace(ctx context.Context, told func(error)) error {
	for said := false; ; {
		found, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			w.log.Warn("where the machines of the pool are cannot be found out", "pool", w.tool.NodePool, "err", err)
		case found != (vmsspodwatcher.Place{}):
			w.place.Store(&found)
			w.log.Info("the pool's machines are found", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet, "subscription", found.Subscription)
			return nil
		case !said:
			said = true
			w.log.Info("waiting for the first node of the pool in a uniform scale set", "pool", w.tool.NodePool)
		}
		told(err)
		if !elapsed.Sleep(ctx, placeEvery) {
			return ctx.Err()
		}
	}
}

// follow keeps up with a pool that moves to another scale set.
func (w *vmssPodWatcher) follow(ctx context.Context) {
	for {
		if !elapsed.Sleep(ctx, placeEvery) {
			return
		}
		found, err := w.look(ctx)
		if err == nil && found != (vmsspodwatcher.Place{}) && found != *w.place.Load() {
			w.log.Info("the pool has moved", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet)
			w.place.Store(&found)
		}
	}
}

// look finds the place by the pool's nodes. When they have all gone it is that of the machines whose retirement is not over:
// the Node goes first, and the last one of a pool leaves its machine behind until the retirement goes on.
func (w *vmssPodWatcher) look(ctx context.Context) (vmsspodwatcher.Place, error) {
	var nodes corev1.NodeList
	// From the API server's cache: what it does not have yet is seen the next time.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	if err := w.cluster.List(ctx, &nodes, client.MatchingLabels{vmsspodwatcher.PoolLabel: w.tool.NodePool}, cached); err != nil {
		return vmsspodwatcher.Place{}, fmt.Errorf("nodes of pool %s: %w", w.tool.NodePool, err)
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	if found := vmsspodwatcher.PlaceOf(ids); found != (vmsspodwatcher.Place{}) {
		return found, nil
	}
	var records v1alpha1.NodeRetirementList
	err := w.cluster.List(ctx, &records, client.MatchingLabels{vmsspodwatcher.GroupLabel: w.tool.NodePool})
	if meta.IsNoMatchError(err) { // the types are not installed yet, so that nothing can have been begun
		return vmsspodwatcher.Place{}, nil
	}
	if err != nil {
		return vmsspodwatcher.Place{}, fmt.Errorf("NodeRetirements of pool %s: %w", w.tool.NodePool, err)
	}
	return vmsspodwatcher.PlaceOf(leftBehind(records.Items)), nil
}

// leftBehind are the provider IDs of the machines whose retirement is not over.
func leftBehind(records []v1alpha1.NodeRetirement) (ids []string) {
	for i := range records {
		if rt := &records[i]; !rt.Status.Phase.Finished() && rt.Status.Captured != nil {
			ids = append(ids, rt.Status.Captured.ProviderID)
		}
	}
	return ids
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
