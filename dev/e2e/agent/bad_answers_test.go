package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
)

// TestI7BadAnswersEndNoNotice makes the metadata service answer badly while the agent handles an event. The agent counts
// each bad answer, and understands the next good answer.
func TestI7BadAnswersEndNoNotice(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "bad-answers", 1)
	was := f.marksOf(0)
	a := f.agent(0, shortPolls, noApproval, "--request-timeout=2s")
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitNode(0, "drained", hasCondition("Drained"))
	history := f.record(0)
	poll := func(class string) string { return fmt.Sprintf("slipway_agent_polls_total{result=%q}", class) }
	for _, tc := range []struct {
		name   string
		fault  azure.Fault
		metric string
	}{
		{"half the document", azure.Fault{Kind: azure.FaultHalf}, poll("cut_short")},
		{"an HTML page", azure.Fault{Kind: azure.FaultHTML}, poll("not_json")},
		{"status 500", azure.Fault{Kind: azure.FaultStatus, Status: http.StatusInternalServerError}, poll("http_status")},
		{"no answer", azure.Fault{Kind: azure.FaultHang}, poll("timeout")},
		{"a reset", azure.Fault{Kind: azure.FaultReset}, poll("unreachable")},
		{"no list of events", azure.Fault{Kind: azure.FaultField, Field: "Events", Value: json.RawMessage("null")}, poll("wrong_shape")},
		{"an event without resources", azure.Fault{Kind: azure.FaultField, Field: "Resources"}, "slipway_agent_unreadable_notices_total"},
	} {
		before, ok := a.ReadMetric(f.ctx, tc.metric)
		if !ok {
			t.Fatalf("%s: the agent has no metric %s", tc.name, tc.metric)
		}
		// On a reused connection, net/http retries a request after a reset.
		tc.fault.ScaleSet, tc.fault.Times = f.pool.ScaleSetName(), 2
		f.check(f.Azure.InjectFaults(tc.fault))
		f.awaitMetric(a, tc.metric, atLeast(before+1))
		f.awaitPolls(a, 2)
		if ready, reason := a.IsReady(f.ctx); !ready {
			t.Errorf("%s: the agent is not ready: %s", tc.name, reason)
		}
		for _, n := range history.States() {
			if !cordoned(n) || !claimedBy(e.EventID)(n) {
				t.Fatalf("%s: the notice has ended: %s", tc.name, marks(n))
			}
		}
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitRestored(0, was)
}

// TestI7FailedApprovalIsRetried checks that the event still starts early.
func TestI7FailedApprovalIsRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "approval", 1)
	was := f.marksOf(0)
	for _, fault := range []azure.Fault{
		{Kind: azure.FaultStatus, Status: http.StatusInternalServerError}, {Kind: azure.FaultReset, Processed: true},
	} {
		fault.Method, fault.ScaleSet, fault.Times = http.MethodPost, f.pool.ScaleSetName(), 1
		f.check(f.Azure.InjectFaults(fault))
	}
	f.agent(0, shortPolls)
	e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
	f.checkApproved(f.awaitEnd(e.EventID))
	f.awaitRestored(0, was)
}
