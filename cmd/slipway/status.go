package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/budget"
)

// clusterStatus is what slipway status says.
type clusterStatus struct {
	Groups  []groupStatus   `json:"groups"`
	Leaving []leavingStatus `json:"retiring"`
	Notices []noticeStatus  `json:"notices"`
}

type groupStatus struct {
	Name        string `json:"name"`
	Cloud       string `json:"cloud"`
	Minimum     int32  `json:"minSize"`
	Maximum     *int32 `json:"maxSize,omitempty"`
	Nodes       int    `json:"nodes"`
	Unavailable int    `json:"unavailable"`
	Leaving     int    `json:"retiring"`
	// MayLeave is how many more nodes may leave now.
	MayLeave int `json:"allowedDisruptions"`
	// Unlisted says that the group has no object, so that its bounds, its cloud and its rules are not known here.
	Unlisted bool              `json:"unlisted,omitempty"`
	Away     map[string]string `json:"unavailableNodes,omitempty"` // node to why
	idleStatus
	scalingStatus
}

type leavingStatus struct {
	Retirement string                      `json:"retirement"`
	Node       string                      `json:"node"`
	Group      string                      `json:"group,omitempty"`
	Phase      v1alpha1.Phase              `json:"phase"`
	Reason     v1alpha1.Reason             `json:"reason"`
	Since      time.Time                   `json:"since"` // in the phase
	Message    string                      `json:"message"`
	Blocked    []v1alpha1.RetirementReason `json:"blockedBy,omitempty"`
}

func statusCommand() *cobra.Command {
	kube := newKubeFlags("status")
	var output outputFlag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node groups, which nodes are idle or leaving, which notices there are, and what keeps or blocks them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			c, err := kube.objects()
			if err != nil {
				return err
			}
			status, err := readStatus(cmd.Context(), c)
			if err != nil {
				return explained(err)
			}
			return output.print(cmd.OutOrStdout(), status, status.table)
		},
	}
	output.add(cmd.Flags())
	kube.add(cmd.Flags())
	return cmd
}

// explained says what to do about a right or a definition that is missing.
func explained(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w\nstatus needs the rights of the ClusterRole slipway-viewer in deploy/viewer: bind it to yourself; "+
			"slipway doctor lists each one that you lack", err)
	}
	return installed(err)
}

// installed says what to do when Slipway's types are not there.
func installed(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the API server does not know Slipway's types, so that no manager works here: "+
			"install the CRDs with kubectl apply --server-side -f api/crds (%w)", err)
	}
	return err
}

func readStatus(ctx context.Context, c client.Reader) (clusterStatus, error) {
	var groups v1alpha1.NodeGroupList
	if err := c.List(ctx, &groups); err != nil {
		return clusterStatus{}, fmt.Errorf("NodeGroups: %w", err)
	}
	var all v1alpha1.NodeRetirementList
	if err := c.List(ctx, &all); err != nil {
		return clusterStatus{}, fmt.Errorf("NodeRetirements: %w", err)
	}
	cluster, err := nodegroup.ReadCluster(ctx, c, live.ListedPods(c), groups.Items)
	if err != nil {
		return clusterStatus{}, err
	}
	status := clusterStatus{Groups: []groupStatus{}, Leaving: []leavingStatus{}, Notices: noticesOn(cluster.Nodes)}
	retiring := map[string]bool{}
	for i := range all.Items {
		rt := &all.Items[i]
		if retirement.Leaving(rt) {
			retiring[rt.Spec.NodeName] = true
		}
		if !rt.Status.Phase.Finished() {
			status.Leaving = append(status.Leaving, leavingOf(rt))
		}
	}
	for i := range groups.Items {
		g := &groups.Items[i]
		nodes, err := retirement.NodesOf(ctx, c, g, retiring)
		if err != nil {
			return clusterStatus{}, err
		}
		s := groupOf(g, nodes)
		s.idleStatus, s.scalingStatus = idleOf(ctx, cluster, g), scalingOf(cluster, g)
		status.Groups = append(status.Groups, s)
	}
	status.Groups = append(status.Groups, unlisted(cluster, retiring)...)
	return status, nil
}

func leavingOf(rt *v1alpha1.NodeRetirement) leavingStatus {
	l := leavingStatus{
		Retirement: rt.Name, Node: rt.Spec.NodeName, Phase: rt.Status.Phase, Reason: rt.Spec.Reason,
		Since: retirement.ReachedAt(rt), Message: rt.Status.Message, Blocked: rt.Status.Reasons,
	}
	if rt.Status.Captured != nil {
		l.Group = rt.Status.Captured.Group
	}
	if l.Phase == "" {
		l.Phase, l.Message = v1alpha1.Pending, "no manager has looked at it yet"
	}
	return l
}

func groupOf(g *v1alpha1.NodeGroup, nodes []budget.Node) groupStatus {
	s := groupStatus{
		Name: g.Name, Cloud: g.Spec.Cloud.Provider + "/" + g.Spec.Cloud.Group, Minimum: g.Spec.Minimum, Maximum: g.Spec.Maximum,
		MayLeave: budget.Room(&g.Spec, nodes, v1alpha1.Requested, time.Now()), Away: map[string]string{},
	}
	for _, n := range nodes {
		s.add(n)
	}
	return s
}

func (s clusterStatus) table(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "GROUP\tACCEPTED\tCLOUD\tMIN\tMAX\tNODES\tUNAVAILABLE\tLEAVING\tMAY LEAVE")
	for _, g := range s.Groups {
		least, most, may := fmt.Sprint(g.Minimum), noObject, fmt.Sprint(g.MayLeave)
		if g.Maximum != nil {
			most = fmt.Sprint(*g.Maximum)
		}
		if g.Unlisted {
			least, may = noObject, noObject
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", g.Name, g.Accepted, g.Cloud, least, most, g.Nodes, g.Unavailable,
			g.Leaving, may)
	}
	s.idleTable(t)
	s.scalingTable(t)
	if len(s.Leaving) > 0 {
		fmt.Fprintln(t, "\nNODE\tGROUP\tPHASE\tFOR\tREASON\tMESSAGE")
	}
	for _, l := range s.Leaving {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Node, l.Group, l.Phase, duration.HumanDuration(time.Since(l.Since)), l.Reason, l.Message)
	}
	s.noticeTable(t)
	return t.Flush()
}
