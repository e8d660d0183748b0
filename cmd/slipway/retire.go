package main

import (
	"errors"
	"fmt"
	"io"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// exitNotRetired is the exit code of slipway retire --wait for a retirement that ended early.
const exitNotRetired = 2

// lookEvery is the time between two looks of --wait.
const lookEvery = time.Second

type retireFlags struct {
	kube   kubeFlags
	reason string
	by     string
	wait   bool
}

func retireCommand() *cobra.Command {
	f := retireFlags{kube: newKubeFlags("retire")}
	cmd := &cobra.Command{
		Use:   "retire NODE",
		Short: "Ask the manager to take a node out of service for good, with its machine",
		Long: `Retire creates a NodeRetirement, which slipway manager carries out: cordoned, drained, the Node deleted, its machine
deleted. To call it off, delete the NodeRetirement before the Node is deleted: the node is given back.`,
		Example: `  slipway retire node-7 --wait
  kubectl get nr
  kubectl delete nr node-7-x2m4z`,
		Args: cobra.ExactArgs(1),
		RunE: f.run,
	}
	by := ""
	if u, err := user.Current(); err == nil {
		by = u.Username
	}
	fs := cmd.Flags()
	fs.StringVar(&f.reason, "reason", string(v1alpha1.Requested), "why, in one word in CamelCase, by which disruption budgets tell retirements apart")
	fs.StringVar(&f.by, "requested-by", by, "who wants it, for people to read")
	fs.BoolVar(&f.wait, "wait", false, "wait until it is over, and print each step; exit with 2 when it ends early")
	f.kube.add(fs)
	return cmd
}

// objects is a client for Slipway's own types and Nodes.
func (k kubeFlags) objects() (client.Client, error) {
	cfg, err := k.config()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

func (f *retireFlags) run(cmd *cobra.Command, args []string) error {
	c, err := f.kube.objects()
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: args[0]}, &node); err != nil {
		return fmt.Errorf("node %s: %w", args[0], err)
	}
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node.Name + "-"},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.Reason(f.reason), RequestedBy: f.by,
		},
	}
	if err := c.Create(ctx, rt); err != nil {
		return fmt.Errorf("node %s: %w", node.Name, err)
	}
	fmt.Fprintf(out, "noderetirement.slipway.dev/%s created\n", rt.Name)
	if !f.wait {
		return nil
	}
	return await(cmd, c, rt, out)
}

// await prints what the retirement does until it is over.
func await(cmd *cobra.Command, c client.Client, rt *v1alpha1.NodeRetirement, out io.Writer) error {
	said := ""
	for {
		if err := c.Get(cmd.Context(), client.ObjectKeyFromObject(rt), rt); apierrors.IsNotFound(err) {
			return &exitError{exitNotRetired, fmt.Errorf("node %s: NodeRetirement %s was deleted", rt.Spec.NodeName, rt.Name)}
		} else if err != nil {
			return fmt.Errorf("NodeRetirement %s: %w", rt.Name, err)
		}
		if line := fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message); line != said && rt.Status.Phase != "" {
			said = line
			fmt.Fprintln(out, line)
		}
		if rt.Status.Phase == v1alpha1.Succeeded {
			return nil
		}
		if rt.Status.Phase.Finished() {
			return &exitError{exitNotRetired, fmt.Errorf("node %s: %s: %s", rt.Spec.NodeName, rt.Status.Phase, rt.Status.Message)}
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(lookEvery):
		}
	}
}
