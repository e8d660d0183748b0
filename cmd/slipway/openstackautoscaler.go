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

// osaFlags are the flags of the OpenStack cluster autoscaler, which had the first only, and what it could not be told.
type osaFlags struct {
	kubeconfig, config, cluster, listen string
	controlPlane                        int
}

func parseOSA(args []string, stderr io.Writer) (osaFlags, error) {
	var f osaFlags
	fs := flag.NewFlagSet(openstackautoscaler.Tool, flag.ContinueOnError)
	fs.SetOutput(stderr)
	home, _ := os.UserHomeDir() // without one there is no default
	fs.StringVar(&f.kubeconfig, "kubeconfig", filepath.Join(home, ".kube", "config"),
		"kubeconfig `file`; in a pod its own ServiceAccount is used")
	fs.StringVar(&f.config, "config", openstackautoscaler.DefaultFile, "the autoscaler's configuration `file`")
	fs.StringVar(&f.cluster, "cluster-name", "",
		"`name` that tells this cluster's servers from those of all others in the project; empty is the UID of namespace kube-system")
	fs.IntVar(&f.controlPlane, "control-plane-nodes", -1, "how many of the nodes are the control plane's; -1 counts them")
	fs.StringVar(&f.listen, "listen", ":9819", "`address` of /metrics, /healthz and /readyz; empty is none")
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
		return f, fmt.Errorf("-control-plane-nodes: %d: want how many there are, or -1 to have them counted", f.controlPlane)
	}
	return f, nil
}

func openstackAutoscalerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   openstackautoscaler.Tool + " [-config conf.yml] [-kubeconfig FILE]",
		Short: "Stand in for the OpenStack cluster autoscaler: its conf.yml in",
		// The flags are not cobra's: they have one dash or two.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := parseOSA(args, cmd.ErrOrStderr())
			switch {
			case errors.Is(err, flag.ErrHelp):
				return nil
			case err != nil:
				return &exitError{exitUsage, err}
			}
			return runOSA(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
}

func runOSA(ctx context.Context, f osaFlags, stderr io.Writer) error {
	c, err := openstackautoscaler.Load(f.config)
	if err != nil {
		return err
	}
	m, err := managerOf(f, &c)
	if err != nil {
		return err
	}
	log, err := observe.Logger(stderr, m.LogFormat, m.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		log.Warn(w, "inputOf", openstackautoscaler.Tool)
	}
	kube, err := f.client(m.Kubeconfig)
	if err != nil {
		return err
	}
	cluster, err := f.clusterName(ctx, kube)
	if err != nil {
		return err
	}
	config := c.Cloud(cluster)
	m.Clouds = &manager.Clouds{OpenStack: &config}
	plane := &controlPlane{tool: &c, log: log, nodes: kube}
	if f.controlPlane >= 0 {
		plane.is(f.controlPlane)
	} else {
		if err := plane.find(ctx); err != nil {
			return err
		}
		following, stop := context.WithCancel(ctx)
		defer stop()
		go plane.follow(following)
	}
	m.Given = plane.groups
	return manager.Run(ctx, m, start.Version(), stderr)
}

// managerOf is the manager that does what the autoscaler did. Its types are installed, as nobody has been asked to.
func managerOf(f osaFlags, c *openstackautoscaler.Config) (manager.Config, error) {
	var m manager.Config
	m.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if c.CloudType != openstackautoscaler.OpenStack {
		return m, fmt.Errorf("%s: CloudType: %q: want %s: the autoscaler's plugins are programs of their own now, which slipway manager is "+
			"told of by --cloud-config", f.config, c.CloudType, openstackautoscaler.OpenStack)
	}
	m.InstallCRDs, m.InstallUnasked, m.Listen, m.LogFormat = true, true, f.listen, "text"
	// As the tool did, it sees to its own group only. A manager in the cluster does other work, and is not competed with.
	m.Selector = openstackautoscaler.GroupLabel + "=" + openstackautoscaler.Group
	m.LeaseName = "slipway-" + openstackautoscaler.Tool
	if m.LeaderElectionNamespace == "" {
		m.LeaderElectionNamespace = metav1.NamespaceSystem
	}
	if !inCluster() {
		m.Kubeconfig = f.kubeconfig
	}
	return m, nil
}

// inCluster says whether this runs in a pod, as client-go finds out.
func inCluster() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

func (f *osaFlags) client(kubeconfig string) (kubernetes.Interface, error) {
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

// clusterName is the name that is given, or one that no other cluster has: kubeadm calls them all the same.
func (f *osaFlags) clusterName(ctx context.Context, client kubernetes.Interface) (string, error) {
	if f.cluster != "" {
		return f.cluster, nil
	}
	// Listed, as a manager has the right to, and none to get one.
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + metav1.NamespaceSystem})
	if err == nil && (len(list.Items) != 1 || list.Items[0].UID == "") {
		err = errors.New("there is no such namespace")
	}
	if err != nil {
		return "", fmt.Errorf("naming the cluster by the UID of namespace %s, which -cluster-name can say instead: %w", metav1.NamespaceSystem, err)
	}
	return string(list.Items[0].UID), nil
}

// countEvery is the time between two looks at how many nodes the control plane has.
const countEvery = time.Minute

// controlPlane is how many nodes the control plane has, which the bounds of the tool count.
type controlPlane struct {
	tool  *openstackautoscaler.Config
	log   *slog.Logger
	nodes kubernetes.Interface
	size  atomic.Int64
}

// groups are the one that the tool was about.
func (p *controlPlane) groups() []v1alpha1.NodeGroup {
	return []v1alpha1.NodeGroup{p.tool.NodeGroup(int(p.size.Load()))}
}

// is notes how many nodes there are.
func (p *controlPlane) is(size int) {
	p.size.Store(int64(size))
	if crowded := p.tool.Crowded(size); crowded != "" {
		p.log.Warn(crowded, "inputOf", openstackautoscaler.Tool)
	}
}

// find counts the nodes for the first time.
func (p *controlPlane) find(ctx context.Context) error {
	size, err := p.count(ctx)
	if err != nil {
		return fmt.Errorf("counting the nodes of the control plane, which -control-plane-nodes can say instead: %w", err)
	}
	p.is(size)
	return nil
}

// follow keeps up with a control plane that grows or shrinks, until ctx ends.
func (p *controlPlane) follow(ctx context.Context) {
	for {
		if !elapsed.Sleep(ctx, countEvery) {
			return
		}
		p.recount(ctx)
	}
}

// recount counts the nodes again. What cannot be counted is as before.
func (p *controlPlane) recount(ctx context.Context) {
	size, err := p.count(ctx)
	switch before := int(p.size.Load()); {
	case err != nil && ctx.Err() == nil:
		p.log.Warn("the nodes of the control plane cannot be counted; the last number counts", "nodes", before, "err", err)
	case err == nil && size != before:
		p.log.Info("the control plane has another number of nodes", "nodes", size, "before", before)
		p.is(size)
	}
}

func (p *controlPlane) count(ctx context.Context) (int, error) {
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

func migrateOpenStackAutoscaler() *cobra.Command {
	var cluster, directory string
	var controlPlane int
	cmd := &cobra.Command{
		Use:   openstackautoscaler.Tool + " FILE",
		Short: "From conf.yml: a NodeGroup, the file of --cloud-config, and a clouds.yaml; - reads it from the standard input",
		Long: "What is printed has the password of the file in it, as clouds.yaml has to. With --directory the files are written\n" +
			"there instead, that one for nobody else to read.",
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
				_, err := cmd.OutOrStdout().Write(openstackautoscaler.Print(files))
				return err
			}
			return writeFiles(directory, files)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cluster, "cluster-name", "",
		"name that tells this cluster's servers from those of all others in the project, such as the UID of namespace kube-system; empty leaves it to be put in")
	fs.IntVar(&controlPlane, "control-plane-nodes", 1, "how many of MinNodeCount and MaxNodeCount are the control plane's")
	fs.StringVar(&directory, "directory", "", "write the files there")
	return cmd
}

// writeFiles writes files that are not there yet, into a directory that is made if need be.
func writeFiles(directory string, files []openstackautoscaler.File) error {
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // the one file that is secret has a mode of its own
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
