package main

import (
	"cmp"
	"slices"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/top"
)

// priceStatus has the prices for one hour, as slipway top shows them.
type priceStatus struct {
	// Price is the price of all nodes of the group. It is empty if the price of one node is unknown.
	Price string `json:"price,omitempty"`
	// NodePrices maps the names of nodes to their prices, as far as they are known.
	NodePrices map[string]string `json:"nodePrices,omitempty"`
}

func toPriceStatus(cluster *nodegroup.Cluster, g *v1alpha1.NodeGroup) priceStatus {
	s, sum, nodes := priceStatus{NodePrices: map[string]string{}}, 0.0, 0
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		if cluster.Assignment.OwnerByNode[n.Name] != g.Name {
			continue
		}
		nodes++
		if price := top.FindPrice(n, g); price > 0 {
			sum += price
			s.NodePrices[n.Name] = top.FormatPrice(price)
		}
	}
	if len(s.NodePrices) == nodes {
		s.Price = top.FormatPrice(sum)
	}
	return s
}

// hasPrices reports whether the price of a node is known. The tables have a column for prices only then.
func (s clusterStatus) hasPrices() bool {
	return slices.ContainsFunc(s.Groups, func(g groupStatus) bool { return len(g.NodePrices) > 0 })
}

// priceColumn returns a cell of the column for prices with its tab, or "" if the table has no such column.
func priceColumn(isShown bool, text string) string {
	if !isShown {
		return ""
	}
	return "\t" + cmp.Or(text, unknownValue)
}
