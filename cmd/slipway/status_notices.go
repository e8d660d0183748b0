package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/report"
	"github.com/slipway-dev/slipway/internal/top"
)

// noticeStatus is a notice for a node's instance, as the node's agent recorded it on the Node.
type noticeStatus struct {
	Node     string        `json:"node"`
	ID       string        `json:"id"`
	Type     notice.Type   `json:"type"`
	Status   notice.Status `json:"status"`
	Deadline *time.Time    `json:"deadline,omitempty"` // deadline of the notice
	Phase    string        `json:"phase"`              // phase of the agent's handling
	Blocked  string        `json:"blocked,omitempty"`
}

// listNotices returns the notices that agents have recorded on their Nodes, sorted by node name. It omits unreadable
// records.
func listNotices(nodes []corev1.Node) []noticeStatus {
	all := []noticeStatus{}
	for i := range nodes {
		n := &nodes[i]
		reports, _ := report.ReadReports(n.Annotations)
		for _, r := range reports {
			s := noticeStatus{Node: n.Name, ID: r.ID, Type: r.Type, Status: r.Status, Phase: cmp.Or(r.Phase, "noticed")}
			if !r.Deadline.IsZero() {
				s.Deadline = &r.Deadline
			}
			switch {
			case s.Phase == string(agent.Draining):
				s.Blocked = top.FindBlockedDrain(n)
			case r.DrainWaitsFor != "":
				s.Blocked = "waits for " + r.DrainWaitsFor
			}
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b noticeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// isHandled reports whether the agent has drained the node for this notice, and only waits for the cloud.
func (n noticeStatus) isHandled() bool {
	return n.Phase == string(agent.Drained) || n.Phase == string(agent.Acknowledged)
}

// printNotices prints the notices that the agent has not handled completely. Wide output contains all notices.
func (s clusterStatus) printNotices(w io.Writer, wide bool) {
	shown, id := s.Notices, "ID\t"
	if !wide {
		shown, id = slices.DeleteFunc(slices.Clone(s.Notices), noticeStatus.isHandled), ""
	}
	if len(shown) > 0 {
		fmt.Fprintf(w, "\nNODE\tNOTICE\t%sPHASE\tDEADLINE\tBLOCKED\n", id)
	}
	for _, n := range shown {
		due := "-"
		if n.Deadline != nil {
			due = n.Deadline.UTC().Format(time.RFC3339)
		}
		if wide {
			id = n.ID + "\t"
		}
		fmt.Fprintf(w, "%s\t%s\t%s%s\t%s\t%s\n", n.Node, n.Type, id, n.Phase, due, n.Blocked)
	}
}
