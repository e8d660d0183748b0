package main

import (
	"context"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// idleStatus describes the idle nodes of a group. The same code as in the manager computes it.
type idleStatus struct {
	// Accepted is True, False or Unknown. Refusal is the reason if it is not True.
	Accepted metav1.ConditionStatus `json:"accepted"`
	Refusal  string                 `json:"refusal,omitempty"`
	// Idle are the nodes without protecting pods. Unknown is the error if they could not be determined.
	Idle    []nodegroup.Decision `json:"idle,omitempty"`
	Unknown string               `json:"idleUnknown,omitempty"`
}

func readIdleStatus(ctx context.Context, cluster *nodegroup.Cluster, g *v1alpha1.NodeGroup) idleStatus {
	s := idleStatus{Accepted: metav1.ConditionFalse}
	switch a := acceptance.FromGroup(g); a.State {
	case acceptance.NotObserved:
		s.Accepted, s.Refusal = metav1.ConditionUnknown, a.Message
	case acceptance.CloudNotRead:
		s.Accepted, s.Refusal = metav1.ConditionUnknown, a.Reason+": "+a.Message
	case acceptance.Accepted:
		s.Accepted = metav1.ConditionTrue
	default:
		s.Refusal = a.Reason + ": " + a.Message
	}
	decisions, err := cluster.PredictDecisionsByIdleRule(ctx, g)
	if err != nil {
		s.Unknown = err.Error()
		return s
	}
	for _, d := range decisions {
		if d.IdleSince != nil {
			s.Idle = append(s.Idle, d)
		}
	}
	return s
}

func (s clusterStatus) printIdleNodes(w io.Writer, prices bool) {
	for _, g := range s.Groups {
		if g.Refusal != "" {
			fmt.Fprintf(w, "\n%s is not managed: %s\n", g.Name, g.Refusal)
		}
		if g.Unknown != "" {
			fmt.Fprintf(w, "\n%s: cannot determine its idle nodes: %s\n", g.Name, g.Unknown)
		}
	}
	hasHeader := false
	for _, g := range s.Groups {
		for _, d := range g.Idle {
			if !hasHeader {
				fmt.Fprintf(w, "\nIDLE NODE\tGROUP\tFOR\tREMOVABLE IN%s\tVERDICT\tREASONS\n", priceColumn(prices, "PRICE"))
				hasHeader = true
			}
			left := "now"
			if until := time.Until(*d.RemovableAt); until > 0 {
				left = duration.HumanDuration(until)
			}
			if d.Verdict == nodegroup.VerdictBlocked {
				left = "-"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\t%s\t%s\n", d.Node, g.Name, duration.HumanDuration(time.Since(*d.IdleSince)), left,
				priceColumn(prices, g.NodePrices[d.Node]), d.Verdict, nodegroup.JoinReasons(d.Reasons))
		}
	}
}
