package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/gcp"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// The labels of GKE on a Node. The agent sets the last one.
const (
	scheduledLabel = "cloud.google.com/scheduled-maintenance-time"
	activeLabel    = "cloud.google.com/active-node-maintenance"
	performLabel   = "cloud.google.com/perform-maintenance"
)

// The owners of the agent's cordon claims: for a maintenance that a label of GKE announces, and for a maintenance that the
// metadata server announces.
const (
	gkeOwner  = "gke-maintenance"
	hostOwner = "gce-host-maintenance-event"
)

// googleCloud is the emulated Google Cloud: the metadata server of each VM, and the labels of GKE.
type googleCloud struct {
	*noticeLog

	emulator *gcp.Emulator
	server   *http.Server
	url      string
}

func startGoogle(t *testbed.Testbed) (*googleCloud, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // returns at once
	if err != nil {
		return nil, fmt.Errorf("start the metadata servers: %w", err)
	}
	g := &googleCloud{noticeLog: newNoticeLog(t, vmName), url: "http://" + listener.Addr().String()}
	g.emulator = gcp.New(gcp.Options{Machines: g.noticeLog})
	for _, m := range allMachines() {
		g.emulator.AddVM(vmName(m))
	}
	g.server = &http.Server{Handler: g.emulator.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = g.server.Serve(listener) }()
	return g, nil
}

func vmName(m machine) string { return fmt.Sprintf("gke-%s-%d", m.pool.Name, m.instance) }

func (g *googleCloud) close() {
	g.noticeLog.close()
	g.emulator.Close()
	_ = g.server.Close() // it has no state to save
}

func (*googleCloud) title() string { return "Google" }

func (*googleCloud) describe(s *stage) string {
	return fmt.Sprintf("Google Cloud is emulated too: the metadata servers of the VMs, and the labels that GKE sets. A real slipway-agent guards each of "+
		"%d nodes. ", len(s.agents)) + noLaunches
}

func (*googleCloud) newNode(m machine) controlplane.NodeSpec {
	labels := map[string]string{
		"node.kubernetes.io/instance-type": "n2-standard-16", "topology.kubernetes.io/region": "europe-west4",
		"topology.kubernetes.io/zone": "europe-west4-a", "cloud.google.com/gke-nodepool": m.pool.Name,
	}
	if m.pool.Spot {
		labels["cloud.google.com/gke-spot"] = "true"
	}
	return controlplane.NodeSpec{Name: m.node(), ProviderID: "gce://project-1/europe-west4-a/" + vmName(m), Labels: labels}
}

func (g *googleCloud) agentFlags(m machine) []string {
	return []string{"--endpoint", gcp.URL(g.url, vmName(m))}
}

func (*googleCloud) prepare(context.Context, *stage) error { return nil }

func (g *googleCloud) announce(what interruption, m machine) (azure.EventRecord, string, error) {
	name, now := vmName(m), time.Now()
	switch what {
	case spotLoss:
		due := g.emulator.Preempt(name)
		return g.add("gce-spot-preempted", name, azure.Preempt, now, due), "Google: the Spot VM " + name + " is preempted, and stops in 30 s", nil
	case laterReboot:
		due := g.emulator.Maintain(name, gcp.Terminate)
		r := g.add(hostOwner, name, azure.Redeploy, now, due)
		return r, "Google: " + name + " will stop in 60 s, for a maintenance of its host", checkExpectation(time.Until(due) > 0,
			"an agent that has read maintenance-event", "none, so Google gives no warning")
	case distantEvent:
		due := now.Add(distantNotice)
		g.emulator.Plan(name, due)
		return g.add("gce-planned-upcoming-maintenance", name, azure.Redeploy, now, due), "Google: " + name + " has a maintenance in 2 weeks (upcoming-maintenance)", nil
	}
	due := now.Add(10 * time.Minute).Truncate(time.Second)
	if err := labelNode(g.ctx, g.testbed, m.node(), map[string]any{scheduledLabel: strconv.FormatInt(due.Unix(), 10)}); err != nil {
		return azure.EventRecord{}, "", err
	}
	r := g.add(gkeOwner, name, azure.Redeploy, now, due)
	g.follow(func(ctx context.Context) error { return g.maintainAtRequest(ctx, m, r) })
	return r, fmt.Sprintf("GKE: the label %s=%d announces a maintenance of %s in 10 minutes, or at request", scheduledLabel, due.Unix(), name), nil
}

// maintainAtRequest waits until the agent requests the planned maintenance of a machine. Then it runs the maintenance as GKE does.
func (g *googleCloud) maintainAtRequest(ctx context.Context, m machine, r azure.EventRecord) error {
	_, err := g.testbed.AwaitNode(ctx, m.node(), "labelled with the request", func(n *corev1.Node) bool { return n.Labels[performLabel] == "true" })
	if err != nil {
		return err
	}
	g.approve(r)
	if err := labelNode(ctx, g.testbed, m.node(), map[string]any{scheduledLabel: nil, activeLabel: "ONGOING"}); err != nil {
		return err
	}
	if err := g.restartMachine(ctx, r.Resources[0]); err != nil {
		return err
	}
	if err := labelNode(ctx, g.testbed, m.node(), map[string]any{activeLabel: nil}); err != nil {
		return err
	}
	g.vanish(r, azure.Finished)
	return nil
}

func (g *googleCloud) cancel(r azure.EventRecord) error {
	if r.EventID == hostOwner {
		g.emulator.CancelMaintenance(r.Resources[0])
	} else {
		g.emulator.CancelPlan(r.Resources[0])
	}
	g.vanish(r, azure.Cancelled)
	return nil
}

func (*googleCloud) approval(r azure.EventRecord) string {
	if r.EventID == gkeOwner {
		return "requests the maintenance (label " + performLabel + ")"
	}
	return ""
}

func (*googleCloud) steps(s *stage) []*step {
	distant := &step{title: "A maintenance is planned in two weeks", run: s.runDistantEvent}
	return []*step{
		{title: "A Spot VM is preempted with 30 s notice", run: s.runSpotNotice},
		{title: "A maintenance of the host is announced and cancelled", run: s.runCancelledReboot},
		distant,
		{title: "An agent is killed during a drain", runAfter: distant, run: s.runKilledAgent},
		{title: "GKE maintains a node: label in, drain, label out", run: s.runGKEMaintenance},
	}
}

// runGKEMaintenance runs the step with a maintenance that GKE announces by a label.
func (s *stage) runGKEMaintenance(ctx context.Context, a *stepOutput) (string, error) {
	outcome, err := s.runReboot(ctx, a)
	if err != nil {
		return "", err
	}
	_, err = s.AwaitNode(ctx, rebooted.node(), "without the label "+performLabel, func(n *corev1.Node) bool { _, has := n.Labels[performLabel]; return !has })
	a.print(time.Now(), "the agent has removed its label %s, 10 s after the end", performLabel)
	return outcome, err
}
