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

// scalingStatus is what slipway status says of the machines that come to a group, and of its nodes that are used little.
type scalingStatus struct {
	// OnTheWay is how many machines were asked for and have no Ready node yet.
	OnTheWay int32 `json:"provisioning"`
	// BackOffs are the kinds of machines that are left alone now.
	BackOffs []v1alpha1.BackOff `json:"backOffs,omitempty"`
	// Underused are the nodes that could go, as a manager has written on them.
	Underused []underusedNode `json:"underutilized,omitempty"`
}

type underusedNode struct {
	Node       string    `json:"node"`
	Since      time.Time `json:"since"`
	MayLeaveAt time.Time `json:"removableAt"`
}

func scalingOf(cluster *nodegroup.Cluster, g *v1alpha1.NodeGroup) (s scalingStatus) {
	if up := g.Status.Provisioning; up != nil {
		s.OnTheWay = up.Provisioning
		for _, b := range up.BackOffs {
			if cluster.Now.Before(b.Until.Time) {
				s.BackOffs = append(s.BackOffs, b)
			}
		}
	}
	cooldown, asked := plan.UnderusedCooldown(g)
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if since := plan.Since(n, cluster.Now); asked && !since.IsZero() && cluster.Claims.Owner[n.Name] == g.Name {
			s.Underused = append(s.Underused, underusedNode{n.Name, since, since.Add(cooldown)})
		}
	}
	return s
}

func (s clusterStatus) scalingTable(w io.Writer) {
	for _, g := range s.Groups {
		if g.OnTheWay > 0 {
			fmt.Fprintf(w, "\n%s: %d machines are on their way\n", g.Name, g.OnTheWay)
		}
		for _, b := range g.BackOffs {
			fmt.Fprintf(w, "\n%s: %s is left alone for %s: %s: %s\n", g.Name, b.Template, duration.HumanDuration(time.Until(b.Until.Time)),
				b.Reason, b.Message)
		}
	}
	begun := false
	for _, g := range s.Groups {
		for _, n := range g.Underused {
			if !begun {
				fmt.Fprintln(w, "\nUNDERUSED NODE\tGROUP\tFOR\tMAY LEAVE IN")
				begun = true
			}
			left := "now"
			if until := time.Until(n.MayLeaveAt); until > 0 {
				left = duration.HumanDuration(until)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Node, g.Name, duration.HumanDuration(time.Since(n.Since)), left)
		}
	}
}
