package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

// exitNotRetired is the exit code of slipway retire --wait for a retirement that ended early.
const exitNotRetired = 2

const (
	// lookEvery is the time between two looks of --wait.
	lookEvery = time.Second
	// takenUpWithin is after how long --wait speaks of a retirement that no manager has looked at, which takes one no time.
	takenUpWithin = 10 * time.Second
)

type retireFlags struct {
	kube    kubeFlags
	reason  string
	by      string
	wait    bool
	timeout time.Duration
}

func retireCommand() *cobra.Command {
	f := retireFlags{kube: newKubeFlags("retire")}
	cmd := &cobra.Command{
		Use:   "retire NODE",
		Short: "Ask the manager to take a node out of service for good, with its machine",
		Long: `Retire creates a NodeRetirement, which slipway manager carries out: cordoned, drained, the Node deleted, its machine
deleted. To call it off, delete the NodeRetirement before the Node is deleted: the node is given back. It gets the labels of the
node's NodeGroup, or those that the manager asks for which has marked the Node, so that a manager with --selector sees it.`,
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
	fs.DurationVar(&f.timeout, "timeout", 0, "how long --wait waits before it gives up with 1, while the retirement goes on; 0 is no bound")
	f.kube.add(fs)
	return cmd
}

// objects is a client for Slipway's own types and Nodes.
func (k kubeFlags) objects() (client.Client, error) {
	cfg, err := k.config()
	if err != nil {
		return nil, err
	}
	return objectsOf(cfg)
}

// objectsOf is the same for a configuration.
func objectsOf(cfg *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

func (f *retireFlags) run(cmd *cobra.Command, args []string) error {
	if f.timeout < 0 {
		return fmt.Errorf("--timeout: %s: must not be negative", f.timeout)
	}
	name, err := nodeName(args[0])
	if err != nil {
		return err
	}
	c, err := f.kube.objects()
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	set, err := ownerLabels(cmd, c, &node)
	if err != nil {
		return err
	}
	rt := request.New(request.Request{Labels: set, Spec: v1alpha1.NodeRetirementSpec{
		NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.Reason(f.reason), RequestedBy: f.by,
	}})
	if err := c.Create(ctx, rt); err != nil {
		return fmt.Errorf("node %s: %w", node.Name, err)
	}
	fmt.Fprintf(out, "noderetirement.slipway.dev/%s created\n", rt.Name)
	if !f.wait {
		return nil
	}
	if f.timeout > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("node %s: the retirement is not over after %s, and goes on", node.Name, f.timeout))
		defer cancel()
		ctx = bounded
	}
	return await(ctx, c, rt, out, cmd.ErrOrStderr())
}

// ownerLabels are those by which the manager of the node's group finds its retirements. Who may not list NodeGroups makes one
// with what is on the Node.
func ownerLabels(cmd *cobra.Command, c client.Reader, node *corev1.Node) (map[string]string, error) {
	var groups v1alpha1.NodeGroupList
	if err := c.List(cmd.Context(), &groups); apierrors.IsForbidden(err) {
		fmt.Fprintf(cmd.ErrOrStderr(), "the labels of the node's NodeGroup are not known: %v\n", err)
	} else if err != nil {
		return nil, installed(fmt.Errorf("NodeGroups: %w", err))
	}
	return nodegroup.RetirementLabels(groups.Items, node), nil
}

// await prints what the retirement does until it is over, and to problems that nobody does anything.
func await(ctx context.Context, c client.Client, rt *v1alpha1.NodeRetirement, out, problems io.Writer) error {
	said := ""
	ignored := time.After(takenUpWithin)
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(rt), rt); apierrors.IsNotFound(err) {
			return &exitError{exitNotRetired, fmt.Errorf("node %s: NodeRetirement %s was deleted", rt.Spec.NodeName, rt.Name)}
		} else if ctx.Err() != nil {
			return context.Cause(ctx)
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
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ignored:
			if rt.Status.Phase == "" {
				fmt.Fprintf(problems, "no manager has looked at it for %s: none may be there, or its --selector may pass over NodeRetirements with %s\n",
					takenUpWithin, labelled(rt.Labels))
			}
		case <-time.After(lookEvery):
		}
	}
}

func labelled(set labels.Set) string {
	if len(set) == 0 {
		return "no labels"
	}
	return "the labels " + set.String()
}
