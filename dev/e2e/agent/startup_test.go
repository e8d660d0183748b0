package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// runToExit runs one of Slipway's programs to its end. It returns the exit code and the standard error.
func runToExit(t *testing.T, program string, args ...string) (int, string) {
	t.Helper()
	cmd := testbed.NewCommand(t.Context(), t, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

func TestI10BothProgramsRefuseABadFlag(t *testing.T) {
	t.Parallel()
	for _, program := range [][]string{{"slipway-agent"}, {"slipway", "agent"}} {
		code, message := runToExit(t, program[0], slices.Concat(program[1:], []string{"--node-name=n", "--on-reboot=panic"})...)
		if code != 1 || !strings.Contains(message, "--on-reboot") || !strings.Contains(message, "drain, cordon or ignore") {
			t.Errorf("%v: exit code %d, %q; want code 1, the flag and its values", program, code, message)
		}
	}
}

// startNoWait starts an agent that may never become ready.
func (f *fixture) startNoWait(i int, flags ...string) *testbed.Agent {
	f.t.Helper()
	a, err := f.StartAgentNoWait(f.ctx, f.pool, i, flags...)
	f.check(err)
	testbed.KillAgentAfterTest(f.t, a)
	return a
}

// awaitLog waits until one line of the agent's log contains all words.
func (f *fixture) awaitLog(a *testbed.Agent, words ...string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, fmt.Sprintf("the log says %q", words), func() bool {
		raw, _ := os.ReadFile(a.LogFile())
		for line := range strings.Lines(string(raw)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	}))
}

// awaitNotReady waits until the agent is alive and says why it is not ready.
func (f *fixture) awaitNotReady(a *testbed.Agent, words string) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the agent is alive and not ready: "+words, func() bool {
		ready, said := a.IsReady(f.ctx)
		return !ready && strings.Contains(said, words) && a.IsHealthy(f.ctx)
	}))
}

func (f *fixture) awaitReady(a *testbed.Agent) {
	f.t.Helper()
	f.check(testbed.PollUntil(f.ctx, "the agent is ready", func() bool {
		ready, _ := a.IsReady(f.ctx)
		return ready
	}))
}

// TestI10AgentWaitsForWhatIsMissing starts one agent for each thing that may be missing. Only a missing permission ends
// the agent.
func TestI10AgentWaitsForWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "missing", 2)
	config, err := clientcmd.LoadFromFile(f.Kubeconfig())
	f.check(err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://127.0.0.1:1"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	f.check(clientcmd.WriteToFile(*config, path))
	noEndpoint := f.startNoWait(0, shortPolls, "--endpoint=http://127.0.0.1:1/metadata/scheduledevents?api-version=2020-07-01")
	noServer := f.startNoWait(0, shortPolls, "--kubeconfig", path)
	noNode := f.startNoWait(2, shortPolls)
	noPermission := f.startNoWait(1, shortPolls, "--kubeconfig", f.account(func(rbacv1.PolicyRule) bool { return true }))

	f.awaitMetric(noEndpoint, `slipway_agent_polls_total{result="unreachable"}`, atLeast(3))
	f.awaitNotReady(noEndpoint, "the notices have not been read yet")
	f.awaitLog(noEndpoint, "WARN", "cannot read notices", "127.0.0.1:1", "unreachable")
	f.awaitNotReady(noServer, "has not been read yet")
	f.awaitLog(noServer, "WARN", "waiting for the node", "127.0.0.1:1", "connection refused")
	f.awaitNotReady(noNode, "has not been read yet")
	f.awaitLog(noNode, "WARN", "waiting for the node", f.node(2), "not found")
	f.check(f.AddNodes(f.ctx, f.pool.Node(2)))
	f.awaitReady(noNode)
	f.check(testbed.PollUntil(f.ctx, "the agent has ended", func() bool { return !noPermission.IsAlive() }))
	f.awaitLog(noPermission, "error:", f.node(1), "forbidden", `cannot get resource "nodes"`)
}

// TestI7StalledAPIServerStopsNoDrain delays every answer of the API server during a drain, and at the start of the next
// agent.
func TestI7StalledAPIServerStopsNoDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "stalled", 1)
	web := f.app("web", 6)
	web.StopSeconds = "3"
	f.run(web.Deployment())
	was := f.marksOf(0)
	var stalled atomic.Bool
	proxy := faultproxy.New(kindOf)
	proxy.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		if stalled.Load() && r.Server == "api" {
			return faultproxy.Fault{Delay: testbed.TestTimeout}
		}
		return faultproxy.Fault{}
	})

	a := f.startNoWait(0, append(f.proxyFlags(proxy), shortPolls)...)
	t.Cleanup(func() { _ = proxy.Close() })
	f.awaitReady(a)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	f.awaitEvent(0, "Draining")
	stalled.Store(true)
	f.awaitPolls(a, 15)
	if ready, reason := a.IsReady(f.ctx); !ready || !a.IsHealthy(f.ctx) {
		t.Errorf("ready: %v (%s), healthy: %v", ready, reason, a.IsHealthy(f.ctx))
	}
	stalled.Store(false)
	f.checkApproved(f.awaitEnd(e.EventID))
	f.checkDrainedInTime(e.EventID, 6)
	f.awaitRestored(0, was)
	f.awaitPods(0, 6)

	f.check(a.KillIfAlive())
	stalled.Store(true)
	f.check(a.RestartIfDead(f.ctx))
	f.awaitNotReady(a, "has not been read yet")
	stalled.Store(false)
	f.awaitReady(a)
}
