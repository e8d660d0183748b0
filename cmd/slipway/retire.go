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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/retirement/request"
)

type retireFlags struct {
	kube        kubeFlags
	output      outputFlag
	reason      string
	requestedBy string
	wait        bool
	timeout     time.Duration
}

func newRetireCommand() *cobra.Command {
	f := retireFlags{kube: newKubeFlags("retire")}
	cmd := &cobra.Command{
		Use:   "retire NODE",
		Short: "Retire a node: drain it and delete the Node and its instance",
		Long: `Retire creates a NodeRetirement. The manager cordons and drains the node, deletes the Node, and deletes its instance.
To cancel it, delete the NodeRetirement before the Node is deleted; the node is then restored. The NodeRetirement gets
the labels of the node's NodeGroup, or the labels on the Node, so that it matches the manager's --selector.

With -o json or yaml it prints the NodeRetirement, with --wait as it is at the end. The progress then goes to standard
error.

Ctrl-C during --wait ends only the wait, and the retirement continues.

Exit codes: 0 created, or with --wait succeeded; 1 error, or --timeout has passed; 2 not succeeded; 130 interrupted.`,
		Example: `  slipway retire node-7 --wait
  slipway retire node-7 -o name
  kubectl get nr
  kubectl delete nr node-7-x2m4z`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withInterruptCode(cmd.Context(), f.run(cmd, args))
		},
	}
	by := ""
	if u, err := user.Current(); err == nil {
		by = u.Username
	}
	fs := cmd.Flags()
	fs.StringVar(&f.reason, "reason", string(v1alpha1.Requested), "reason as one CamelCase word; disruption budgets can distinguish reasons")
	fs.StringVar(&f.requestedBy, "requested-by", by, "who requests it, for information")
	fs.BoolVar(&f.wait, "wait", false, "wait until it has finished and print each step; exit with 2 if it does not succeed")
	fs.DurationVar(&f.timeout, "timeout", 0, "time limit of --wait, after which it exits with 1 and the retirement continues; 0 means no limit")
	f.output.addFlag(fs)
	f.kube.addFlags(fs)
	return cmd
}

// newObjectClient returns a client for Slipway's types and Nodes.
func (k kubeFlags) newObjectClient() (client.WithWatch, error) {
	cfg, err := k.restConfig()
	if err != nil {
		return nil, err
	}
	return newObjectClientFor(cfg)
}

// newObjectClientFor returns a client for Slipway's types and Nodes with a client-go configuration.
func newObjectClientFor(cfg *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}

func (f *retireFlags) run(cmd *cobra.Command, args []string) error {
	if f.timeout < 0 {
		return fmt.Errorf("--timeout: %s: want 0 or more", f.timeout)
	}
	if f.timeout > 0 && !f.wait {
		return errors.New("--timeout: has no effect without --wait")
	}
	if err := f.output.validate(); err != nil {
		return err
	}
	name, err := parseNodeName(args[0])
	if err != nil {
		return err
	}
	c, err := f.kube.newObjectClient()
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	set, err := findGroupLabels(cmd, c, &node)
	if err != nil {
		return err
	}
	rt := request.New(request.Request{Labels: set, Spec: v1alpha1.NodeRetirementSpec{
		NodeName: node.Name, NodeUID: node.UID, Reason: v1alpha1.Reason(f.reason), RequestedBy: f.requestedBy,
	}})
	if err := createRetirement(ctx, c, rt); err != nil {
		return err
	}
	printRetirement := func() error {
		rt.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeRetirement"))
		rt.ManagedFields = nil // as in kubectl
		return f.output.printAnswer(out, rt, func(w io.Writer, _ bool) error {
			_, err := fmt.Fprintf(w, "%s created\n", formatName("NodeRetirement", rt.Name))
			return err
		}, formatName("NodeRetirement", rt.Name))
	}
	asData := f.output == outputJSON || f.output == outputYAML
	if !f.wait || !asData {
		if err := printRetirement(); err != nil || !f.wait {
			return err
		}
	}
	progress := io.Writer(textWriter{out})
	if f.output != outputTable && f.output != outputWide {
		progress = cmd.ErrOrStderr()
	}
	if f.timeout > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("node %s: the retirement has not finished within %s", node.Name, f.timeout))
		defer cancel()
		ctx = bounded
	}
	err = (&retirementWait{client: c, retirement: rt, out: progress, problems: cmd.ErrOrStderr()}).run(ctx)
	if asData {
		err = errors.Join(err, printRetirement())
	}
	return err
}

// findGroupLabels returns the labels that a retirement needs, so that the manager's selector matches it. They come from
// the node's NodeGroup. If the user may not list NodeGroups, they come from the Node.
func findGroupLabels(cmd *cobra.Command, c client.Reader, node *corev1.Node) (map[string]string, error) {
	var groups v1alpha1.NodeGroupList
	if err := c.List(cmd.Context(), &groups); apierrors.IsForbidden(err) {
		fmt.Fprintf(cmd.ErrOrStderr(), "cannot read the node's NodeGroup, using the labels on the Node: %v\n", err)
	} else if err != nil {
		return nil, explainMissingTypes(err)
	}
	return nodegroup.RetirementLabels(groups.Items, node), nil
}

// createRetirement creates a NodeRetirement. It repeats a request without an answer, because the API server may have carried
// it out. If it gets no answer, the error says how to find out.
func createRetirement(ctx context.Context, c client.Client, rt *v1alpha1.NodeRetirement) error {
	for try := 1; ; try++ {
		err := c.Create(ctx, rt)
		switch {
		case apierrors.IsAlreadyExists(err): // also at the first try: a proxy may have sent the request twice
			var found v1alpha1.NodeRetirement
			readErr := c.Get(ctx, client.ObjectKeyFromObject(rt), &found)
			if readErr == nil && (found.Spec.NodeUID != rt.Spec.NodeUID || found.Spec.RequestedBy != rt.Spec.RequestedBy) {
				return err // another client has chosen the same name
			}
			if readErr == nil {
				*rt = found
				return nil
			}
			err = readErr
		case err == nil || try == 1 && !isUnanswered(err):
			return err
		}
		if !sleepIfRetryable(ctx, err, try) {
			return &hintError{err, fmt.Sprintf("it is unknown whether NodeRetirement %s was created; to see it, run kubectl get nr %[1]s; "+
				"to cancel it, run kubectl delete nr %[1]s", rt.Name)}
		}
	}
}
