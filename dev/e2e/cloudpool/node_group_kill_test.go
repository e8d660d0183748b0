package cloudpool_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// TestI8NodeGroupPoolKeepsStateAfterKill kills slipway cloudpool over a NodeGroup with SIGKILL, during a set-size and
// at other times. Only the pool stores the state of its machines, because no server is behind it.
func TestI8NodeGroupPoolKeepsStateAfterKill(t *testing.T) {
	t.Parallel()
	for name, anew := range map[string]bool{"restarted": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newNative(t, name, 5)
			slow := f.app("slow", 4)
			slow.StopSeconds = "2"
			f.create(slow.Deployment())
			f.startManager()
			p, replicas := f.startNative("a"), 0
			f.killDuringUpdates(func() {
				t.Helper()
				f.check(p.Kill())
				if !anew {
					f.check(p.Restart(f.ctx))
					return
				}
				replicas++
				p = f.startNative(fmt.Sprint("b", replicas)) // the new process does not own the Lease
			})
		})
	}
}

// startNative starts a process over the NodeGroup.
func (f *fixture) startNative(replica string) *controlplane.Process {
	f.t.Helper()
	return f.startCloudpool(replica, "--native", f.name, "--native-refresh", "0s")
}

// killDuringUpdates kills the process at each relevant moment. kill starts the process again, or starts another process.
func (f *fixture) killDuringUpdates(kill func()) {
	f.t.Helper()
	all := f.machines()
	detached, protected, inactive := all[0].ID, all[1].ID, all[2].ID
	f.want(f.post("/pool/detach", termination(detached, true)), http.StatusOK)
	f.want(f.post("/pool/membershipStatus", membership(protected, true, false)), http.StatusOK)
	f.want(f.post("/pool/serviceState", `{"machineId":"`+protected+`","serviceState":"IN_SERVICE"}`), http.StatusOK)
	f.want(f.post("/pool/membershipStatus", membership(inactive, false, false)), http.StatusOK) // and is replaced
	f.awaitSize(4, 4, 5, 6)
	kept := func() {
		f.t.Helper()
		m, other := f.findMachine(protected), f.findMachine(inactive)
		if m == nil || !m.IsActive() || m.IsEvictable() || m.ServiceState != api.InService {
			f.t.Errorf("%+v; want it active, not evictable, and in service", m)
		}
		if other == nil || other.IsActive() || other.IsEvictable() || other.State != api.Running {
			f.t.Errorf("%+v; want it neither active nor evictable, and running", other)
		}
		if m := f.findMachine(detached); m != nil {
			f.t.Errorf("%+v; want it detached", m)
		}
	}
	accepted := f.post("/pool/size", size(2), "Prefer: respond-async")
	f.want(accepted, http.StatusAccepted)
	f.await("a node is being drained", func() bool {
		return slices.ContainsFunc(f.listRetirements(), func(rt v1alpha1.NodeRetirement) bool { return rt.Status.Phase == v1alpha1.Draining })
	})
	kill()
	kept()
	f.want(f.post("/pool/size", size(2)), http.StatusOK) // returns the result of the first request
	up := f.awaitUpdate(accepted.header.Get("Location"))
	if up.Outcome.Removed != 2 || up.DesiredSize != 2 {
		f.t.Errorf("%+v, %+v; want 2 removed", up, up.Outcome)
	}
	f.awaitSize(2, 2, 3, 4)
	f.checkRetirements(2)
	kept()

	// The client requests more machines, and no process runs when they join.
	f.want(f.post("/pool/size", size(3)), http.StatusOK)
	kill()
	f.awaitSize(3, 3, 4, 5)
	kept()

	f.want(f.post("/stop", ""), http.StatusOK)
	kill()
	f.want(f.get("/pool"), http.StatusInternalServerError, notStarted)
	if status := f.document("/status", statusKeys); string(status["started"]) != "false" {
		f.t.Errorf("GET /status: %s", status)
	}
	f.want(f.post("/start", ""), http.StatusOK)
	kill()
	f.awaitSize(3, 3, 4, 5)
	kept()

	f.want(f.post("/pool/attach", `{"machineId":"`+detached+`"}`), http.StatusOK)
	f.awaitSize(4, 4, 5, 5)
	f.checkUncordoned()
}

// checkUncordoned checks that no node of the pool is still prepared for removal.
func (f *fixture) checkUncordoned() {
	f.t.Helper()
	list, err := f.Client().CoreV1().Nodes().List(f.ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: f.selector}),
	})
	f.check(err)
	for i := range list.Items {
		if n := &list.Items[i]; n.Spec.Unschedulable {
			f.t.Errorf("I3: node %s is cordoned", n.Name)
		}
	}
}
