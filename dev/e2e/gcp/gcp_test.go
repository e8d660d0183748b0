package gcp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/gcp"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestPreemptionDrainsTheNodeInTime covers a preemption that the agent sees by a request that waits. The kubelet's graceful
// shutdown also begins at the notice, so the evictions have to come before it marks the pods as Failed.
func TestPreemptionDrainsTheNodeInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "gcpspot", gcp.Options{})
	f.metadata.SetNoUpcoming(f.node) // as for most VMs
	f.run(f.app(12).Deployment())
	f.start()
	announced := time.Now()
	due := f.metadata.Preempt(f.node)
	gone := f.awaitNoPods()
	if !gone.Before(due) {
		t.Errorf("the pods left the node %v after the VM stopped", gone.Sub(due))
	}
	f.awaitNode("drained", isDrained)
	last, accepted := f.lastEviction()
	if accepted < 12 {
		t.Errorf("%d evictions, want 12", accepted)
	}
	pods, err := f.AwaitPods(f.ctx, f.node, "listed", func([]corev1.Pod) bool { return true })
	f.check(err)
	for _, p := range pods {
		if p.Namespace == f.ns && p.Status.Phase == corev1.PodFailed {
			t.Errorf("pod %s is Failed", p.Name)
		}
	}
	t.Logf("12 evictions accepted %v after the notice; pods gone after %v", last.Sub(announced).Round(time.Millisecond), gone.Sub(announced).Round(time.Millisecond))
	f.metadata.CancelPreemption(f.node)
	f.awaitNode("restored", isRestored)
}

func TestHostMaintenanceDrainsAndRestoresTheNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "gcphost", gcp.Options{MaintenanceNotice: 10 * time.Second, Outage: time.Second})
	f.run(f.app(3).Deployment())
	a := f.start()
	f.metadata.SetUnavailable(f.node, true) // the metadata server is under maintenance, too
	f.awaitMetric(a, `slipway_agent_last_read_timestamp_seconds`, f.readMetricUntilStable(a))
	f.metadata.SetUnavailable(f.node, false)
	due := f.metadata.Maintain(f.node, gcp.Terminate)
	if gone := f.awaitNoPods(); !gone.Before(due) {
		t.Errorf("the pods left the node %v after the VM stopped", gone.Sub(due))
	}
	f.awaitNode("drained", isDrained)
	f.awaitNode("restored after the maintenance", isRestored)
}

// readMetricUntilStable waits until the agent's reads fail, and returns the time of its last good read.
func (f *fixture) readMetricUntilStable(a *testbed.Agent) float64 {
	f.t.Helper()
	const failed = `slipway_agent_polls_total{result="http_status"}`
	f.check(testbed.PollUntil(f.ctx, failed+" is 2", func() bool {
		value, found := a.ReadMetric(f.ctx, failed)
		return found && value >= 2
	}))
	value, _ := a.ReadMetric(f.ctx, `slipway_agent_last_read_timestamp_seconds`)
	return value
}

func TestPlannedMaintenanceWaitsForItsLead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "gcpplan", gcp.Options{})
	f.run(f.app(3).Deployment())
	history, err := f.RecordNodeStates(f.ctx, f.node)
	f.check(err)
	t.Cleanup(history.StopRecording)
	f.metadata.Plan(f.node, time.Now().Add(14*24*time.Hour))
	a := f.start()
	const planned = `slipway_agent_planned_notices{type="Redeploy"}`
	f.awaitMetric(a, planned, 1)
	for _, n := range history.States() {
		if n.Spec.Unschedulable {
			t.Fatal("the node was cordoned two weeks before the maintenance")
		}
	}
	f.metadata.Plan(f.node, time.Now().Add(10*time.Minute))
	f.awaitNoPods()
	f.awaitNode("drained", isDrained)
	f.metadata.CancelPlan(f.node)
	f.awaitNode("restored", isRestored)
}

// TestGKELabelDrainsAndStartsTheMaintenance follows the labels of GKE: the plan, the agent's request, the maintenance, the end.
func TestGKELabelDrainsAndStartsTheMaintenance(t *testing.T) {
	t.Parallel()
	const (
		scheduled, active  = "cloud.google.com/scheduled-maintenance-time", "cloud.google.com/active-node-maintenance"
		perform, performed = "cloud.google.com/perform-maintenance", "gke.slipway.dev/perform-maintenance"
	)
	f := newFixture(t, "gke", gcp.Options{})
	f.run(f.app(3).Deployment())
	a := f.start()
	f.labelNode(map[string]any{scheduled: strconv.FormatInt(time.Now().Add(14*24*time.Hour).Unix(), 10)})
	f.awaitMetric(a, `slipway_agent_planned_notices{type="Redeploy"}`, 1)
	f.labelNode(map[string]any{scheduled: strconv.FormatInt(time.Now().Add(10*time.Minute).Unix(), 10)})
	f.awaitNoPods()
	n := f.awaitNode("drained, with the request to start the maintenance", func(n *corev1.Node) bool { return isDrained(n) && n.Labels[perform] == "true" })
	if n.Annotations[performed] == "" {
		t.Errorf("the label has no record: %v", n.Annotations)
	}
	f.labelNode(map[string]any{active: "ONGOING", scheduled: nil})
	f.patchNode(map[string]any{"spec": map[string]any{"taints": append(n.Spec.Taints, corev1.Taint{Key: "cloud.google.com/impending-node-termination", Effect: "NoSchedule"})}})
	f.check(f.metadataOutage(a))
	f.labelNode(map[string]any{active: nil})
	f.patchNode(map[string]any{"spec": map[string]any{"taints": n.Spec.Taints}})
	f.awaitNode("restored, without the request", func(n *corev1.Node) bool {
		_, has := n.Labels[perform]
		_, recorded := n.Annotations[performed]
		return isRestored(n) && !has && !recorded
	})
}

// metadataOutage restarts the agent during the maintenance, as the VM's restart does.
func (f *fixture) metadataOutage(a *testbed.Agent) error {
	if err := a.KillIfAlive(); err != nil {
		return err
	}
	return a.RestartIfDead(f.ctx)
}

// TestPluginNoticeDrainsAndIsAcknowledged covers a source of --notice-source beside the cloud's.
func TestPluginNoticeDrainsAndIsAcknowledged(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "plugin", gcp.Options{})
	f.run(f.app(3).Deployment())
	var mu sync.Mutex
	document, acknowledged := `{"apiVersion": "slipway.dev/notice/v1", "notices": []}`, ""
	plugin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPost {
			var body struct{ APIVersion, Acknowledge string }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			acknowledged = body.Acknowledge
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = io.WriteString(w, document) // the agent sees a broken connection
	}))
	t.Cleanup(plugin.Close)
	announce := func(notices string) {
		mu.Lock()
		defer mu.Unlock()
		document = `{"apiVersion": "slipway.dev/notice/v1", "notices": [` + notices + `]}`
	}
	f.start("--notice-source", "hypervisor="+plugin.URL)
	at := time.Now().Add(5 * time.Minute).UTC().Format(time.RFC3339)
	announce(`{"id": "move-1", "type": "Redeploy", "notBefore": "` + at + `", "acknowledge": true}`)
	f.awaitNoPods()
	f.check(testbed.PollUntil(f.ctx, "the plug-in has the acknowledgement", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return acknowledged == "move-1"
	}))
	announce("")
	f.awaitNode("restored", isRestored)
}
