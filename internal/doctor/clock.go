package doctor

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// skewNoted is the least difference that is told of, and skewHarms the least that a Spot notice of thirty seconds
	// does not forgive.
	skewNoted = 3 * time.Second
	skewHarms = 10 * time.Second
	// leaseTime is how long a kubelet's Lease holds when it does not say (nodeLeaseDurationSeconds, 40).
	leaseTime = 40 * time.Second
)

const nodeClockMeans = "the agent reckons with a machine's deadline by its node's clock, and cuts pods short or keeps them too long by as much"

// clockHere compares the clock of this machine with the API server's. With several API servers it is that of the one
// that answered.
func clockHere(f *Facts) []Finding {
	skew := f.Clock.Here.Sub(f.Clock.Server)
	if skew.Abs() <= skewNoted+f.Clock.Error {
		return nil
	}
	return []Finding{{
		Severity: Warning,
		Message: fmt.Sprintf("the clock of this machine is %s that of the API server: how long things have taken is shown wrong here",
			apart(skew)),
		Remedy: "switch on time synchronisation (chrony, systemd-timesyncd, w32time) here, or on the API server's machine if it is that one",
	}}
}

func apart(skew time.Duration) string {
	if skew < 0 {
		return skew.Abs().Truncate(time.Second).String() + " behind"
	}
	return skew.Truncate(time.Second).String() + " ahead of"
}

// clockNode compares the clocks of nodes with the API server's, by what their kubelets write in their Leases.
func clockNode(f *Facts) []Finding {
	var found []Finding
	for _, n := range f.Nodes {
		lease := f.NodeLeases[n.Name]
		if lease == nil || lease.Spec.RenewTime == nil || machineless(n) {
			continue
		}
		finding := Finding{Object: nodeObject(n), Remedy: "switch on time synchronisation on the machine (chrony, w32time), and see that it reaches its source"}
		skew, known := skewOf(n, lease, f.now())
		switch {
		case !known:
			continue
		case skew.Abs() >= skewHarms:
			finding.Severity = Problem
		case skew.Abs() > skewNoted:
			finding.Severity = Warning
		default:
			continue
		}
		finding.Message = fmt.Sprintf("its clock is %s that of the API server: %s", apart(skew), nodeClockMeans)
		found = append(found, finding)
	}
	return found
}

// skewOf is by how much a node's clock is ahead. Where the API server has recorded when the Lease was written, the two
// clocks are compared at one moment. Else only what is impossible counts: a renewal in the future, and one that is too long
// ago for a node that is held to be Ready; of a node that is not, an old Lease says that its kubelet is silent.
func skewOf(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) (time.Duration, bool) {
	renewed := lease.Spec.RenewTime.Time
	if written, ok := writtenAt(lease); ok {
		return renewed.Sub(written), true
	}
	holds := leaseTime
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		holds = time.Duration(*s) * time.Second
	}
	switch skew := renewed.Sub(now); {
	case skew > 0:
		return skew, true
	case -skew > holds && nodeReady(n):
		return skew, true
	}
	return 0, false
}

// writtenAt is when the API server saw the Lease renewed last, to the second.
func writtenAt(lease *coordinationv1.Lease) (time.Time, bool) {
	var at time.Time
	for _, m := range lease.ManagedFields {
		if m.Time != nil && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:renewTime"`) && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at, !at.IsZero()
}
