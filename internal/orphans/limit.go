package orphans

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// The number of orphans that may be deleted at once: minOrphanLimit, or one for each nodesPerOrphan instances with a
// Node.
const (
	minOrphanLimit = 3
	nodesPerOrphan = 5
)

// keepOrphansOverLimit keeps all orphans of a scan if there are too many, or if no instance has a Node.
//
// Then the cluster has probably lost its Nodes: its control plane was rebuilt or restored, or another cluster has its
// name. The proofs of each orphan do not help against that. Suspected orphans count too, because Nodes may be lost one
// after the other.
//
// When they are few again, the others may be rejoining one by one. So the remaining orphans get their time to join once
// more.
func (f *Finder) keepOrphansOverLimit(seen map[string]Finding, instances []cloud.Instance, hosts *cloud.NodeIndex, nodes []Node, now time.Time) {
	if len(seen) == 0 {
		return
	}
	reason := checkOrphanLimit(len(seen), instances, hosts, nodes)
	switch {
	case reason != "":
		f.lastLimitedAt = now
	case !f.lastLimitedAt.IsZero() && now.Sub(f.lastLimitedAt) < f.grace.JoinTimeout:
		reason = fmt.Sprintf("there were too many, or no instance had a Node, less than %s ago", f.grace.JoinTimeout)
	default:
		return
	}
	for key, finding := range seen {
		finding.KeptReason = reason
		seen[key] = finding
	}
}

// checkOrphanLimit returns why so many orphans must not be deleted, or "". Instances of the control plane do not count
// as joined: their Nodes come back before all others.
func checkOrphanLimit(orphans int, instances []cloud.Instance, hosts *cloud.NodeIndex, nodes []Node) string {
	joined, controlPlane := 0, map[string]bool{}
	for _, n := range nodes {
		controlPlane[n.Name] = n.ControlPlane
	}
	for _, m := range instances {
		// An instance that may or may not have a Node does not count as joined either.
		if node, _ := hosts.FindNode(m); node != "" && !controlPlane[node] {
			joined++
		}
	}
	limit := max(minOrphanLimit, joined/nodesPerOrphan)
	switch {
	case joined == 0:
		return fmt.Sprintf("none of the cluster's %d instances has a Node, apart from the control plane", len(instances))
	case orphans > limit:
		return fmt.Sprintf("%d orphans are too many for %d instances of the cluster with a Node, apart from the control plane: want at most %d",
			orphans, joined, limit)
	}
	return ""
}
