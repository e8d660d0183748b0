package doctor

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// warningSkew is the smallest difference to report. problemSkew is the smallest difference that a Spot notice of
	// 30 seconds does not tolerate.
	warningSkew = 3 * time.Second
	problemSkew = 10 * time.Second
	// nodeLeaseDuration is the default duration of a node Lease (nodeLeaseDurationSeconds, 40).
	nodeLeaseDuration = 40 * time.Second
)

const nodeClockEffect = "the agent computes the deadline of a notice with this clock, and stops pods too early or too late by the same amount"

// checkLocalClock compares the local clock with the clock of the API server that answered.
func checkLocalClock(f *Facts) []Finding {
	skew := f.Clock.Local.Sub(f.Clock.Server)
	if skew.Abs() <= warningSkew+f.Clock.MaxError {
		return nil
	}
	return []Finding{{
		Severity: Warning,
		Message: fmt.Sprintf("the local clock is %s the API server's clock: durations are displayed wrong here",
			formatClockSkew(skew)),
		Remedy: "enable time synchronization (chrony, systemd-timesyncd, w32time) here, or on the API server's machine if its clock is wrong",
	}}
}

func formatClockSkew(skew time.Duration) string {
	if skew < 0 {
		return skew.Abs().Truncate(time.Second).String() + " behind"
	}
	return skew.Truncate(time.Second).String() + " ahead of"
}

// checkNodeClocks compares the clocks of nodes with the API server's clock. The kubelets write their time into the
// node Leases.
func checkNodeClocks(f *Facts) []Finding {
	var found []Finding
	for _, n := range f.Nodes {
		lease := f.NodeLeases[n.Name]
		if lease == nil || lease.Spec.RenewTime == nil || isVirtualNode(n) {
			continue
		}
		finding := Finding{Object: newNodeObject(n), Remedy: "enable time synchronization on the node (chrony, w32time), and check that it reaches its source"}
		skew, known := measureClockSkew(n, lease, f.serverTime())
		switch {
		case !known:
			continue
		case skew.Abs() >= problemSkew:
			finding.Severity = Problem
		case skew.Abs() > warningSkew:
			finding.Severity = Warning
		default:
			continue
		}
		finding.Message = fmt.Sprintf("its clock is %s the API server's clock: %s", formatClockSkew(skew), nodeClockEffect)
		found = append(found, finding)
	}
	return found
}

// measureClockSkew returns how far a node's clock is ahead, and whether that is known. If the API server has recorded when
// the Lease was written, both clocks are compared at that moment. Otherwise only impossible times count: a renewal in
// the future, and an expired Lease of a Ready node. If the node is not Ready, an expired Lease only means that its
// kubelet is silent.
func measureClockSkew(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) (skew time.Duration, known bool) {
	renewed := lease.Spec.RenewTime.Time
	if written, ok := serverRecordedRenewal(lease); ok {
		return renewed.Sub(written), true
	}
	holds := nodeLeaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		holds = time.Duration(*s) * time.Second
	}
	switch skew := renewed.Sub(now); {
	case skew > 0:
		return skew, true
	case -skew > holds && isNodeReady(n):
		return skew, true
	}
	return 0, false
}

// serverRecordedRenewal returns when the API server recorded the last renewal, in whole seconds.
func serverRecordedRenewal(lease *coordinationv1.Lease) (renewed time.Time, known bool) {
	var at time.Time
	for _, m := range lease.ManagedFields {
		if m.Time != nil && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:renewTime"`) && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at, !at.IsZero()
}
