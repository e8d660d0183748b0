package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/doctor"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// maxUnavailableNodes is how many unavailable nodes are listed without -o wide.
const maxUnavailableNodes = 10

// nodesStatus describes the nodes of the cluster, or of the named groups.
type nodesStatus struct {
	Total int `json:"total"`
	Ready int `json:"ready"`
	// Unavailable maps the names of unavailable nodes to the reason.
	Unavailable map[string]string `json:"unavailable"`
}

// toNodesStatus counts nodes. A retirement that is not admitted yet does not make its node unavailable.
func toNodesStatus(nodes []corev1.Node, retirements []v1alpha1.NodeRetirement) nodesStatus {
	s := nodesStatus{Total: len(nodes), Unavailable: map[string]string{}}
	var admitted []v1alpha1.NodeRetirement
	for i := range retirements {
		if retirement.WillRemoveNode(&retirements[i]) {
			admitted = append(admitted, retirements[i])
		}
	}
	for i := range nodes {
		n := &nodes[i]
		facts := fromcorev1.NodeFacts(n)
		if facts.ReadyStatus == noderules.ReadyTrue {
			s.Ready++
		}
		reason := retirement.FindRemovalReason(n, admitted)
		if reason == "" {
			reason, _ = facts.UnavailableReason(false)
		}
		if reason != "" {
			s.Unavailable[n.Name] = reason
		}
	}
	return s
}

// podsStatus counts the pods of one part of Slipway.
type podsStatus struct {
	Pods     int      `json:"pods"`
	Ready    int      `json:"ready"`
	Versions []string `json:"versions,omitempty"`
	// Unknown is true if the pods could not be listed.
	Unknown bool `json:"unknown,omitempty"`

	first doctor.OwnPod
}

func (p podsStatus) String() string {
	switch {
	case p.Unknown:
		return "unknown"
	case p.Pods == 0:
		return "none"
	}
	return fmt.Sprintf("%d/%d", p.Ready, p.Pods)
}

func (p *podsStatus) addPod(pod doctor.OwnPod) {
	if p.Pods++; p.Pods == 1 {
		p.first = pod
	}
	if pod.Ready {
		p.Ready++
	}
	if !slices.Contains(p.Versions, pod.Version) {
		p.Versions = append(p.Versions, pod.Version)
	}
}

// describeNotReady says that no pod is Ready, and how to find out why.
func (p *podsStatus) describeNotReady(part string) string {
	return fmt.Sprintf("no %s is Ready (%s; kubectl -n %s describe pod %s)", part, observe.FormatCount(p.Pods, "pod"), p.first.Namespace, p.first.Name)
}

// readOwnPods counts the agents and managers. A failure does not fail the command.
func (s *clusterStatus) readOwnPods(ctx context.Context, c client.Reader) {
	pods, err := doctor.ListOwnPods(ctx, c)
	if err != nil {
		s.Agents.Unknown, s.Managers.Unknown = true, true
		s.Missing = append(s.Missing, "the pods of agents and managers could not be read: "+err.Error())
		return
	}
	for _, p := range pods {
		switch p.Part {
		case doctor.Agent:
			s.Agents.addPod(p)
		case doctor.Manager:
			s.Managers.addPod(p)
		}
	}
	const noAgent, noManager = "without agents, nothing handles notices of the cloud", "without a manager, no node is retired and no instance is " +
		"launched (agents need no manager)"
	switch {
	case s.Agents.Pods == 0:
		s.Missing = append(s.Missing, "no pod of an agent was found (label app.kubernetes.io/name=slipway-agent): "+noAgent)
	case s.Agents.Ready == 0:
		s.Missing = append(s.Missing, s.Agents.describeNotReady("agent")+": "+noAgent)
	}
	switch {
	case s.Managers.Pods == 0:
		s.missingManager = "no pod of a manager was found (label app.kubernetes.io/name=slipway-manager): " + noManager
	case s.Managers.Ready == 0:
		s.missingManager = s.Managers.describeNotReady("manager") + ": " + noManager
	default:
		return
	}
	s.Missing = append(s.Missing, s.missingManager)
}

// printSummary prints the numbers of nodes and pods, and the unavailable nodes.
func (s clusterStatus) printSummary(w io.Writer, wide bool) {
	fmt.Fprintln(w, "NODES\tREADY\tUNAVAILABLE\tAGENTS READY\tMANAGERS READY")
	fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\n", s.Nodes.Total, s.Nodes.Ready, len(s.Nodes.Unavailable), s.Agents, s.Managers)
	names := slices.Sorted(maps.Keys(s.Nodes.Unavailable))
	if len(names) == 0 {
		return
	}
	shown := names
	if !wide {
		shown = names[:min(len(names), maxUnavailableNodes)]
	}
	fmt.Fprintln(w, "\nUNAVAILABLE NODE\tREASON")
	for _, name := range shown {
		fmt.Fprintf(w, "%s\t%s\n", name, s.Nodes.Unavailable[name])
	}
	if hidden := len(names) - len(shown); hidden > 0 {
		fmt.Fprintf(w, "and %d more (list all with -o wide)\n", hidden)
	}
}

// printMissing prints what is missing. If there are groups, only wide output has all of it. But a NodeGroup needs a manager, and
// the conditions of the NodeGroup stay as the last manager has written them.
func (s clusterStatus) printMissing(w io.Writer, wide bool) {
	missing := s.Missing
	if len(s.Groups) > 0 && !wide {
		missing = nil
		if s.missingManager != "" && slices.ContainsFunc(s.Groups, func(g groupStatus) bool { return !g.Unlisted }) {
			missing = []string{s.missingManager}
		}
	}
	if len(missing) == 0 {
		return
	}
	fmt.Fprintln(w, "\nMISSING")
	for _, m := range missing {
		fmt.Fprintln(w, m)
	}
}

// optionalTypesReader reads a type of Slipway without a CRD as an empty list.
type optionalTypesReader struct {
	client.Reader
	missing []string // plural names of CRDs
}

// List implements [client.Reader].
func (r *optionalTypesReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := r.Reader.List(ctx, list, options...)
	if err == nil || !isTypeMissing(err) {
		return err
	}
	name := ""
	switch list.(type) {
	case *v1alpha1.NodeGroupList:
		name = "nodegroups"
	case *v1alpha1.NodeRetirementList:
		name = "noderetirements"
	default:
		return err
	}
	if !slices.Contains(r.missing, name) {
		r.missing = append(r.missing, name)
	}
	return nil
}

func (r *optionalTypesReader) describeMissing() []string {
	if len(r.missing) == 0 {
		return nil
	}
	return []string{"Slipway's CRDs are not installed (" + strings.Join(r.missing, ", ") + "): install them with kubectl apply " +
		"--server-side -f api/crds (agents need no CRD)"}
}

// groupSelection holds the groups that the user named, and their nodes. Without names it holds everything.
type groupSelection struct {
	names []string
	nodes []corev1.Node
}

// selectGroups returns the selection of the named groups. It returns an error if a group does not exist.
func selectGroups(c *nodegroup.Cluster, names []string) (groupSelection, error) {
	s := groupSelection{names, c.Nodes}
	if len(names) == 0 {
		return s, nil
	}
	s.nodes = nil
	known := map[string]bool{}
	for i := range c.Groups {
		known[c.Groups[i].Name] = true
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		group := c.Assignment.OwnerByNode[n.Name]
		if group == "" {
			group = nodegroup.FindGroupOnNode(n)
		}
		known[group] = true
		if slices.Contains(names, group) {
			s.nodes = append(s.nodes, *n)
		}
	}
	for i := range c.Retirements {
		if captured := c.Retirements[i].Status.Captured; captured != nil {
			known[captured.Group] = true
		}
	}
	for _, name := range names {
		if name == "" || !known[name] {
			return s, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("nodegroups").GroupResource(), name)
		}
	}
	return s, nil
}

func (s groupSelection) hasGroup(name string) bool {
	return len(s.names) == 0 || slices.Contains(s.names, name)
}

// hasRetirement reports whether a retirement is one of a selected group. A retirement of a node without a group is only
// selected if no group is named.
func (s groupSelection) hasRetirement(l retiringStatus) bool {
	return s.hasGroup(l.Group) || slices.ContainsFunc(s.nodes, func(n corev1.Node) bool { return n.Name == l.Node })
}
