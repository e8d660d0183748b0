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

// TestM13AMetadataServiceThatHangsIsGivenUpAndLeavesNothingOpen has the service answer nothing at all for a while.
func TestM13AMetadataServiceThatHangsIsGivenUpAndLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m13")
	a := f.mechanic(testbed.File(f.t, "mechanic.yaml", ""))
	const good, open = `slipway_agent_polls_total{result="ok"}`, "process_open_fds"
	polls, _ := a.Metric(f.ctx, good)
	f.awaitMetric(a, good, polls+3)
	before, ok := a.Metric(f.ctx, open)
	if !ok {
		t.Fatal("no " + open)
	}
	f.check(f.Azure.Inject(azure.Fault{Kind: azure.FaultHang, Times: 2, ScaleSet: f.pool.ScaleSet()}))
	f.check(testbed.Poll(f.ctx, "two looks are given up", func() bool { return len(f.Azure.Faults()) == 0 && f.failedPolls(a) >= 2 }))
	polls, _ = a.Metric(f.ctx, good)
	f.awaitMetric(a, good, polls+5) // one after the other, each over the connection of the one before
	if after, _ := a.Metric(f.ctx, open); after > before+2 {
		t.Errorf("%.0f files and connections are open, %.0f were before: each look leaves one", after, before)
	}
}

// failedPolls is how many looks at the metadata service have failed, whatever the reason.
func (f *fixture) failedPolls(a *testbed.Agent) (failed float64) {
	for line := range strings.Lines(a.Metrics(f.ctx)) {
		series, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && strings.HasPrefix(series, "slipway_agent_polls_total{") && !strings.Contains(series, `"ok"`) {
			n, _ := a.Metric(f.ctx, series)
			failed += n
		}
	}
	return failed
}

// TestM22WhatIsOnlyWorthAWarningIsLoggedAsOne drains what kubectl's library had warnings for: a pod of a DaemonSet, an
// emptyDir, a pod that nobody replaces; and what is a warning here: a budget that keeps a pod for a while.
func TestM22WhatIsOnlyWorthAWarningIsLoggedAsOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m22")
	kept, scratch := f.app("kept", 1), f.app("scratch", 1)
	kept.MinAvailable, scratch.EmptyDir = "1", true
	f.run(kept.Deployment(), kept.Budget(), scratch.Deployment(), f.app("everywhere", 1).DaemonSet(), f.app("bare", 1).Pod())
	a := f.mechanic(testbed.File(f.t, "mechanic.yaml", ""))
	r := f.announce(azure.Announcement{Type: azure.Redeploy, Notice: 5 * time.Minute, Outage: time.Second})
	f.check(testbed.Poll(f.ctx, "it says what blocks", func() bool { return a.Logged("drain is blocked") }))
	f.check(f.Client().PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, kept.Name, metav1.DeleteOptions{}))
	f.awaitEvent("DrainNode")
	warned := false
	for _, line := range a.Log() {
		switch msg, _ := line["msg"].(string); {
		case line["level"] == "ERROR" && !strings.HasPrefix(msg, "reconcile failed, will retry"): // that is of a busy machine
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

// TestM23ADryRunAgainstAnEndpointOfOnesOwnSaysInMetricsWhatWouldBeDone is all that the tool could not be given.
func TestM23ADryRunAgainstAnEndpointOfOnesOwnSaysInMetricsWhatWouldBeDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "m23")
	f.run(f.app("web", 1).Deployment())
	path := testbed.File(f.t, "mechanic.yaml", "")
	a := f.start("/readyz", func(w testbed.Where) (args, env []string) {
		return []string{
			"mechanic", "--config=" + path, "--kubeconfig=" + w.Kubeconfig, "--endpoint=" + w.Endpoint, "--listen=" + w.Listen, "--dry-run",
		}, []string{"MECHANIC_NODE_NAME=" + w.Node}
	})
	r := f.announce(azure.Announcement{Type: azure.Terminate, Notice: 20 * time.Second})
	f.awaitMetric(a, `slipway_agent_notices_total{type="Terminate",action="drain"}`, 1)
	f.check(testbed.Poll(f.ctx, "it says what it would do", func() bool { return a.Logged("dry run: the cordon claim would be written") }))
	f.awaitOver(r.EventID)
	if n := f.requests("create", "pods/eviction") + f.requests("delete", "pods"); n > 0 {
		t.Errorf("%d pods were evicted or deleted", n)
	}
	if r, err := f.AwaitNotice(f.ctx, r.EventID, "there", func(azure.Record) bool { return true }); err != nil || len(r.Approvals) > 0 {
		t.Errorf("%v, acknowledged %d times in a dry run", err, len(r.Approvals))
	}
}

// withPlugin copies a kubeconfig so that a program gives the token that is in it.
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
		f.check(os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+credential+"'\n"), 0o700)) //nolint:gosec // it is to be run
		*user = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: plugin, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}
	}
	path := filepath.Join(dir, "config")
	f.check(clientcmd.WriteToFile(*config, path))
	return path
}

// TestANodeThatAnotherHasCordonedGetsNoLabel has mechanic's label set by the cordon of its own alone. Its kubeconfig has a program
// that gives the credentials, and its file is one that mechanic warned of and started with.
func TestANodeThatAnotherHasCordonedGetsNoLabel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "found")
	f.run(f.app("web", 1).Deployment())
	f.setUnschedulable(true)
	history, err := f.RecordNode(f.ctx, f.node())
	f.check(err)
	defer history.Stop()
	path := testbed.File(f.t, "mechanic.yaml", "scheduledEvents: {freeze: perhaps, reboot: true}\n")
	a := f.start("/readyz", func(w testbed.Where) (args, env []string) {
		return []string{
			"mechanic", "--config=" + path, "--kubeconfig=" + f.withPlugin(w.Kubeconfig), "--endpoint=" + w.Endpoint, "--listen=" + w.Listen,
		}, []string{"MECHANIC_NODE_NAME=" + w.Node}
	})
	if !slices.ContainsFunc(a.Log(), func(line map[string]any) bool {
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
