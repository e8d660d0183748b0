package orphans

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// minOrphanLimit is the number of orphans that may always be deleted at once. nodesPerOrphan raises that limit to one
// orphan for each nodesPerOrphan instances with a Node that may be deleted too.
const (
	minOrphanLimit = 3
	nodesPerOrphan = 5
)

// keepOrphansOverLimit sets KeptReason on all findings of a scan if there are too many, or if no instance has a Node. It
// does not count the findings that have a KeptReason already.
//
// The cluster has then probably lost its Nodes: its control plane was rebuilt or restored, or another cluster has the
// same name. The proofs of the single orphans are true in that case too, so they do not protect against it. Suspected
// orphans count too, because the Nodes may be lost one after the other.
//
// After the number has fallen below the limit, KeptReason stays for another join timeout. The lost instances may be
// joining again one by one.
func (f *Finder) keepOrphansOverLimit(seen map[string]Finding, instances []cloud.Instance, hosts *cloud.NodeIndex, nodes []Node, now time.Time) {
	if len(seen) == 0 {
		return
	}
	deletable := 0
	for _, finding := range seen {
		if finding.KeptReason == "" {
			deletable++
		}
	}
	reason := f.checkOrphanLimit(deletable, instances, hosts, nodes)
	switch {
	case reason != "":
		f.lastLimitedAt = now
	case !f.lastLimitedAt.IsZero() && now.Sub(f.lastLimitedAt) < f.grace.JoinTimeout:
		reason = fmt.Sprintf("there were too many, or no instance had a Node, less than %s ago", f.grace.JoinTimeout)
	default:
		return
	}
	for key, finding := range seen {
		if finding.KeptReason == "" {
			finding.KeptReason = reason
			seen[key] = finding
		}
	}
}

// checkOrphanLimit returns why this number of orphans must not be deleted, or "" if it may. Instances of the control
// plane do not count as instances with a Node, because their Nodes come back before all others. The limit counts only
// instances that may be deleted, as the number of orphans does. With all instances of the cluster, several managers that
// have each lost a part of their Nodes would together delete more than the limit.
func (f *Finder) checkOrphanLimit(orphans int, instances []cloud.Instance, hosts *cloud.NodeIndex, nodes []Node) string {
	joined, deletable, controlPlane := 0, 0, map[string]bool{}
	for _, n := range nodes {
		controlPlane[n.Name] = n.ControlPlane
	}
	for _, m := range instances {
		// An instance that may or may not have a Node does not count as joined either.
		if node, _ := hosts.FindNode(m); node != "" && !controlPlane[node] {
			joined++
			if f.whyKept(m) == "" {
				deletable++
			}
		}
	}
	limit := max(minOrphanLimit, deletable/nodesPerOrphan)
	switch {
	case joined == 0:
		return fmt.Sprintf("none of the cluster's %d instances has a Node, apart from the control plane", len(instances))
	case orphans > limit:
		return fmt.Sprintf("%d orphans are too many for %d instances with a Node in this manager's NodeGroups, apart from the control plane: "+
			"want at most %d", orphans, deletable, limit)
	}
	return ""
}
