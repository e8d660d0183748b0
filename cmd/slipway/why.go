package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/explain"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

type whyFlags struct {
	cluster clusterFlags
	rules   ruleFlags
	output  outputFlag
}

func whyCommand() *cobra.Command {
	f := whyFlags{cluster: clusterFlags{kube: newKubeFlags("why")}}
	cmd := &cobra.Command{
		Use:   "why NODE|POD",
		Short: "Say why a node can or cannot be removed, or why a pod is pending",
		Long: `Why reads the cluster once and changes nothing. Of a node it says where each pod would go, or everything that holds
the node and what would help. Of a pod it says what each node has against it, and which new machine would take it.

A pod is named as NAMESPACE/NAME, or by its name in the namespace of -n or of the context. Where a node and a pod have
the same name, node/NAME and pod/NAME tell them apart.`,
		Example: `  slipway why node-7
  slipway why shop/web-5d8f6
  slipway why pod/node-7 -n debug`,
		Args: cobra.ExactArgs(1),
		RunE: f.run,
	}
	f.rules.add(cmd.Flags())
	f.output.add(cmd.Flags())
	f.cluster.add(cmd.Flags())
	return cmd
}

func (f *whyFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.output.check(); err != nil {
		return err
	}
	policy, err := f.rules.parse()
	if err != nil {
		return err
	}
	namespace, err := f.cluster.namespace()
	if err != nil {
		return err
	}
	s, err := parseSubject(args[0], namespace)
	if err != nil {
		return err
	}
	o, err := f.cluster.read(cmd.Context())
	if err != nil {
		return err
	}
	if s, err = s.among(o); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if s.node != "" {
		answer, err := planner.NewEvacuation(o, s.node, planner.PlanOptions{Policy: policy, Rules: f.rules.options(o)})
		if err != nil {
			return err
		}
		return f.output.print(w, answer, func(w io.Writer, _ bool) error { return explain.Node(w, answer) })
	}
	answer, err := planner.NewPending(o, s.pod)
	if err != nil {
		return err
	}
	return f.output.print(w, answer, func(w io.Writer, _ bool) error { return explain.Pod(w, answer) })
}

// subject is what is asked about: a node, a pod, or, as long as nobody has looked, either.
type subject struct {
	node string
	pod  placement.PodKey
}

// parseSubject reads a name as people write it. namespace is that of pods whose name comes without.
func parseSubject(name, namespace string) (subject, error) {
	parts := strings.Split(name, "/")
	if slices.Contains(parts, "") {
		return subject{}, fmt.Errorf("%q: a name in it is empty: want NAME, NAMESPACE/NAME, node/NAME or pod/NAME", name)
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

// among leaves of the subject what there is in the cluster.
func (s subject) among(o *saved.Objects) (subject, error) {
	node := slices.ContainsFunc(o.Nodes, func(n *corev1.Node) bool { return n.Name == s.node })
	at := slices.IndexFunc(o.Pods, func(p *corev1.Pod) bool { return p.Namespace == s.pod.Namespace && p.Name == s.pod.Name })
	switch {
	case node && at >= 0:
		return s, fmt.Errorf("%q is both a node and a pod of namespace %s: say node/%[1]s or pod/%[1]s", s.node, s.pod.Namespace)
	case node:
		return subject{node: s.node}, nil
	case at >= 0:
		if phase := o.Pods[at].Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return s, fmt.Errorf("pod %s is finished (%s): it needs no place any more", s.pod, phase)
		}
		return subject{pod: s.pod}, nil
	}
	return s, s.unknown(o)
}

// unknown says that there is no such thing, and where there is one of the name.
func (s subject) unknown(o *saved.Objects) error {
	var elsewhere []string
	for _, p := range o.Pods {
		if p.Name == s.pod.Name && s.pod.Name != "" {
			elsewhere = append(elsewhere, p.Namespace+"/"+p.Name)
		}
	}
	var text string
	switch {
	case s.pod.Name == "":
		return fmt.Errorf("%q is not a node of the %d in the cluster", s.node, len(o.Nodes))
	case s.node == "":
		text = fmt.Sprintf("there is no pod %q in namespace %s", s.pod.Name, s.pod.Namespace)
	default:
		text = fmt.Sprintf("%q is neither a node nor a pod of namespace %s", s.node, s.pod.Namespace)
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		return fmt.Errorf("%s: did you mean %s?", text, strings.Join(elsewhere, " or "))
	}
	return fmt.Errorf("%s: name a pod of another namespace as NAMESPACE/NAME or with -n", text)
}
