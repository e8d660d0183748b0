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
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// clusterStatus is the output of slipway status.
type clusterStatus struct {
	Groups   []groupStatus    `json:"groups"`
	Retiring []retiringStatus `json:"retiring"`
	Notices  []noticeStatus   `json:"notices"`
}

type groupStatus struct {
	Name        string `json:"name"`
	Cloud       string `json:"cloud"`
	MinSize     int32  `json:"minSize"`
	MaxSize     *int32 `json:"maxSize,omitempty"`
	Nodes       int    `json:"nodes"`
	Unavailable int    `json:"unavailable"`
	Retiring    int    `json:"retiring"`
	// AllowedDisruptions is the number of further nodes that may be retired now.
	AllowedDisruptions int `json:"allowedDisruptions"`
	// Unlisted is true for a group without a NodeGroup object. Its limits, cloud and rules are unknown here.
	Unlisted         bool              `json:"unlisted,omitempty"`
	UnavailableNodes map[string]string `json:"unavailableNodes,omitempty"` // node name to reason
	idleStatus
	scalingStatus
}

type retiringStatus struct {
	Retirement string                      `json:"retirement"`
	Node       string                      `json:"node"`
	Group      string                      `json:"group,omitempty"`
	Phase      v1alpha1.Phase              `json:"phase"`
	Reason     v1alpha1.Reason             `json:"reason"`
	Since      time.Time                   `json:"since"` // in the phase
	Message    string                      `json:"message"`
	BlockedBy  []v1alpha1.RetirementReason `json:"blockedBy,omitempty"`
}

func newStatusCommand() *cobra.Command {
	kube := newKubeFlags("status")
	var output outputFlag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show NodeGroups, idle and retiring nodes, notices, and what blocks them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			c, err := kube.newObjectClient()
			if err != nil {
				return err
			}
			status, err := readStatus(cmd.Context(), c)
			if err != nil {
				return explainStatusError(err)
			}
			return output.printAnswer(cmd.OutOrStdout(), status, status.printTable)
		},
	}
	output.addFlag(cmd.Flags())
	kube.addFlags(cmd.Flags())
	return cmd
}

// explainStatusError adds what to do about missing permissions or CRDs.
func explainStatusError(err error) error {
	if apierrors.IsForbidden(err) {
		return &hintError{err, "status needs the permissions of the ClusterRole slipway-viewer in deploy/viewer: bind it to your user; " +
			"slipway doctor lists the missing permissions"}
	}
	return explainMissingTypes(err)
}

// explainMissingTypes adds what to do if Slipway's CRDs are not installed.
func explainMissingTypes(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("Slipway's CRDs are not installed: "+
			"install them with kubectl apply --server-side -f api/crds (%w)", err)
	}
	return err
}

func readStatus(ctx context.Context, c client.Reader) (clusterStatus, error) {
	var groups v1alpha1.NodeGroupList
	if err := c.List(ctx, &groups); err != nil {
		return clusterStatus{}, err
	}
	var all v1alpha1.NodeRetirementList
	if err := c.List(ctx, &all); err != nil {
		return clusterStatus{}, err
	}
	cluster, err := nodegroup.ReadCluster(ctx, c, live.NewListingPodReader(c), groups.Items)
	if err != nil {
		return clusterStatus{}, err
	}
	status := clusterStatus{Groups: []groupStatus{}, Retiring: []retiringStatus{}, Notices: listNotices(cluster.Nodes)}
	retiring := map[string]bool{}
	for i := range all.Items {
		rt := &all.Items[i]
		if retirement.WillRemoveNode(rt) {
			retiring[rt.Spec.NodeName] = true
		}
		if !rt.Status.Phase.IsFinal() {
			status.Retiring = append(status.Retiring, toRetiringStatus(rt))
		}
	}
	for i := range groups.Items {
		g := &groups.Items[i]
		nodes, err := retirement.ListBudgetNodes(ctx, c, g, retiring)
		if err != nil {
			return clusterStatus{}, err
		}
		s := toGroupStatus(g, nodes)
		s.idleStatus, s.scalingStatus = readIdleStatus(ctx, cluster, g), toScalingStatus(cluster, g)
		status.Groups = append(status.Groups, s)
	}
	status.Groups = append(status.Groups, findUnlistedGroups(cluster, retiring)...)
	return status, nil
}

func toRetiringStatus(rt *v1alpha1.NodeRetirement) retiringStatus {
	l := retiringStatus{
		Retirement: rt.Name, Node: rt.Spec.NodeName, Phase: rt.Status.Phase, Reason: rt.Spec.Reason,
		Since: retirement.PhaseReachedAt(rt), Message: rt.Status.Message, BlockedBy: rt.Status.Reasons,
	}
	if rt.Status.Captured != nil {
		l.Group = rt.Status.Captured.Group
	}
	if l.Phase == "" {
		l.Phase, l.Message = v1alpha1.Pending, "no manager has observed it yet"
	}
	return l
}

func toGroupStatus(g *v1alpha1.NodeGroup, nodes []disruptionbudget.Node) groupStatus {
	s := groupStatus{
		Name: g.Name, Cloud: g.Spec.Cloud.Provider + "/" + g.Spec.Cloud.Group, MinSize: g.Spec.MinSize, MaxSize: g.Spec.MaxSize,
		AllowedDisruptions: disruptionbudget.CountRemainingDisruptions(&g.Spec, nodes, v1alpha1.Requested, time.Now()), UnavailableNodes: map[string]string{},
	}
	for _, n := range nodes {
		s.addNode(n)
	}
	return s
}

func (s clusterStatus) printTable(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "GROUP\tACCEPTED\tCLOUD\tMIN\tMAX\tNODES\tUNAVAILABLE\tRETIRING\tALLOWED DISRUPTIONS")
	for _, g := range s.Groups {
		minSize, maxSize, allowed := fmt.Sprint(g.MinSize), unknownValue, fmt.Sprint(g.AllowedDisruptions)
		if g.MaxSize != nil {
			maxSize = fmt.Sprint(*g.MaxSize)
		}
		if g.Unlisted {
			minSize, allowed = unknownValue, unknownValue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", g.Name, g.Accepted, g.Cloud, minSize, maxSize, g.Nodes, g.Unavailable,
			g.Retiring, allowed)
	}
	s.printIdleNodes(t)
	s.printScaling(t)
	if len(s.Retiring) > 0 {
		fmt.Fprintln(t, "\nNODE\tGROUP\tPHASE\tFOR\tREASON\tMESSAGE")
	}
	for _, l := range s.Retiring {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Node, l.Group, l.Phase, duration.HumanDuration(time.Since(l.Since)), l.Reason, l.Message)
	}
	s.printNotices(t)
	return t.Flush()
}
