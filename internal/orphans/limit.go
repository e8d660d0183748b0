package orphans

import (
	"fmt"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// So many orphans at once are deleted: fewOrphans, or one for each nodesPerOrphan machines that have a Node.
const (
	fewOrphans     = 3
	nodesPerOrphan = 5
)

// limit has none of the orphans of a look deleted when they are so many, or when no machine has a Node, that the cluster
// rather has lost its Nodes: its control plane was rebuilt or restored while the machines ran, or another cluster has its
// name. Each of them may be proven as well as can be. Suspected ones count too, since what is lost is not always lost at
// once. When they are few again, the others may be coming back one by one: what is left has its time to join once more.
func (f *Finder) limit(seen map[string]Finding, machines []cloud.Instance, hosts *cloud.Hosts, nodes []Node, now time.Time) {
	if len(seen) == 0 {
		return
	}
	reason := tooMany(len(seen), machines, hosts, nodes)
	switch {
	case reason != "":
		f.kept = now
	case !f.kept.IsZero() && now.Sub(f.kept) < f.grace.Join:
		reason = fmt.Sprintf("they were too many, or no machine had a Node, less than %s ago", f.grace.Join)
	default:
		return
	}
	for key, orphan := range seen {
		orphan.Kept = reason
		seen[key] = orphan
	}
}

// tooMany says why so many orphans are not to be deleted, and is empty when they may be. Machines of the control plane, whose Nodes
// come back before all others, speak for nothing.
func tooMany(orphans int, machines []cloud.Instance, hosts *cloud.Hosts, nodes []Node) string {
	housed, controlPlane := 0, map[string]bool{}
	for _, n := range nodes {
		controlPlane[n.Name] = n.ControlPlane
	}
	for _, m := range machines {
		// A machine that may have a Node for all that is known speaks for nothing either.
		if node, _ := hosts.Of(m); node != "" && !controlPlane[node] {
			housed++
		}
	}
	most := max(fewOrphans, housed/nodesPerOrphan)
	switch {
	case housed == 0:
		return fmt.Sprintf("none of the %d machines that are marked as the cluster's has a Node, those of the control plane apart", len(machines))
	case orphans > most:
		return fmt.Sprintf("%d at once are too many, where %d machines that are marked as the cluster's have a Node, those of the control plane apart: want %d at most",
			orphans, housed, most)
	}
	return ""
}
