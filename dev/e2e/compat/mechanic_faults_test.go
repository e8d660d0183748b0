package compat_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestM13AMetadataServiceThatHangsIsGivenUpAndLeavesNothingOpen makes the metadata service hang for a while.
func TestM13AMetadataServiceThatHangsIsGivenUpAndLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m13")
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""))
	const good, open = `slipway_agent_polls_total{result="ok"}`, "process_open_fds"
	polls, _ := a.ReadMetric(f.ctx, good)
	f.awaitMetric(a, good, polls+3)
	before, ok := a.ReadMetric(f.ctx, open)
	if !ok {
		t.Fatal("no " + open)
	}
	f.check(f.Azure.InjectFaults(azure.Fault{Kind: azure.FaultHang, Times: 2, ScaleSet: f.pool.ScaleSetName()}))
	f.check(testbed.PollUntil(f.ctx, "two looks are given up", func() bool { return len(f.Azure.Faults()) == 0 && f.failedPolls(a) >= 2 }))
	polls, _ = a.ReadMetric(f.ctx, good)
	f.awaitMetric(a, good, polls+5) // sequential polls, each on the connection of the previous poll
	if after, _ := a.ReadMetric(f.ctx, open); after > before+2 {
		t.Errorf("%.0f files and connections are open, %.0f were before: each look leaves one", after, before)
	}
}

// failedPolls counts the failed polls of the metadata service, for any reason.
func (f *fixture) failedPolls(a *testbed.Agent) (failed float64) {
	for line := range strings.Lines(a.ReadMetrics(f.ctx)) {
		series, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && strings.HasPrefix(series, "slipway_agent_polls_total{") && !strings.Contains(series, `"ok"`) {
			n, _ := a.ReadMetric(f.ctx, series)
			failed += n
		}
	}
	return failed
}

// TestM22WhatIsOnlyWorthAWarningIsLoggedAsOne drains pods that kubectl's library warned about: a DaemonSet pod, an
// emptyDir, and a pod without a controller. It also covers a warning of Slipway: a PDB that blocks a pod for a while.
func TestM22WhatIsOnlyWorthAWarningIsLoggedAsOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m22")
	kept, scratch := f.app("kept", 1), f.app("scratch", 1)
	kept.MinAvailable, scratch.EmptyDir = "1", true
	f.run(kept.Deployment(), kept.PodDisruptionBudget(), scratch.Deployment(), f.app("everywhere", 1).DaemonSet(), f.app("bare", 1).Pod())
	a := f.mechanic(testbed.WriteTempFile(f.t, "mechanic.yaml", ""))
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.check(testbed.PollUntil(f.ctx, "it says what blocks", func() bool { return a.HasLogged("drain is blocked") }))
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, kept.Name, metav1.DeleteOptions{}))
	f.awaitEvent("DrainNode")
	warned := false
	for _, line := range a.ReadLog() {
		switch msg, _ := line["msg"].(string); {
		case line["level"] == "ERROR" && !strings.HasPrefix(msg, "reconcile failed, will retry"): // a busy host can cause this error
			t.Errorf("%v", line)
		case msg == "drain is blocked":
			warned = line["level"] == "WARN"
		}
	}
	if !warned {
		t.Error("what blocks is no warning")
	}
	f.awaitOver(r.EventID)
}

// TestM23ADryRunAgainstAnEndpointOfOnesOwnSaysInMetricsWhatWouldBeDone checks all settings that the original tool lacked.
func TestM23ADryRunAgainstAnEndpointOfOnesOwnSaysInMetricsWhatWouldBeDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m23")
	f.run(f.app("web", 1).Deployment())
	path := testbed.WriteTempFile(f.t, "mechanic.yaml", "")
	a := f.start("/readyz", func(w testbed.AgentSettings) (args, env []string) {
		return []string{
			"mechanic", "--config=" + path, "--kubeconfig=" + w.Kubeconfig, "--endpoint=" + w.Endpoint, "--listen=" + w.Listen, "--dry-run",
		}, []string{"MECHANIC_NODE_NAME=" + w.Node}
	})
	r := f.announce(azure.Announcement{Type: azure.Terminate, Notice: 20 * time.Second})
	f.awaitMetric(a, `slipway_agent_notices_total{type="Terminate",action="drain"}`, 1)
	f.check(testbed.PollUntil(f.ctx, "it says what it would do", func() bool { return a.HasLogged("dry run: the cordon claim would be written") }))
	f.awaitOver(r.EventID)
	if n := f.requests("create", "pods/eviction") + f.requests("delete", "pods"); n > 0 {
		t.Errorf("%d pods were evicted or deleted", n)
	}
	if r, err := f.AwaitNotice(f.ctx, r.EventID, "there", func(azure.EventRecord) bool { return true }); err != nil || len(r.Approvals) > 0 {
		t.Errorf("%v, acknowledged %d times in a dry run", err, len(r.Approvals))
	}
}

// withPlugin copies a kubeconfig, and lets a program return its token.
func (f *fixture) withPlugin(kubeconfig string) string {
	f.t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	f.check(err)
	dir := f.t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	for _, user := range config.AuthInfos {
		token := user.Token
		if raw, err := os.ReadFile(user.TokenFile); err == nil {
			token = strings.TrimSpace(string(raw))
		}
		credential := fmt.Sprintf(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":%q}}`, token)
		f.check(os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+credential+"'\n"), 0o700)) //nolint:gosec // it must be executable
		*user = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: plugin, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}
	}
	path := filepath.Join(dir, "config")
	f.check(clientcmd.WriteToFile(*config, path))
	return path
}

// TestANodeThatAnotherHasCordonedGetsNoLabel checks that only Slipway's own cordon sets mechanic's label. The
// kubeconfig gets its credentials from a program. Mechanic also started with such a file, and logged a warning.
func TestANodeThatAnotherHasCordonedGetsNoLabel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "found")
	f.run(f.app("web", 1).Deployment())
	f.setUnschedulable(true)
	history, err := f.RecordNodeStates(f.ctx, f.node())
	f.check(err)
	defer history.StopRecording()
	path := testbed.WriteTempFile(f.t, "mechanic.yaml", "scheduledEvents: {freeze: perhaps, reboot: true}\n")
	a := f.start("/readyz", func(w testbed.AgentSettings) (args, env []string) {
		return []string{
			"mechanic", "--config=" + path, "--kubeconfig=" + f.withPlugin(w.Kubeconfig), "--endpoint=" + w.Endpoint, "--listen=" + w.Listen,
		}, []string{"MECHANIC_NODE_NAME=" + w.Node}
	})
	if !slices.ContainsFunc(a.ReadLog(), func(line map[string]any) bool {
		return strings.Contains(fmt.Sprint(line["msg"]), "scheduledEvents.freeze")
	}) {
		t.Error("it says nothing of the value that it passed over")
	}
	r := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute, Outage: time.Second})
	f.awaitEvent("DrainNode")
	f.awaitOver(r.EventID)
	f.awaitNode("without a claim", func(n *corev1.Node) bool { return n.Annotations["cordon.slipway.dev/azure-"+r.EventID] == "" })
	if slices.ContainsFunc(history.States(), labelled) {
		t.Error("the node had the label mechanic.cordoned, though another had cordoned it")
	}
	if n := f.awaitNode("there", func(*corev1.Node) bool { return true }); !cordoned(n) {
		t.Error("it was uncordoned, though another had cordoned it")
	}
}
