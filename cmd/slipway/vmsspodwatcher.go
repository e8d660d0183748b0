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

// placePollInterval is how often the scale set of the pool's nodes is read.
const placePollInterval = 10 * time.Second

// readTimeout limits each API request that reads the scale set of the pool's nodes.
const readTimeout = 10 * time.Second

func newVMSSPodWatcherCommand() *cobra.Command {
	var c manager.Config
	var minimum int32
	cmd := &cobra.Command{
		Use:   vmsspodwatcher.Tool,
		Short: "Drop-in replacement for the VMSS pod watcher: same environment variables",
		Long: "The VMSS pod watcher's environment variables select the agent pool and the pods that protect its nodes. The manager\n" +
			"runs with a NodeGroup for that pool. It finds the subscription and the scale set through the pool's nodes, and installs\n" +
			"Slipway's CRDs at the start. --cloud-config can set the Azure cloud and the credentials.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tool, err := vmsspodwatcher.Parse(os.Environ())
			if err != nil {
				return err
			}
			if minimum < 0 {
				return fmt.Errorf("--min-size: %d: want 0 or more", minimum)
			}
			log, err := observe.NewLogger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return err
			}
			for _, w := range tool.Warnings {
				log.Warn(w, "inputOf", vmsspodwatcher.Tool)
			}
			limitToPool(&c, tool.NodePool)
			c.InstallCRDsByDefault = !cmd.Flags().Changed("install-crds")
			w := &vmssPodWatcher{tool: tool, minimum: minimum, log: log}
			return w.run(cmd.Context(), c, cmd)
		},
	}
	c.AddFlags(cmd.Flags())
	cmd.Flags().Int32Var(&minimum, "min-size", 0, "minimum number of nodes of the pool")
	renamed.Flag(cmd.Flags(), "minimum", "min-size")
	// The tool ran as one process per pool without leader election.
	c.InstallCRDs, cmd.Flags().Lookup("install-crds").DefValue = true, "true"
	c.LeaderElect, cmd.Flags().Lookup("leader-elect").DefValue = false, "false"
	return cmd
}

// limitToPool limits a manager to one pool. The manager uses only this pool's NodeGroup, retirements and Lease. Every
// other pool has its own process.
func limitToPool(c *manager.Config, pool string) {
	c.Selector = cmp.Or(c.Selector, vmsspodwatcher.GroupLabel+"="+pool)
	c.LeaseName = "slipway-" + vmsspodwatcher.Tool + "-" + pool
}

// vmssPodWatcher runs a manager with the only NodeGroup of the tool.
type vmssPodWatcher struct {
	tool     vmsspodwatcher.Config
	minimum  int32
	log      *slog.Logger
	cluster  client.Reader
	scaleSet atomic.Pointer[vmsspodwatcher.ScaleSetID]
}

func (w *vmssPodWatcher) run(ctx context.Context, c manager.Config, cmd *cobra.Command) error {
	base, err := manager.ReadClouds(c.CloudConfig)
	if err != nil {
		return err
	}
	if w.cluster, err = newObjectReader(c.Kubeconfig); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c.ExtraGroups = w.nodeGroups
	c.ResolveClouds = func(ctx context.Context, report func(error)) (manager.Clouds, error) {
		if err := w.awaitPoolScaleSet(ctx, report); err != nil {
			return manager.Clouds{}, err
		}
		go w.followPoolScaleSet(ctx)
		clouds, warnings := w.tool.MergeIntoClouds(w.scaleSet.Load().Subscription, base)
		for _, text := range warnings {
			w.log.Warn(text, "inputOf", vmsspodwatcher.Tool)
		}
		return clouds, nil
	}
	return manager.Run(ctx, c, start.Version(), cmd.ErrOrStderr())
}

// newObjectReader returns a client that reads Nodes and NodeRetirements without a cache.
func newObjectReader(kubeconfig string) (client.Reader, error) {
	kube, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	kube.UserAgent = "slipway-" + vmsspodwatcher.Tool + "/" + start.Version()
	kube.Timeout = readTimeout
	return newObjectClientFor(kube)
}

// nodeGroups returns the only NodeGroup of the tool.
func (w *vmssPodWatcher) nodeGroups() []v1alpha1.NodeGroup {
	return []v1alpha1.NodeGroup{w.tool.ToNodeGroup(w.scaleSet.Load().ScaleSet, w.minimum)}
}

// awaitPoolScaleSet waits until the scale set of the pool is known. It is known when the pool has a node, or when a
// retirement of an earlier process is unfinished. Without either there is nothing to do. It calls report with the error
// of each read, or nil.
func (w *vmssPodWatcher) awaitPoolScaleSet(ctx context.Context, report func(error)) error {
	for logged := false; ; {
		found, err := w.findPoolScaleSet(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			w.log.Warn("cannot determine the scale set of the pool", "pool", w.tool.NodePool, "err", err)
		case found != (vmsspodwatcher.ScaleSetID{}):
			w.scaleSet.Store(&found)
			w.log.Info("found the scale set of the pool", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet, "subscription", found.Subscription)
			return nil
		case !logged:
			logged = true
			w.log.Info("waiting for the first node of the pool in a uniform scale set", "pool", w.tool.NodePool)
		}
		report(err)
		if !elapsed.Sleep(ctx, placePollInterval) {
			return ctx.Err()
		}
	}
}

// followPoolScaleSet reads the scale set of the pool periodically until ctx ends, because the pool may move to another
// scale set.
func (w *vmssPodWatcher) followPoolScaleSet(ctx context.Context) {
	for {
		if !elapsed.Sleep(ctx, placePollInterval) {
			return
		}
		found, err := w.findPoolScaleSet(ctx)
		if err == nil && found != (vmsspodwatcher.ScaleSetID{}) && found != *w.scaleSet.Load() {
			w.log.Info("the pool has moved to another scale set", "pool", w.tool.NodePool, "scaleSet", found.ScaleSet)
			w.scaleSet.Store(&found)
		}
	}
}

// findPoolScaleSet returns the scale set of the pool's nodes. If the pool has no nodes, it uses the machines with an
// unfinished retirement. A retirement deletes the Node first, so the machine of the pool's last node may still exist.
func (w *vmssPodWatcher) findPoolScaleSet(ctx context.Context) (vmsspodwatcher.ScaleSetID, error) {
	var nodes corev1.NodeList
	// Reads from the API server's cache. The next read sees later changes.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	if err := w.cluster.List(ctx, &nodes, client.MatchingLabels{vmsspodwatcher.PoolLabel: w.tool.NodePool}, cached); err != nil {
		return vmsspodwatcher.ScaleSetID{}, fmt.Errorf("nodes of pool %s: %w", w.tool.NodePool, err)
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	if found := vmsspodwatcher.FindMostCommonScaleSet(ids); found != (vmsspodwatcher.ScaleSetID{}) {
		return found, nil
	}
	var records v1alpha1.NodeRetirementList
	err := w.cluster.List(ctx, &records, client.MatchingLabels{vmsspodwatcher.GroupLabel: w.tool.NodePool})
	if meta.IsNoMatchError(err) { // without CRDs there are no retirements
		return vmsspodwatcher.ScaleSetID{}, nil
	}
	if err != nil {
		return vmsspodwatcher.ScaleSetID{}, fmt.Errorf("NodeRetirements of pool %s: %w", w.tool.NodePool, err)
	}
	return vmsspodwatcher.FindMostCommonScaleSet(unfinishedRetirementProviderIDs(records.Items)), nil
}

// unfinishedRetirementProviderIDs returns the provider IDs of the machines in NodeRetirements that have not finished.
func unfinishedRetirementProviderIDs(records []v1alpha1.NodeRetirement) (ids []string) {
	for i := range records {
		if rt := &records[i]; !rt.Status.Phase.IsFinal() && rt.Status.Captured != nil {
			ids = append(ids, rt.Status.Captured.ProviderID)
		}
	}
	return ids
}

// newMigrateVMSSPodWatcherCommand returns the command slipway migrate vmss-pod-watcher.
func newMigrateVMSSPodWatcherCommand() *cobra.Command {
	var at vmsspodwatcher.ScaleSetID
	var cloudConfig bool
	cmd := &cobra.Command{
		Use:   vmsspodwatcher.Tool + " [FILE]",
		Short: "Convert the tool's environment, or a file of NAME=VALUE lines; - reads it from standard input",
		Long: "Prints the NodeGroup that corresponds to the tool's settings, and the cloud configuration for Azure above it. Without a\n" +
			"FILE it reads the environment of this process.",
		Example: "  kubectl -n kube-system set env deploy/vmss-pod-watcher --list | slipway migrate " + vmsspodwatcher.Tool + " -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			environ := os.Environ()
			if len(args) > 0 {
				raw, err := readInput(cmd.InOrStdin(), args[0])
				if err != nil {
					return err
				}
				if environ, err = parseEnvironment(raw); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
			}
			m, err := vmsspodwatcher.Migrate(environ, at)
			if err != nil {
				return err
			}
			file, err := m.ToFile()
			if cloudConfig {
				file, err = m.ToCloudConfig()
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(file)
			return err
		},
	}
	cmd.Flags().StringVar(&at.ScaleSet, "scale-set", "", "name of the pool's scale set")
	cmd.Flags().StringVar(&at.Subscription, "subscription", "", "ID of the scale set's subscription")
	cmd.Flags().BoolVar(&cloudConfig, "cloud-config", false, "print only the file for slipway manager --cloud-config")
	return cmd
}

// parseEnvironment parses NAME=VALUE lines. It skips empty lines and lines that start with #.
func parseEnvironment(raw []byte) ([]string, error) {
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
