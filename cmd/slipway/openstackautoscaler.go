package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/compat/openstackautoscaler"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/observe"
)

// osaFlags are the flags of the OpenStack cluster autoscaler, which had the first only, and what it could not be told.
type osaFlags struct {
	kubeconfig, config, cluster, listen string
	controlPlane                        int
	named                               bool // the cluster, rather than by default
}

func parseOSA(args []string, stderr io.Writer) (osaFlags, error) {
	var f osaFlags
	fs := flag.NewFlagSet(openstackautoscaler.Tool, flag.ContinueOnError)
	fs.SetOutput(stderr)
	home, _ := os.UserHomeDir() // without one there is no default
	fs.StringVar(&f.kubeconfig, "kubeconfig", filepath.Join(home, ".kube", "config"),
		"kubeconfig `file`; in a pod its own ServiceAccount is used")
	fs.StringVar(&f.config, "config", openstackautoscaler.DefaultFile, "the autoscaler's configuration `file`")
	fs.StringVar(&f.cluster, "cluster-name", openstackautoscaler.DefaultCluster,
		"`name` that tells this cluster's servers from those of others in the project; with it, servers without a Node are collected")
	fs.IntVar(&f.controlPlane, "control-plane-nodes", -1, "how many of the nodes are the control plane's; -1 counts them")
	fs.StringVar(&f.listen, "listen", ":9819", "`address` of /metrics, /healthz and /readyz; empty is none")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("%q: want flags only", fs.Arg(0))
	}
	fs.Visit(func(given *flag.Flag) { f.named = f.named || given.Name == "cluster-name" })
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
	m, err := managerOf(ctx, f, &c)
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
	return manager.Run(ctx, m, start.Version(), stderr)
}

// managerOf is the manager that does what the autoscaler did. Its types are installed, as nobody has been asked to.
func managerOf(ctx context.Context, f osaFlags, c *openstackautoscaler.Config) (manager.Config, error) {
	var m manager.Config
	m.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	if c.CloudType != openstackautoscaler.OpenStack {
		return m, fmt.Errorf("%s: CloudType: %q: want %s: the autoscaler's plugins are programs of their own now, which slipway manager is "+
			"told of by --cloud-config", f.config, c.CloudType, openstackautoscaler.OpenStack)
	}
	m.InstallCRDs, m.Listen, m.LogFormat = true, f.listen, "text"
	if !f.named {
		m.Strays = manager.ReportStrays // another cluster of the project may go by the same name
	}
	if m.LeaderElectionNamespace == "" {
		m.LeaderElectionNamespace = metav1.NamespaceSystem
	}
	if !inCluster() {
		m.Kubeconfig = f.kubeconfig
	}
	controlPlane, err := f.controlPlaneNodes(ctx, m.Kubeconfig)
	if err != nil {
		return m, err
	}
	config, group := c.Cloud(f.cluster), c.NodeGroup(controlPlane)
	m.Clouds = &manager.Clouds{OpenStack: &config}
	m.Given = func() []v1alpha1.NodeGroup { return []v1alpha1.NodeGroup{group} }
	return m, nil
}

// inCluster says whether this runs in a pod, as client-go finds out.
func inCluster() bool {
	_, err := rest.InClusterConfig()
	return err == nil
}

func (f *osaFlags) controlPlaneNodes(ctx context.Context, kubeconfig string) (int, error) {
	if f.controlPlane >= 0 {
		return f.controlPlane, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("-kubeconfig: %w", err)
	}
	config.UserAgent = "slipway-" + openstackautoscaler.Tool + "/" + start.Version()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, fmt.Errorf("-kubeconfig: %w", err)
	}
	count := map[string]bool{}
	for _, label := range openstackautoscaler.ControlPlaneLabels() {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: label})
		if err != nil {
			return 0, fmt.Errorf("counting the nodes of the control plane, which -control-plane-nodes can say instead: %w", err)
		}
		for i := range nodes.Items {
			count[nodes.Items[i].Name] = true
		}
	}
	return len(count), nil
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
	fs.StringVar(&cluster, "cluster-name", openstackautoscaler.DefaultCluster,
		"name that tells this cluster's servers from those of others in the project")
	fs.IntVar(&controlPlane, "control-plane-nodes", 1, "how many of MinNodeCount and MaxNodeCount are the control plane's")
	fs.StringVar(&directory, "directory", "", "write the files there")
	return cmd
}

func writeFiles(directory string, files []openstackautoscaler.File) error {
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
