package doctor

import (
	"cmp"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// managerLeaseName is the Lease for the leader election of managers.
	managerLeaseName = "slipway-manager"
	// leaderLeaseDuration is the default of --leader-election-lease-duration.
	leaderLeaseDuration = 15 * time.Second
	// takeoverTime is how long another manager may need to see an expired Lease, including clock differences.
	takeoverTime = 30 * time.Second
)

// findLeaderLease returns the Lease for a manager's leader election, and whether there is one to check. The doctor
// has no permission for the Leases of compatibility commands.
func findLeaderLease(p *Part) (lease Key, required bool) {
	if p.Kind != Manager || p.isCompatibilityCommand() || !p.isFlagEnabled(leaderElect) {
		return Key{}, false
	}
	return Key{p.leaseNamespace(), managerLeaseName}, true
}

// findLeaseName returns the name of the Lease, also for compatibility commands. It is empty if the template does not
// determine it.
func (p *Part) findLeaseName() string {
	switch pool := p.env["FOCUS_NODEPOOL"]; {
	case p.Command == "openstack-autoscaler":
		return "slipway-openstack-autoscaler"
	case p.Command != "vmss-pod-watcher":
		return managerLeaseName
	case pool != "":
		return "slipway-vmss-pod-watcher-" + pool
	}
	return ""
}

// leaseNamespace returns the namespace for a part's Leases and for the objects that it writes with them.
func (p *Part) leaseNamespace() string {
	flag := "namespace"
	if p.Kind == Manager {
		flag = "leader-election-namespace"
	}
	given, _ := p.flagValue(flag)
	home := cmp.Or(given, p.env["POD_NAMESPACE"])
	if p.Command == "openstack-autoscaler" || p.Command == "kubeaware-cloudpool-proxy" {
		home = cmp.Or(home, metav1.NamespaceSystem)
	}
	return cmp.Or(home, p.namespace())
}

// checkLeader checks that a manager leads and has renewed its Lease recently.
func checkLeader(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.partsOfKind(Manager) {
		key, ok := findLeaderLease(&p)
		if !ok || p.deployment == nil || ptr.Deref(p.deployment.Spec.Replicas, 1) == 0 {
			continue
		}
		if reason := f.findLeaderProblem(f.LeaderLeases[key]); reason != "" {
			found = append(found, Finding{
				Severity: Problem, Object: Object{"Lease", key.Namespace, key.Name},
				Message: reason + ": no manager leads, and all retirements stop",
				Remedy:  "read kubectl logs of the manager's pods; usual causes are a missing permission for leases and an unreachable API server",
			})
		}
	}
	return found
}

func (f *Facts) findLeaderProblem(lease *coordinationv1.Lease) string {
	switch {
	case lease == nil:
		return "the Lease does not exist"
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
		return "it has no holder"
	case lease.Spec.RenewTime == nil:
		return "it has never been renewed"
	}
	holds := leaderLeaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		holds = time.Duration(*s) * time.Second
	}
	if age := f.serverTime().Sub(lease.Spec.RenewTime.Time); age > holds+takeoverTime {
		return fmt.Sprintf("its holder %s has not renewed it for %s", *lease.Spec.HolderIdentity, age.Truncate(time.Second))
	}
	return ""
}
