package main

import (
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// scalingStatus describes a group's provisioning instances and its underutilized nodes.
type scalingStatus struct {
	// Provisioning is the number of requested instances without a Ready node.
	Provisioning int32 `json:"provisioning"`
	// BackOffs are the templates that are not launched at the moment.
	BackOffs []v1alpha1.BackOff `json:"backOffs,omitempty"`
	// Underutilized are the nodes that the manager marked as underutilized.
	Underutilized []underutilizedNode `json:"underutilized,omitempty"`
}

type underutilizedNode struct {
	Node        string    `json:"node"`
	Since       time.Time `json:"since"`
	RemovableAt time.Time `json:"removableAt"`
}

func toScalingStatus(cluster *nodegroup.Cluster, g *v1alpha1.NodeGroup) (s scalingStatus) {
	if up := g.Status.Provisioning; up != nil {
		s.Provisioning = up.Provisioning
		for _, b := range up.BackOffs {
			if cluster.Now.Before(b.Until.Time) {
				s.BackOffs = append(s.BackOffs, b)
			}
		}
	}
	cooldown, asked := plan.UnderutilizedCooldown(g)
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if since := plan.ReadUnderutilizedSince(n, cluster.Now); asked && !since.IsZero() && cluster.Assignment.OwnerByNode[n.Name] == g.Name {
			s.Underutilized = append(s.Underutilized, underutilizedNode{n.Name, since, since.Add(cooldown)})
		}
	}
	return s
}

func (s clusterStatus) printScaling(w io.Writer, prices bool) {
	for _, g := range s.Groups {
		if g.Provisioning > 0 {
			fmt.Fprintf(w, "\n%s: %d instances are provisioning\n", g.Name, g.Provisioning)
		}
		for _, b := range g.BackOffs {
			fmt.Fprintf(w, "\n%s: no launches of %s for %s: %s: %s\n", g.Name, b.Template, duration.HumanDuration(time.Until(b.Until.Time)),
				b.Reason, b.Message)
		}
	}
	hasHeader := false
	for _, g := range s.Groups {
		for _, n := range g.Underutilized {
			if !hasHeader {
				fmt.Fprintf(w, "\nUNDERUTILIZED NODE\tGROUP\tFOR\tREMOVABLE IN%s\n", priceColumn(prices, "PRICE"))
				hasHeader = true
			}
			left := "cooldown passed" // another rule may keep it: only the manager knows
			if until := time.Until(n.RemovableAt); until > 0 {
				left = duration.HumanDuration(until)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", n.Node, g.Name, duration.HumanDuration(time.Since(n.Since)), left, priceColumn(prices, g.NodePrices[n.Node]))
		}
	}
}
