package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

type whyFlags struct {
	cluster  clusterFlags
	rules    ruleFlags
	output   outputFlag
	deadline time.Duration
}

func newWhyCommand() *cobra.Command {
	f := whyFlags{cluster: clusterFlags{kube: newKubeFlags("why")}}
	cmd := &cobra.Command{
		Use:   "why NODE|POD",
		Short: "Explain why a node can or cannot be removed, or why a pod is pending",
		Long: `Why reads the cluster once and changes nothing. For a node it shows where each pod would be scheduled, or all rules that
prevent its removal and what would help. For a pod it shows why each node does not fit, and which new instance would.

A pod is given as NAMESPACE/NAME, or as NAME in the namespace of -n or of the context. If a node and a pod have the same
name, use node/NAME or pod/NAME.

With --surge, why also decides about successors as a drain of the node does. If a notice says when the instance stops, or if
--deadline is set, it decides with this deadline.`,
		Example: `  slipway why node-7
  slipway why node-7 --surge --deadline 2m
  slipway why shop/web-5d8f6
  slipway why pod/node-7 -n debug`,
		Args: cobra.ExactArgs(1),
		RunE: f.run,
	}
	f.rules.addFlags(cmd.Flags())
	f.rules.addSurgeFlags(cmd.Flags())
	cmd.Flags().DurationVar(&f.deadline, "deadline", 0, "with --surge: time until the instance stops; 0 uses the earliest time of the node's notices, if any")
	f.output.addFlag(cmd.Flags())
	f.cluster.addFlags(cmd.Flags())
	return cmd
}

func (f *whyFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.output.validate(); err != nil {
		return err
	}
	policy, err := f.rules.parsePolicy()
	if err != nil {
		return err
	}
	if err := f.rules.surge.validateForCluster(f.cluster); err != nil {
		return err
	}
	switch {
	case f.deadline < 0:
		return fmt.Errorf("--deadline: %s: want 0 or more", f.deadline)
	case f.deadline > 0 && !f.rules.surge.enabled():
		return errors.New("--deadline: has no effect without --surge")
	}
	namespace, err := f.cluster.defaultNamespace()
	if err != nil {
		return err
	}
	s, err := parseSubject(args[0], namespace)
	if err != nil {
		return err
	}
	o, err := f.cluster.readCluster(cmd.Context())
	if err != nil {
		return err
	}
	if s, err = s.resolveInCluster(o); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if s.node != "" {
		answer, err := planner.PlanEvacuationFromObjects(o, s.node, planner.PlanOptions{Policy: policy, Rules: f.rules.plannerOptions(o)})
		if err != nil {
			return err
		}
		stop := findStopTime(findNode(o, s.node), f.deadline)
		surges, err := f.rules.predictSurges(cmd.Context(), f.cluster.kube, o, []string{s.node}, stop, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		data := evacuationWithSurges{Evacuation: answer, Surges: surges}
		if len(surges) > 0 {
			data.SurgeDeadline = stop.limits.Deadline
		}
		return f.output.printAnswer(w, data, func(w io.Writer, _ bool) error {
			return errors.Join(explain.PrintEvacuation(w, answer), printSurges(w, surges, stop), printResponders(w, o.Pods, s.node))
		}, formatName("Node", s.node))
	}
	answer, err := planner.JudgePendingPodFromObjects(o, s.pod)
	if err != nil {
		return err
	}
	return f.output.printAnswer(w, answer, func(w io.Writer, wide bool) error { return explain.PrintPendingPod(w, answer, wide) },
		formatName("Pod", s.pod.Name))
}

// evacuationWithSurges is the answer about a node.
type evacuationWithSurges struct {
	*planner.Evacuation

	Surges []podSurge `json:"surges,omitempty"`
	// SurgeDeadline is the deadline that the surges were decided for; zero is none.
	SurgeDeadline time.Time `json:"surgeDeadline,omitzero"`
}

// findNode returns a node of the cluster. It returns an empty node if it does not exist.
func findNode(o *saved.Objects, name string) *corev1.Node {
	if i := slices.IndexFunc(o.Nodes, func(n *corev1.Node) bool { return n.Name == name }); i >= 0 {
		return o.Nodes[i]
	}
	return &corev1.Node{}
}

// printResponders prints which pods of the node have responders. A drain asks them before it evicts the pod.
func printResponders(w io.Writer, pods []*corev1.Pod, node string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := "\nPOD\tASKED BEFORE ITS EVICTION\n"
	for _, p := range pods {
		if p.Spec.NodeName != node || len(p.Spec.EvictionResponders) == 0 {
			continue
		}
		names := make([]string, len(p.Spec.EvictionResponders))
		for i, r := range p.Spec.EvictionResponders {
			names[i] = r.Name
		}
		fmt.Fprintf(out, "%s%s/%s\t%s\n", header, p.Namespace, p.Name, strings.Join(names, ", "))
		header = ""
	}
	return out.Flush()
}

// subject is the node or the pod that the user asks about. Before resolveInCluster it can have both names.
type subject struct {
	node string
	pod  placement.PodKey
}

// parseSubject parses the argument of the command. namespace is the namespace of a pod name without a namespace.
func parseSubject(name, namespace string) (subject, error) {
	parts := strings.Split(name, "/")
	if slices.Contains(parts, "") {
		return subject{}, fmt.Errorf("%q: contains an empty name: want NAME, NAMESPACE/NAME, node/NAME or pod/NAME", name)
	}
	switch {
	case len(parts) == 1:
		return subject{name, placement.PodKey{Namespace: namespace, Name: name}}, nil
	case len(parts) == 2 && parts[0] == "node":
		return subject{node: parts[1]}, nil
	case len(parts) == 2 && parts[0] == "pod":
		return subject{pod: placement.PodKey{Namespace: namespace, Name: parts[1]}}, nil
	case len(parts) == 2:
		return subject{pod: placement.PodKey{Namespace: parts[0], Name: parts[1]}}, nil
	case len(parts) == 3 && parts[0] == "pod":
		return subject{pod: placement.PodKey{Namespace: parts[1], Name: parts[2]}}, nil
	}
	return subject{}, fmt.Errorf("%q: want NAME, NAMESPACE/NAME, node/NAME, pod/NAME or pod/NAMESPACE/NAME", name)
}

// resolveInCluster returns the node or the pod that exists in the cluster. It returns an error if both or neither
// exist, or if the pod is finished.
func (s subject) resolveInCluster(o *saved.Objects) (subject, error) {
	node := slices.ContainsFunc(o.Nodes, func(n *corev1.Node) bool { return n.Name == s.node })
	at := slices.IndexFunc(o.Pods, func(p *corev1.Pod) bool { return p.Namespace == s.pod.Namespace && p.Name == s.pod.Name })
	switch {
	case node && at >= 0:
		return s, fmt.Errorf("%q is both a node and a pod of namespace %s: want node/%[1]s or pod/%[1]s", s.node, s.pod.Namespace)
	case node:
		return subject{node: s.node}, nil
	case at >= 0:
		if phase := o.Pods[at].Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return s, fmt.Errorf("pod %s is finished (%s): it needs no node", s.pod, phase)
		}
		return subject{pod: s.pod}, nil
	}
	return s, s.newNotFoundError(o)
}

// newNotFoundError returns the error for a subject that does not exist. The error lists pods with the same name in
// other namespaces.
func (s subject) newNotFoundError(o *saved.Objects) error {
	var elsewhere []string
	for _, p := range o.Pods {
		if p.Name == s.pod.Name && s.pod.Name != "" {
			elsewhere = append(elsewhere, p.Namespace+"/"+p.Name)
		}
	}
	var text string
	switch {
	case s.pod.Name == "":
		return fmt.Errorf("%q is none of the %d nodes of the cluster", s.node, len(o.Nodes))
	case s.node == "":
		text = fmt.Sprintf("no pod %q in namespace %s", s.pod.Name, s.pod.Namespace)
	default:
		text = fmt.Sprintf("%q is neither a node nor a pod of namespace %s", s.node, s.pod.Namespace)
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(elsewhere, " or "))
	}
	return fmt.Errorf("%s: for a pod of another namespace use NAMESPACE/NAME or -n", text)
}
