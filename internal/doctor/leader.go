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
	// leaseName is the one that managers compete for.
	leaseName = "slipway-manager"
	// leaderLeaseTime is --leader-election-lease-duration where a Lease does not say.
	leaderLeaseTime = 15 * time.Second
	// takeover is how long another may take to see that a Lease has run out, and clocks may differ.
	takeover = 30 * time.Second
)

// leaderLease is the Lease that the pods of a manager compete for; none where they do not. Those of the stand-ins are not among
// what the doctor may read.
func leaderLease(p *Part) (Key, bool) {
	if p.Kind != Manager || p.standsIn() || !p.has(leaderElect) {
		return Key{}, false
	}
	return Key{p.home(), leaseName}, true
}

// leaseName is the name of that Lease, a stand-in's too; empty where the template does not tell.
func (p *Part) leaseName() string {
	switch pool := p.env["FOCUS_NODEPOOL"]; {
	case p.Command == "openstack-autoscaler":
		return "slipway-openstack-autoscaler"
	case p.Command != "vmss-pod-watcher":
		return leaseName
	case pool != "":
		return "slipway-vmss-pod-watcher-" + pool
	}
	return ""
}

// home is the namespace of a part's Leases, and of what it writes beside them.
func (p *Part) home() string {
	flag := "namespace"
	if p.Kind == Manager {
		flag = "leader-election-namespace"
	}
	given, _ := p.value(flag)
	home := cmp.Or(given, p.env["POD_NAMESPACE"])
	if p.Command == "openstack-autoscaler" || p.Command == "kubeaware-cloudpool-proxy" {
		home = cmp.Or(home, metav1.NamespaceSystem)
	}
	return cmp.Or(home, p.namespace())
}

// leader sees that a manager leads, and has said so lately.
func leader(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.installed(Manager) {
		key, ok := leaderLease(&p)
		if !ok || p.deployment == nil || ptr.Deref(p.deployment.Spec.Replicas, 1) == 0 {
			continue
		}
		if because := f.leaderless(f.LeaderLeases[key]); because != "" {
			found = append(found, Finding{
				Severity: Problem, Object: Object{"Lease", key.Namespace, key.Name},
				Message: because + ": no manager leads, and no retirement goes on",
				Remedy:  "kubectl logs of the manager's pods: a missing right on leases and an API server out of reach are the usual causes",
			})
		}
	}
	return found
}

func (f *Facts) leaderless(lease *coordinationv1.Lease) string {
	switch {
	case lease == nil:
		return "there is no such Lease"
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
		return "nobody holds it"
	case lease.Spec.RenewTime == nil:
		return "it has never been renewed"
	}
	holds := leaderLeaseTime
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		holds = time.Duration(*s) * time.Second
	}
	if age := f.now().Sub(lease.Spec.RenewTime.Time); age > holds+takeover {
		return fmt.Sprintf("%s has not renewed it for %s", *lease.Spec.HolderIdentity, age.Truncate(time.Second))
	}
	return ""
}
