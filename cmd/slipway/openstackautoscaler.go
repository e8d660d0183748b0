package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

// openStackAutoscalerFlags are the flags of the OpenStack cluster autoscaler's replacement. The tool itself had only -kubeconfig.
type openStackAutoscalerFlags struct {
	kubeconfig, config, cluster, listen string
	controlPlane                        int
}

func parseOpenStackAutoscalerFlags(args []string, stderr io.Writer) (openStackAutoscalerFlags, error) {
	var f openStackAutoscalerFlags
	fs := flag.NewFlagSet(openstackautoscaler.Tool, flag.ContinueOnError)
	fs.SetOutput(stderr)
	home, _ := os.UserHomeDir() // without a home directory there is no default
	fs.StringVar(&f.kubeconfig, "kubeconfig", filepath.Join(home, ".kube", "config"),
		"kubeconfig `file`; in a pod, its ServiceAccount is used instead")
	fs.StringVar(&f.config, "config", openstackautoscaler.DefaultFile, "the autoscaler's configuration `file`")
	fs.StringVar(&f.cluster, "cluster-name", "",
		"`name` of this cluster, unique in the OpenStack project; if empty, the UID of the namespace kube-system")
	fs.IntVar(&f.controlPlane, "control-plane-nodes", -1, "number of control plane nodes; -1 counts them")
	fs.StringVar(&f.listen, "listen", ":9819", "`address` of /metrics, /healthz and /readyz; if empty, not served")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("%q: want flags only", fs.Arg(0))
	}
	if f.cluster != "" {
		if err := openstack.CheckClusterName(f.cluster); err != nil {
			return f, fmt.Errorf("-cluster-name: %w", err)
		}
	}
	if f.controlPlane < -1 {
		return f, fmt.Errorf("-control-plane-nodes: %d: want 0 or more, or -1 to count them", f.controlPlane)
	}
	return f, nil
}

func newOpenStackAutoscalerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   openstackautoscaler.Tool + " [-config conf.yml] [-kubeconfig FILE]",
		Short: "Drop-in replacement for the OpenStack cluster autoscaler: same conf.yml",
		// cobra does not parse the flags: they may have one or two dashes.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := parseOpenStackAutoscalerFlags(args, cmd.ErrOrStderr())
			switch {
			case errors.Is(err, flag.ErrHelp):
				return nil
			case err != nil:
				return &exitError{exitUsage, err}
			}
			return runOpenStackAutoscaler(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
}

func runOpenStackAutoscaler(ctx context.Context, f openStackAutoscalerFlags, stderr io.Writer) error {
	c, err := openstackautoscaler.Load(f.config)
	if err != nil {
		return err
	}
	m, err := newOpenStackAutoscalerManagerConfig(f, &c)
	if err != nil {
		return err
	}
	log, err := observe.NewLogger(stderr, m.LogFormat, m.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		log.Warn(w, "inputOf", openstackautoscaler.Tool)
	}
	kube, err := f.newClient(m.Kubeconfig)
	if err != nil {
		return err
	}
	cluster, err := f.findClusterName(ctx, kube)
	if err != nil {
		return err
	}
	config := c.ToCloudConfig(cluster)
	m.Clouds = &manager.Clouds{OpenStack: &config}
	plane := &controlPlaneCounter{tool: &c, log: log, nodes: kube}
	if f.controlPlane >= 0 {
		plane.setSize(f.controlPlane)
	} else {
		if err := plane.initializeSize(ctx); err != nil {
			return err
		}
		following, stop := context.WithCancel(ctx)
		defer stop()
		go plane.updateSizePeriodically(following)
	}
	m.ExtraGroups = plane.nodeGroups
	return manager.Run(ctx, m, start.Version(), stderr)
}

// newOpenStackAutoscalerManagerConfig returns the configuration of a manager that replaces the autoscaler. It installs the CRDs, because the
// tool needed none.
func newOpenStackAutoscalerManagerConfig(f openStackAutoscalerFlags, c *openstackautoscaler.Config) (manager.Config, error) {
	var m manager.Config
	m.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if c.CloudType != openstackautoscaler.OpenStack {
		return m, fmt.Errorf("%s: CloudType: %q: want %s: the autoscaler's plugins are now separate programs, which slipway manager "+
			"starts from --cloud-config", f.config, c.CloudType, openstackautoscaler.OpenStack)
	}
	m.InstallCRDs, m.InstallCRDsByDefault, m.Listen, m.LogFormat = true, true, f.listen, "text"
	// Like the tool, it handles only its own group. Its own Lease avoids competition with another manager.
	m.Selector = openstackautoscaler.GroupLabel + "=" + openstackautoscaler.Group
	m.LeaseName = "slipway-" + openstackautoscaler.Tool
	if m.LeaderElectionNamespace == "" {
		m.LeaderElectionNamespace = metav1.NamespaceSystem
	}
	if !isInCluster() {
		m.Kubeconfig = f.kubeconfig
	}
	return m, nil
}

// isInCluster reports whether the process runs in a pod.
func isInCluster() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

func (f *openStackAutoscalerFlags) newClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	config.UserAgent = "slipway-" + openstackautoscaler.Tool + "/" + start.Version()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	return client, nil
}

// findClusterName returns -cluster-name or, if it is empty, the UID of the namespace kube-system. kubeadm gives all clusters
// the same name.
func (f *openStackAutoscalerFlags) findClusterName(ctx context.Context, client kubernetes.Interface) (string, error) {
	if f.cluster != "" {
		return f.cluster, nil
	}
	// The manager's ClusterRole allows list, not get.
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + metav1.NamespaceSystem})
	if err == nil && (len(list.Items) != 1 || list.Items[0].UID == "") {
		err = errors.New("namespace not found")
	}
	if err != nil {
		return "", fmt.Errorf("reading the UID of namespace %s as cluster name: %w (or set -cluster-name)", metav1.NamespaceSystem, err)
	}
	return string(list.Items[0].UID), nil
}

// countInterval is the interval between counts of the control plane's nodes.
const countInterval = time.Minute

// controlPlaneCounter counts the control plane's nodes, because the tool's node limits include them.
type controlPlaneCounter struct {
	tool  *openstackautoscaler.Config
	log   *slog.Logger
	nodes kubernetes.Interface
	size  atomic.Int64
}

// nodeGroups returns the tool's only NodeGroup.
func (p *controlPlaneCounter) nodeGroups() []v1alpha1.NodeGroup {
	return []v1alpha1.NodeGroup{p.tool.ToNodeGroup(int(p.size.Load()))}
}

// setSize stores the number of control plane nodes.
func (p *controlPlaneCounter) setSize(size int) {
	p.size.Store(int64(size))
	if warning := p.tool.FullControlPlaneWarning(size); warning != "" {
		p.log.Warn(warning, "inputOf", openstackautoscaler.Tool)
	}
}

// initializeSize counts the nodes and returns an error if that fails.
func (p *controlPlaneCounter) initializeSize(ctx context.Context) error {
	size, err := p.countControlPlaneNodes(ctx)
	if err != nil {
		return fmt.Errorf("counting the control plane nodes: %w (or set -control-plane-nodes)", err)
	}
	p.setSize(size)
	return nil
}

// updateSizePeriodically updates the count periodically until ctx ends.
func (p *controlPlaneCounter) updateSizePeriodically(ctx context.Context) {
	for {
		if !elapsed.Sleep(ctx, countInterval) {
			return
		}
		p.updateCount(ctx)
	}
}

// updateCount counts the nodes again. On an error the previous count stays.
func (p *controlPlaneCounter) updateCount(ctx context.Context) {
	size, err := p.countControlPlaneNodes(ctx)
	switch before := int(p.size.Load()); {
	case err != nil && ctx.Err() == nil:
		p.log.Warn("cannot count the control plane nodes, keeping the previous count", "nodes", before, "err", err)
	case err == nil && size != before:
		p.log.Info("the number of control plane nodes has changed", "nodes", size, "before", before)
		p.setSize(size)
	}
}

func (p *controlPlaneCounter) countControlPlaneNodes(ctx context.Context) (int, error) {
	found := map[string]bool{}
	for _, label := range openstackautoscaler.ControlPlaneLabels() {
		nodes, err := p.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return 0, err
		}
		for i := range nodes.Items {
			found[nodes.Items[i].Name] = true
		}
	}
	return len(found), nil
}

func newMigrateOpenStackAutoscalerCommand() *cobra.Command {
	var cluster, directory string
	var controlPlane int
	cmd := &cobra.Command{
		Use:   openstackautoscaler.Tool + " FILE",
		Short: "Convert conf.yml to a NodeGroup, a --cloud-config file and a clouds.yaml; - reads it from standard input",
		Long: "The output contains the file's password, which clouds.yaml needs. With --directory the files are written to that\n" +
			"directory instead, clouds.yaml with mode 0600.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := readInput(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			files, err := openstackautoscaler.Migrate(raw, cluster, controlPlane)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if directory == "" {
				_, err := cmd.OutOrStdout().Write(openstackautoscaler.FormatFiles(files))
				return err
			}
			return writeNewFiles(directory, files)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cluster, "cluster-name", "",
		"name of this cluster, unique in the OpenStack project, for example the UID of the namespace kube-system; if empty, a placeholder is printed")
	fs.IntVar(&controlPlane, "control-plane-nodes", 1, "number of control plane nodes in MinNodeCount and MaxNodeCount")
	fs.StringVar(&directory, "directory", "", "write the files to this directory")
	return cmd
}

// writeNewFiles writes new files into a directory, which it creates if necessary. It returns an error if a file exists.
func writeNewFiles(directory string, files []openstackautoscaler.File) error {
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // the secret file has its own mode
		return fmt.Errorf("--directory: %w", err)
	}
	for _, f := range files {
		mode := os.FileMode(0o644)
		if f.Secret {
			mode = 0o600
		}
		out, err := os.OpenFile(filepath.Join(directory, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = out.Write(f.Content)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
	return nil
}
