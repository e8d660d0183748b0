package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/workload"
)

// The pools of the cluster that `up` starts, and how many machines each has.
var (
	spotPool    = controlplane.AKSPool{Name: "spot", Spot: true}
	generalPool = controlplane.AKSPool{Name: "general"}
)

const (
	spotNodes    = 8
	generalNodes = 12
)

// settleTimeout bounds the wait for the workload; it takes seconds.
const settleTimeout = 2 * time.Minute

func upCommand() *cobra.Command {
	var dir, version string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a control plane with 20 nodes and a workload, and leave it running",
		Long: "Start a control plane with 20 nodes and a workload, and leave it running.\n\n" +
			"Standard output is one line for the shell, so that this works: eval \"$(slipway-dev up)\"",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuseSecond(dir); err != nil {
				return err
			}
			cluster, err := up(cmd.Context(), cmd, dir, version)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\n", cluster.Kubeconfig())
			return nil
		},
	}
	dirFlag(cmd, &dir)
	versionFlag(cmd, &version)
	return cmd
}

// refuseSecond refuses to start where something was started before.
func refuseSecond(dir string) error {
	cluster, err := controlplane.Open(dir)
	if errors.Is(err, controlplane.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if server := cluster.Process(controlplane.APIServer); server != nil && server.Alive() {
		return fmt.Errorf("a control plane is up in %s already:\n  export KUBECONFIG=%s\n"+
			"`make down` (slipway-dev down --dir %s) stops it", dir, cluster.Kubeconfig(), dir)
	}
	return fmt.Errorf("%s holds the remains of a control plane that has ended; "+
		"`make down` (slipway-dev down --dir %s) removes them", dir, dir)
}

// up starts everything, or nothing.
func up(ctx context.Context, cmd *cobra.Command, dir, version string) (_ *controlplane.Cluster, err error) {
	begun := time.Now()
	cluster, err := controlplane.Start(ctx, controlplane.Options{
		Version: version, Dir: dir, Detached: true, Progress: cmd.ErrOrStderr(),
		Nodes: append(spotPool.Nodes(spotNodes), generalPool.Nodes(generalNodes)...),
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(cluster))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := workload.CreateSettled(ctx, cluster.Client(), workload.Shop()...); err != nil {
		return nil, err
	}
	summary, err := describe(ctx, cluster.Client())
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Kubernetes %s is up at %s, after %s: %s\n"+
		"Its logs and data are in %s; `make down` stops it and removes them.\n",
		cluster.Version(), cluster.RESTConfig().Host, time.Since(begun).Round(100*time.Millisecond), summary, cluster.Dir())
	return cluster, nil
}

// describe says what there is.
func describe(ctx context.Context, client kubernetes.Interface) (string, error) {
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

func downCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the control plane that `up` started, and remove its directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := controlplane.Open(dir)
			if errors.Is(err, controlplane.ErrNotFound) {
				fmt.Fprintf(cmd.ErrOrStderr(), "Nothing is up in %s.\n", dir)
				return nil
			}
			if err != nil {
				return err
			}
			if err := remove(cluster); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Stopped the control plane in %s and removed its data.\n", dir)
			return nil
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}

// remove stops a control plane, and removes its directory, which only ever held what Start put there.
func remove(cluster *controlplane.Cluster) error {
	if err := cluster.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Clean(cluster.Dir())); err != nil {
		return fmt.Errorf("removing the data of the control plane: %w", err)
	}
	return nil
}
