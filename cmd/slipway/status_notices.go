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

// noticeStatus is a notice for a node's machine, as the agent there has written it down.
type noticeStatus struct {
	Node    string        `json:"node"`
	ID      string        `json:"id"`
	Type    notice.Type   `json:"type"`
	Status  notice.Status `json:"status"`
	Due     *time.Time    `json:"due,omitempty"` // when the machine is
	Phase   string        `json:"phase"`         // how far the agent is
	Blocked string        `json:"blocked,omitempty"`
}

// noticesOn are the notices that the agents have written on nodes, in the order of the nodes' names. Records that cannot be
// read are left out.
func noticesOn(nodes []corev1.Node) []noticeStatus {
	all := []noticeStatus{}
	for i := range nodes {
		n := &nodes[i]
		reports, _ := report.Of(n.Annotations)
		for _, r := range reports {
			s := noticeStatus{Node: n.Name, ID: r.ID, Type: r.Type, Status: r.Status, Phase: cmp.Or(r.Phase, "noticed")}
			if !r.Deadline.IsZero() {
				s.Due = &r.Deadline
			}
			if s.Phase == string(agent.Draining) {
				s.Blocked = top.BlockedDrain(n)
			}
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b noticeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// dealtWith reports that the node is drained, and nothing is left for the agent to do but to wait for the cloud.
func (n noticeStatus) dealtWith() bool {
	return n.Phase == string(agent.Drained) || n.Phase == string(agent.Acknowledged)
}

// noticeTable lists the notices for which there is something to be done. JSON has them all.
func (s clusterStatus) noticeTable(w io.Writer) {
	live := slices.DeleteFunc(slices.Clone(s.Notices), noticeStatus.dealtWith)
	if len(live) > 0 {
		fmt.Fprintln(w, "\nNODE\tNOTICE\tPHASE\tDUE\tBLOCKED")
	}
	for _, n := range live {
		due := "-"
		if n.Due != nil {
			due = n.Due.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Node, n.Type, n.Phase, due, n.Blocked)
	}
}
