package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// The pools of machines in the cluster that `slipway-dev up` starts.
var (
	spotPool    = controlplane.AKSPool{Name: "spot", Spot: true}
	generalPool = controlplane.AKSPool{Name: "general"}
)

const (
	spotNodes    = 8
	generalNodes = 12
)

// settleTimeout is how long `slipway-dev up` waits for the workload. The wait usually takes seconds.
const settleTimeout = 2 * time.Minute

func newUpCommand() *cobra.Command {
	var dir, version string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a control plane with 20 nodes, agents, a workload and an emulated Azure in the background",
		Long: "Start a control plane with 20 nodes, agents, a workload and an emulated Azure in the background.\n\n" +
			"Standard output is one line for the shell. Use: eval \"$(slipway-dev up)\"",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkNotRunning(dir); err != nil {
				return err
			}
			kubeconfig, err := startAll(cmd.Context(), dir, version, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\n", kubeconfig)
			return nil
		},
	}
	addDirFlag(cmd, &dir)
	addVersionFlag(cmd, &version)
	return cmd
}

// checkNotRunning returns an error if the directory has the record of a control plane that was started there.
func checkNotRunning(dir string) error {
	cluster, err := controlplane.Open(dir)
	if errors.Is(err, controlplane.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if server := cluster.Process(controlplane.APIServer); server != nil && server.IsAlive() {
		return fmt.Errorf("a control plane runs in %s already:\n  export KUBECONFIG=%s\n"+
			"`make down` (slipway-dev down --dir %s) stops it", dir, cluster.Kubeconfig(), dir)
	}
	return fmt.Errorf("%s has the files of a stopped control plane; "+
		"`make down` (slipway-dev down --dir %s) removes them", dir, dir)
}

// startedAfterImpact is how long the document still lists an event after its impact. The real service takes minutes.
const startedAfterImpact = 5 * time.Second

// startAll starts the cluster with its agents and workload. If a part fails, it stops everything that it has
// started. It returns the path of the administrator's kubeconfig.
func startAll(ctx context.Context, dir, version string, out io.Writer) (kubeconfig string, err error) {
	begun := time.Now()
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program, which must run the emulator too: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stopAll(dir))
		}
	}()
	t, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{
			Version: version, Dir: dir, Detached: true, Progress: out,
			Nodes: append(spotPool.Nodes(spotNodes), generalPool.Nodes(generalNodes)...),
		},
		Azure: azure.Options{StartedAfterImpact: startedAfterImpact}, Listen: defaultAddressIfFree(ctx),
	})
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Stop())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	clouds, err := t.WriteCloudConfig()
	if err != nil {
		return "", err
	}
	if err := t.DetachAzure(ctx, program); err != nil {
		return "", err
	}
	if err := workload.CreateAndAwait(ctx, t.Client(), workload.ShopObjects()...); err != nil {
		return "", err
	}
	expires, err := startAgents(ctx, t)
	if err != nil {
		return "", err
	}
	summary, err := describeCluster(ctx, t.Client())
	if err != nil {
		return "", err
	}
	fmt.Fprintf(out, "Kubernetes %s is up at %s, after %s: %s\n"+
		"A slipway-agent guards each node (the tokens expire on %s). To preempt a machine and see how its pods\n"+
		"ended:\n%sslipway manager --cloud-config %s deletes and launches machines of this Azure.\n"+
		"Logs and data are in %s; `make down` stops everything and removes them.\n",
		t.Version(), t.RESTConfig().Host, time.Since(begun).Round(100*time.Millisecond), summary,
		expires.Local().Format("Monday 15:04"), testbed.NoticeInstructions(t.ControlURL(), spotPool.ResourceName(0)), relativePath(clouds), t.Dir())
	return t.Kubeconfig(), nil
}

// relativePath returns a path relative to the working directory. It returns a path outside of the working directory
// unchanged.
func relativePath(path string) string {
	workDir, err := os.Getwd()
	if err != nil {
		return path
	}
	if short, err := filepath.Rel(workDir, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

// defaultAddressIfFree returns the default address of the Azure emulator. If another process uses this address, it
// returns "".
func defaultAddressIfFree(ctx context.Context) string {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", azure.DefaultListen)
	if err != nil {
		return "" // any free address
	}
	if err := l.Close(); err != nil {
		return ""
	}
	return azure.DefaultListen
}

// maxConcurrentStarts is the maximum number of agents that startAgents starts at the same time.
const maxConcurrentStarts = 8

// startAgents starts an agent for every node. It returns the time at which the first token of an agent expires.
func startAgents(ctx context.Context, t *testbed.Testbed) (expires time.Time, err error) {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentStarts)
	start := func(pool controlplane.AKSPool, instance int) func() error {
		return func() error {
			agent, err := t.StartAgent(ctx, pool, instance)
			if err != nil {
				return err
			}
			end, err := agent.TokenExpiry()
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if expires.IsZero() || end.Before(expires) {
				expires = end
			}
			return nil
		}
	}
	for instance := range spotNodes {
		group.Go(start(spotPool, instance))
	}
	for instance := range generalNodes {
		group.Go(start(generalPool, instance))
	}
	err = group.Wait()
	return expires, err
}

// describeCluster returns a text with the numbers of nodes, pods and other objects in the cluster.
func describeCluster(ctx context.Context, client kubernetes.Interface) (string, error) {
	all := metav1.ListOptions{}
	pods, err := client.CoreV1().Pods(workload.ShopNamespace).List(ctx, all)
	if err != nil {
		return "", fmt.Errorf("counting pods: %w", err)
	}
	deployments, err := client.AppsV1().Deployments(workload.ShopNamespace).List(ctx, all)
	if err != nil {
		return "", fmt.Errorf("counting Deployments: %w", err)
	}
	budgets, err := client.PolicyV1().PodDisruptionBudgets(workload.ShopNamespace).List(ctx, all)
	if err != nil {
		return "", fmt.Errorf("counting disruption budgets: %w", err)
	}
	jobs, err := client.BatchV1().Jobs(workload.ShopNamespace).List(ctx, all)
	if err != nil {
		return "", fmt.Errorf("counting Jobs: %w", err)
	}
	return fmt.Sprintf("%d nodes (pool %s: %d, pool %s: %d); in namespace %s %d pods of %d Deployments, "+
		"a StatefulSet, a DaemonSet and %d Jobs, with %d disruption budgets.", spotNodes+generalNodes, spotPool.Name, spotNodes,
		generalPool.Name, generalNodes, workload.ShopNamespace, len(pods.Items), len(deployments.Items), len(jobs.Items),
		len(budgets.Items)), nil
}

func newDownCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop everything that `up` started, and remove its directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := testbed.StopDetached(dir)
			if errors.Is(err, controlplane.ErrNotFound) {
				fmt.Fprintf(cmd.ErrOrStderr(), "No control plane runs in %s.\n", dir)
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Stopped the control plane in %s and removed its data.\n", dir)
			return nil
		},
	}
	addDirFlag(cmd, &dir)
	return cmd
}

// stopAll stops the cluster that a failed `slipway-dev up` has started in a directory, and removes the directory.
func stopAll(dir string) error {
	if err := testbed.StopDetached(dir); !errors.Is(err, controlplane.ErrNotFound) {
		return err
	}
	return nil
}
