package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/retirement"
	"github.com/slipway-dev/slipway/internal/retirement/disruptionbudget"
)

// clusterStatus is the content that slipway status prints.
type clusterStatus struct {
	Nodes    nodesStatus `json:"nodes"`
	Agents   podsStatus  `json:"agents"`
	Managers podsStatus  `json:"managers"`
	// Missing says what is not installed or could not be read.
	Missing  []string         `json:"missing,omitempty"`
	Groups   []groupStatus    `json:"groups"`
	Retiring []retiringStatus `json:"retiring"`
	Notices  []noticeStatus   `json:"notices"`

	missingManager string // the entry of Missing about the managers
}

type groupStatus struct {
	Name    string `json:"name"`
	Cloud   string `json:"cloud"`
	MinSize int32  `json:"minSize"`
	// CloudMinSize is the cloud's own minimum. The larger one of it and MinSize counts.
	CloudMinSize int32  `json:"cloudMinSize,omitempty"`
	MaxSize      *int32 `json:"maxSize,omitempty"`
	Nodes        int    `json:"nodes"`
	Unavailable  int    `json:"unavailable"`
	Retiring     int    `json:"retiring"`
	// AllowedDisruptions is the number of further nodes that may be retired now.
	AllowedDisruptions int `json:"allowedDisruptions"`
	// Unlisted is true for a group without a NodeGroup object. Its limits, cloud and rules are unknown here.
	Unlisted         bool              `json:"unlisted,omitempty"`
	UnavailableNodes map[string]string `json:"unavailableNodes,omitempty"` // node name to reason
	idleStatus
	scalingStatus
	priceStatus
}

type retiringStatus struct {
	Retirement  string                      `json:"retirement"`
	Node        string                      `json:"node"`
	Group       string                      `json:"group,omitempty"`
	Phase       v1alpha1.Phase              `json:"phase"`
	Reason      v1alpha1.Reason             `json:"reason"`
	RequestedBy string                      `json:"requestedBy,omitempty"`
	Since       time.Time                   `json:"since"` // in the phase
	Message     string                      `json:"message"`
	BlockedBy   []v1alpha1.RetirementReason `json:"blockedBy,omitempty"`
}

func newStatusCommand() *cobra.Command {
	kube := newKubeFlags("status")
	var output outputFlag
	cmd := &cobra.Command{
		Use:   "status [NODEGROUP...]",
		Short: "Show NodeGroups, idle and retiring nodes, notices, and what blocks them",
		Long: `Status shows all NodeGroups, or only the named ones, and their nodes that are idle, are being retired or have a notice.

It also works without Slipway's CRDs and without a manager. If no NodeGroup exists, or with -o wide, it also shows the number of nodes,
agents and managers, which nodes are unavailable and why, and what is missing. If NodeGroups exist, it always reports
that no manager is Ready.`,
		Example: `  slipway status
  slipway status ci -o wide`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			c, err := kube.newObjectClient()
			if err != nil {
				return err
			}
			status, err := readStatus(cmd.Context(), c, args)
			if err != nil {
				return explainStatusError(err)
			}
			return output.printAnswer(cmd.OutOrStdout(), status, status.printTable, status.listNames()...)
		},
	}
	output.addFlag(cmd.Flags())
	kube.addFlags(cmd.Flags())
	return cmd
}

// explainStatusError adds to an error what the user can do about a missing permission.
func explainStatusError(err error) error {
	if apierrors.IsForbidden(err) {
		return &hintError{err, "status needs the permissions of the ClusterRole slipway-viewer in deploy/viewer: bind it to your user; " +
			"slipway doctor lists the missing permissions"}
	}
	return err
}

// explainMissingTypes adds to an error what the user can do if Slipway's CRDs are not installed.
func explainMissingTypes(err error) error {
	if isTypeMissing(err) {
		return fmt.Errorf("Slipway's CRDs are not installed: "+
			"install them with kubectl apply --server-side -f api/crds (%w)", err)
	}
	return err
}

// isTypeMissing reports whether the API server does not serve a type, because its CRD is not installed or is being
// deleted. An object that does not exist is another error.
func isTypeMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return meta.IsNoMatchError(err)
	}
	details := status.Status().Details
	return details == nil || details.Name == "" || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// readStatus reads the status of the cluster, or only of the named groups.
func readStatus(ctx context.Context, c client.Reader, names []string) (clusterStatus, error) {
	optional := &optionalTypesReader{Reader: c}
	var groups v1alpha1.NodeGroupList
	if err := optional.List(ctx, &groups); err != nil {
		return clusterStatus{}, err
	}
	cluster, err := nodegroup.ReadCluster(ctx, optional, live.NewListingPodReader(c), groups.Items)
	if err != nil {
		return clusterStatus{}, err
	}
	selected, err := selectGroups(cluster, names)
	if err != nil {
		return clusterStatus{}, err
	}
	status := clusterStatus{Groups: []groupStatus{}, Retiring: []retiringStatus{}, Notices: listNotices(selected.nodes), Missing: optional.describeMissing()}
	status.Nodes = toNodesStatus(selected.nodes, cluster.Retirements)
	status.readOwnPods(ctx, c)
	retiring := map[string]bool{}
	for i := range cluster.Retirements {
		rt := &cluster.Retirements[i]
		if retirement.WillRemoveNode(rt) {
			retiring[rt.Spec.NodeName] = true
		}
		if l := toRetiringStatus(rt); !rt.Status.Phase.IsFinal() && selected.hasRetirement(l) {
			status.Retiring = append(status.Retiring, l)
		}
	}
	for i := range groups.Items {
		g := &groups.Items[i]
		if !selected.hasGroup(g.Name) {
			continue
		}
		nodes, err := retirement.ListBudgetNodes(ctx, c, g, func(n *corev1.Node) bool { return retiring[n.Name] })
		if err != nil {
			return clusterStatus{}, err
		}
		s := toGroupStatus(cluster, g, nodes)
		s.idleStatus, s.scalingStatus, s.priceStatus = readIdleStatus(ctx, cluster, g), toScalingStatus(cluster, g), toPriceStatus(cluster, g)
		status.Groups = append(status.Groups, s)
	}
	for _, g := range findUnlistedGroups(cluster, retiring) {
		if selected.hasGroup(g.Name) {
			status.Groups = append(status.Groups, g)
		}
	}
	return status, nil
}

func toRetiringStatus(rt *v1alpha1.NodeRetirement) retiringStatus {
	l := retiringStatus{
		Retirement: rt.Name, Node: rt.Spec.NodeName, Phase: rt.Status.Phase, Reason: rt.Spec.Reason, RequestedBy: rt.Spec.RequestedBy,
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

func toGroupStatus(cluster *nodegroup.Cluster, g *v1alpha1.NodeGroup, nodes []disruptionbudget.Node) groupStatus {
	w := cluster.NewGroupSnapshot(g, cluster.WhyNotAccepted(g))
	s := groupStatus{
		Name: g.Name, Cloud: g.Spec.Cloud.Provider + "/" + g.Spec.Cloud.Group, MinSize: g.Spec.MinSize, CloudMinSize: g.Status.CloudMinSize,
		MaxSize: g.Spec.MaxSize, AllowedDisruptions: w.CountAllowedDisruptions(nodes), UnavailableNodes: map[string]string{},
	}
	for _, n := range nodes {
		s.addNode(n)
	}
	return s
}

func (s clusterStatus) printTable(w io.Writer, wide bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if wide || len(s.Groups) == 0 {
		s.printSummary(t, wide)
	}
	if wide && len(s.Groups) > 0 {
		fmt.Fprintln(t)
	}
	prices := wide && s.hasPrices()
	if len(s.Groups) > 0 {
		fmt.Fprintf(t, "GROUP\tACCEPTED\tCLOUD\tMIN\tMAX\tNODES\tUNAVAILABLE\tRETIRING\tALLOWED DISRUPTIONS%s\n", priceColumn(prices, "PRICE"))
	}
	for _, g := range s.Groups {
		minSize, maxSize, allowed := fmt.Sprint(g.MinSize), unknownValue, fmt.Sprint(g.AllowedDisruptions)
		if g.MaxSize != nil {
			maxSize = fmt.Sprint(*g.MaxSize)
		}
		if g.CloudMinSize > g.MinSize {
			minSize = fmt.Sprintf("%d (cloud)", g.CloudMinSize)
		}
		if g.Unlisted {
			minSize, allowed = unknownValue, unknownValue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s%s\n", g.Name, g.Accepted, g.Cloud, minSize, maxSize, g.Nodes, g.Unavailable,
			g.Retiring, allowed, priceColumn(prices, g.Price))
	}
	s.printIdleNodes(t, prices)
	s.printScaling(t, prices)
	s.printRetiring(t, wide)
	s.printNotices(t, wide)
	s.printMissing(t, wide)
	return t.Flush()
}

func (s clusterStatus) printRetiring(w io.Writer, wide bool) {
	if len(s.Retiring) == 0 {
		return
	}
	more := func(columns string) string {
		if wide {
			return columns
		}
		return ""
	}
	fmt.Fprintf(w, "\nNODE\tGROUP\tPHASE\tFOR\tREASON\t%sMESSAGE\n", more("RETIREMENT\tREQUESTED BY\t"))
	for _, l := range s.Retiring {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\n", l.Node, l.Group, l.Phase, duration.HumanDuration(time.Since(l.Since)), l.Reason,
			more(l.Retirement+"\t"+cmp.Or(l.RequestedBy, unknownValue)+"\t"), l.Message)
	}
}

// listNames returns the names of the NodeGroups and the unfinished NodeRetirements.
func (s clusterStatus) listNames() []string {
	var names []string
	for _, g := range s.Groups {
		if !g.Unlisted {
			names = append(names, formatName("NodeGroup", g.Name))
		}
	}
	for _, l := range s.Retiring {
		names = append(names, formatName("NodeRetirement", l.Retirement))
	}
	return names
}
