//go:build unix

package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/notify"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// fixture holds an instance, a namespace for one test, and a receiver.
type fixture struct {
	*testbed.Testbed
	t    *testing.T
	ctx  context.Context
	pool controlplane.AKSPool

	mu  sync.Mutex
	got []notify.Message
	url string
}

func newFixture(t *testing.T, name string) *fixture {
	t.Helper()
	ctx := testbed.TestContext(t)
	f := &fixture{Testbed: testbed.StartShared(t), t: t, ctx: ctx, pool: controlplane.AKSPool{Name: name}}
	f.check(f.AddPool(ctx, f.pool, 1))
	f.check(workload.Create(ctx, f.Client(), workload.NewNamespace(name)))
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m notify.Message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Errorf("invalid JSON in a message: %v", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.got = append(f.got, m)
	}))
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) app(name string, replicas int32, maxUnavailable string) workload.App {
	return workload.App{
		Namespace: f.pool.Name, Name: name, Replicas: replicas, Node: f.pool.NodeName(0), MaxUnavailable: maxUnavailable,
	}
}

// agent starts the instance's agent with a configuration file.
func (f *fixture) agent(config string, flags ...string) *testbed.Agent {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "agent.yaml")
	f.check(os.WriteFile(path, []byte(config), 0o600))
	return f.StartAgentForTest(f.ctx, f.t, f.pool, 0, append(flags, "--config="+path)...)
}

func (f *fixture) announce(a azure.Announcement) azure.EventRecord {
	f.t.Helper()
	return f.AnnounceForTest(f.t, f.pool, a)
}

// moments returns the received moments in order.
func (f *fixture) moments() []notify.Moment {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []notify.Moment
	for _, m := range f.got {
		all = append(all, m.Moment)
	}
	return all
}

// awaitMoments waits until the receiver has received exactly these moments.
func (f *fixture) awaitMoments(want ...notify.Moment) notify.Message {
	f.t.Helper()
	err := testbed.PollUntil(f.ctx, fmt.Sprintf("%v are received", want), func() bool { return len(f.moments()) >= len(want) })
	if got := f.moments(); err != nil || !slices.Equal(got, want) {
		f.t.Fatalf("received %v, want %v: %v", got, want, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got[len(f.got)-1]
}

const agentConfig = `
pollInterval: 200ms
acknowledge: false
notifications:
- name: unavailable
  webhook: {url: "http://127.0.0.1:1"}
- name: test
  moments: [detected, blocked, drained, deadline-passed, over]
  webhook: {url: "URL"}
`

func TestI8EachMomentIsNotifiedOnceDespiteKills(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "moments")
	web, budgeted := f.app("web", 2, ""), f.app("blocked", 1, "0")
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), web.Deployment(), budgeted.Deployment(), budgeted.PodDisruptionBudget()))
	a := f.agent(strings.Replace(agentConfig, "URL", f.url, 1))
	restart := func() {
		t.Helper()
		f.check(a.KillIfAlive())
		f.check(a.RestartIfDead(f.ctx))
		f.check(testbed.PollUntil(f.ctx, "the agent guards its node again", func() bool {
			ready, _ := a.IsReady(f.ctx)
			return ready
		}))
	}

	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 15 * time.Minute})
	blocked := f.awaitMoments(notify.Detected, notify.Blocked)
	f.mu.Lock()
	detected := f.got[0]
	f.mu.Unlock()
	node, err := f.Client().CoreV1().Nodes().Get(f.ctx, f.pool.NodeName(0), metav1.GetOptions{})
	f.check(err)
	if detected.Event.EventId != e.EventID || detected.NodeName != node.Name || detected.Event.EventType != "Reboot" ||
		detected.InstanceType != node.Labels["node.kubernetes.io/instance-type"] || detected.SecondsLeft < 14*60 {
		t.Errorf("%+v", detected)
	}
	if len(detected.Pods) != 3 || detected.Pods[0].Namespace != "moments" || !strings.HasPrefix(detected.Pods[0].Owner, "ReplicaSet/blocked-") {
		t.Errorf("pods %+v", detected.Pods)
	}
	if len(blocked.Blocked) != 1 || blocked.Blocked[0].Budget != "moments/blocked" || blocked.Blocked[0].Reason != "disruption-budget" {
		t.Errorf("blocked %+v", blocked.Blocked)
	}

	f.check(testbed.PollUntil(f.ctx, "the notified moment is recorded", func() bool {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, node.Name, metav1.GetOptions{})
		return err == nil && strings.Contains(n.Annotations["cordon.slipway.dev/azure-"+e.EventID], "blocked")
	}))
	restart()
	f.check(f.Client().PolicyV1().PodDisruptionBudgets("moments").Delete(f.ctx, budgeted.Name, metav1.DeleteOptions{}))
	drained := f.awaitMoments(notify.Detected, notify.Blocked, notify.Drained)
	if len(drained.Pods) == 0 || drained.Pods[0].State != "gone" {
		t.Errorf("pods %+v", drained.Pods)
	}
	_, err = f.AwaitEvent(f.ctx, node.Name, "Drained")
	f.check(err)
	f.check(testbed.PollUntil(f.ctx, "the notified moment is recorded", func() bool {
		n, err := f.Client().CoreV1().Nodes().Get(f.ctx, node.Name, metav1.GetOptions{})
		return err == nil && n.Labels["notice.slipway.dev/azure-"+e.EventID] == "drained"
	}))
	restart()
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitMoments(notify.Detected, notify.Blocked, notify.Drained, notify.Ended)
	f.check(testbed.PollUntil(f.ctx, "a request to the unavailable receiver failed", func() bool {
		n, _ := a.ReadMetric(f.ctx, `slipway_notifications_total{receiver="unavailable",result="failed"}`)
		return n > 0
	}))
}

func TestDrainDoesNotWaitForReceivers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "hanging")
	f.check(workload.CreateAndAwait(f.ctx, f.Client(), f.app("web", 5, "").Deployment()))
	over := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(hanging.Close)
	t.Cleanup(func() { close(over) })
	a := f.agent(strings.NewReplacer(`"URL"`, fmt.Sprintf(`"%s", timeout: 10m`, hanging.URL), "acknowledge: false", "acknowledge: true").Replace(agentConfig))
	// The event is a Freeze, because the agent survives it and keeps its metrics.
	e := f.announce(azure.Announcement{
		Type: azure.Freeze, DurationSeconds: new(60), Notice: 15 * time.Minute, Outage: time.Second,
	})
	r, err := f.AwaitNotice(f.ctx, e.EventID, "acknowledged", func(r azure.EventRecord) bool { return len(r.Approvals) > 0 })
	f.check(err)
	// One request hangs for 10 min, and the agent sends several.
	if took := r.Approvals[0].At.Sub(r.VisibleAt); took > 5*time.Minute {
		t.Errorf("acknowledged after %s", took)
	}
	if n, ok := a.ReadMetric(f.ctx, `slipway_notifications_waiting{receiver="test"}`); !ok || n == 0 {
		t.Errorf("%v messages wait for the hanging receiver (metric exists: %t)", n, ok)
	}
}

// These are the memory limits of an idle agent, in MiB. `make bench GROUP=agent` allows at most 16 in total without
// receivers. With receivers the total is within 0.5 % of that, which is less than the difference between two processes.
// Receivers could only increase the anonymous memory, which is some 4.8. All other memory is of the program's file.
const (
	maxMemory    = 17
	maxAnonymous = 6
)

func TestAgentWithReceiversStaysWithinMemoryLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "memory")
	a := f.agent(strings.Replace(agentConfig, "URL", f.url, 1))
	f.check(testbed.PollUntil(f.ctx, "the agent has polled 50 times", func() bool {
		n, _ := a.ReadMetric(f.ctx, `slipway_agent_polls_total{result="ok"}`)
		return n >= 50
	}))
	now, _, err := a.ResidentMemory()
	f.check(err)
	setProcessGroup, err := a.AnonymousMemory()
	f.check(err)
	mebibytes := func(bytes int64) float64 { return float64(bytes) / (1 << 20) }
	t.Logf("%.1f MiB resident, %.1f MiB anonymous", mebibytes(now), mebibytes(setProcessGroup))
	if now > maxMemory<<20 || setProcessGroup > maxAnonymous<<20 || setProcessGroup == 0 {
		t.Errorf("%.1f MiB resident and %.1f MiB anonymous, want at most %d and %d", mebibytes(now), mebibytes(setProcessGroup), maxMemory, maxAnonymous)
	}
}
