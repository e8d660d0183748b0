package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
)

// patient delays the start of an event while a test checks the effects of its notice. Otherwise, the agent of an empty
// node approves the event at once.
const patient = "--acknowledge=false"

// setUnschedulable cordons or uncordons a node, as a person does.
func (f *fixture) setUnschedulable(i int, to bool) {
	f.t.Helper()
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, to)
	_, err := f.Client().CoreV1().Nodes().Patch(f.ctx, f.node(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	f.check(err)
}

// heldBy reports whether the node carries the cordon claim of an event.
func heldBy(id string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		for key, value := range n.Annotations {
			if strings.HasPrefix(key, "cordon.slipway.dev/") && strings.Contains(value, id) {
				return true
			}
		}
		return false
	}
}

func not(is func(*corev1.Node) bool) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return !is(n) }
}

func TestI3ACordonThatWasThereBeforeStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "found", 1)
	f.run(f.app("web", 2).Deployment())
	f.setUnschedulable(0, true)
	settled := func(n *corev1.Node) bool {
		return cordoned(n) && slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnschedulable
		})
	}
	was := marks(f.awaitNode(0, "cordoned", settled))
	history := f.record(0)
	a := f.agent(0, brisk, patient, "--taint-effect=NoSchedule")
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitNode(0, "held", heldBy(e.EventID))
	f.awaitEvent(0, "AlreadyCordoned")
	f.awaitPods(0, 0) // a cordoned node is not drained
	f.awaitEvent(0, "Drained")
	if n, ok := a.ReadMetric(f.ctx, `slipway_agent_cordons_total{type="Reboot"}`); n != 0 || !ok {
		t.Errorf("somebody else's cordon is counted as ours: %v (there: %v)", n, ok)
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitEvent(0, "LeftCordoned")
	if is := marks(f.awaitNode(0, "free", not(heldBy(e.EventID)))); is != was {
		t.Errorf("node is  %s\nit was %s", is, was)
	}
	if slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return !cordoned(n) }) {
		t.Error("the node was uncordoned meanwhile")
	}
}

func TestI3LastOfTwoNoticesUncordons(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "two", 1)
	was := f.marksOf(0)
	f.agent(0, brisk, patient, "--taint-effect=NoSchedule")
	first := f.announce(azure.Announcement{Type: azure.Reboot})
	second := f.announce(azure.Announcement{Type: azure.Redeploy})
	both := func(n *corev1.Node) bool { return heldBy(first.EventID)(n) && heldBy(second.EventID)(n) }
	f.awaitNode(0, "held by both", both)
	f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
	history := f.record(0)

	f.check(f.Azure.CancelEvent(first.EventID))
	n := f.awaitNode(0, "held by the second alone", not(heldBy(first.EventID)))
	if !cordoned(n) || !heldBy(second.EventID)(n) || condition(n, "MaintenancePlanned") == nil {
		t.Errorf("after the first had released: %s", marks(n))
	}
	f.check(f.Azure.CancelEvent(second.EventID))
	f.awaitAsItWas(0, was)
	for _, n := range history.States() {
		if !cordoned(n) && heldBy(second.EventID)(n) {
			t.Errorf("the node took pods while the second notice held it: %s", marks(n))
		}
	}
}

func TestI3ANodeThatSomebodyUncordonsIsCordonedAgainAndItIsSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "meddler", 1)
	was := f.marksOf(0)
	f.agent(0, brisk, patient)
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitEvent(0, "Drained")
	history := f.record(0)
	f.setUnschedulable(0, false)
	f.awaitEvent(0, "Recordoned")
	f.awaitNode(0, "cordoned again", cordoned)
	if !slices.ContainsFunc(history.States(), func(n *corev1.Node) bool { return !cordoned(n) }) {
		t.Error("the node was never seen uncordoned")
	}
	f.check(f.Azure.CancelEvent(e.EventID))
	f.awaitAsItWas(0, was)
}

func TestI3NextAgentRestoresNodeAfterAnEndedEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "dead", 1)
	was := f.marksOf(0)
	a := f.agent(0, brisk, patient, "--taint-effect=NoSchedule")
	e := f.announce(azure.Announcement{Type: azure.Reboot})
	f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
	f.check(a.KillIfAlive())
	f.check(f.Azure.CancelEvent(e.EventID))
	if n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true }); !heldBy(e.EventID)(n) {
		t.Fatalf("nobody was there to released the node, and it is free: %s", marks(n))
	}
	f.check(a.RestartIfDead(f.ctx))
	f.awaitAsItWas(0, was)
	f.awaitEvent(0, "Uncordoned")
}

// TestI7ABadAnswerNeverEndsANotice makes the metadata service answer badly while the agent handles an event. No bad
// answer ends the event. The agent counts each one, and understands the next good answer.
func TestI7ABadAnswerNeverEndsANotice(t *testing.T) {
	t.Parallel()
	const unreadable = "slipway_agent_unreadable_notices_total"
	poll := func(class string) string { return fmt.Sprintf("slipway_agent_polls_total{result=%q}", class) }
	for name, tc := range map[string]struct {
		fault  azure.Fault
		metric string
	}{
		"half":           {azure.Fault{Kind: azure.FaultHalf}, poll("cut_short")},
		"html":           {azure.Fault{Kind: azure.FaultHTML}, poll("not_json")},
		"500":            {azure.Fault{Kind: azure.FaultStatus, Status: http.StatusInternalServerError}, poll("http_status")},
		"410":            {azure.Fault{Kind: azure.FaultStatus, Status: http.StatusGone}, poll("http_status")},
		"429":            {azure.Fault{Kind: azure.FaultStatus, Status: http.StatusTooManyRequests}, poll("http_status")},
		"404":            {azure.Fault{Kind: azure.FaultStatus, Status: http.StatusNotFound}, poll("http_status")},
		"hang":           {azure.Fault{Kind: azure.FaultHang}, poll("timeout")},
		"reset":          {azure.Fault{Kind: azure.FaultReset}, poll("unreachable")},
		"empty":          {azure.Fault{Kind: azure.FaultEmpty}, poll("not_json")},
		"10-mebibytes":   {azure.Fault{Kind: azure.FaultHuge, Size: 10 << 20}, poll("too_large")},
		"events-no-list": {azure.Fault{Kind: azure.FaultField, Field: "Events"}, poll("wrong_shape")},
		"events-null":    {azure.Fault{Kind: azure.FaultField, Field: "Events", Value: json.RawMessage("null")}, poll("wrong_shape")},
		"event-id":       {azure.Fault{Kind: azure.FaultField, Field: "EventId"}, unreadable},
		"event-type":     {azure.Fault{Kind: azure.FaultField, Field: "EventType", Value: json.RawMessage(`"Meteor"`)}, unreadable},
		"status":         {azure.Fault{Kind: azure.FaultField, Field: "EventStatus", Value: json.RawMessage(`""`)}, unreadable},
		"resources":      {azure.Fault{Kind: azure.FaultField, Field: "Resources"}, unreadable},
		"all-fields":     {azure.Fault{Kind: azure.FaultField}, unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "bad-"+name, 1)
			was := f.marksOf(0)
			timeout := "--request-timeout=1m"
			if tc.fault.Kind == azure.FaultHang {
				timeout = "--request-timeout=500ms"
			}
			a := f.agent(0, brisk, patient, timeout)
			e := f.announce(azure.Announcement{Type: azure.Reboot})
			f.awaitNode(0, "drained", func(n *corev1.Node) bool { return condition(n, "Drained") != nil })
			history := f.record(0)
			before, ok := a.ReadMetric(f.ctx, tc.metric)
			if !ok {
				t.Fatalf("the agent shows no %s", tc.metric)
			}

			spoilt := tc.fault
			spoilt.ScaleSet, spoilt.Times = f.pool.ScaleSetName(), 4
			if tc.fault.Kind == azure.FaultHuge {
				spoilt.Times = 1 // the emulator needs seconds for one answer
			}
			f.check(f.Azure.InjectFaults(spoilt))
			more := 4.0
			switch {
			case tc.fault.Kind == azure.FaultHuge:
				more = 1
			case tc.metric == unreadable:
				more = 1 // the agent does not parse the same document twice
			case tc.fault.Kind == azure.FaultReset:
				more = 1 // on a reused connection, net/http retries the request
			}
			f.awaitMetric(a, tc.metric, atLeast(before+more))
			f.awaitPolls(a, 2)
			if ready, words := a.IsReady(f.ctx); !ready {
				t.Errorf("the agent is not ready any more: %s", words)
			}
			for _, n := range history.States() {
				if !cordoned(n) || !heldBy(e.EventID)(n) {
					t.Errorf("the node was released: %s", marks(n))
				}
			}
			f.check(f.Azure.CancelEvent(e.EventID))
			f.awaitAsItWas(0, was)
		})
	}
}

// TestI7BadAnswersToAnApprovalAreAskedAgain checks that the event still begins early.
func TestI7BadAnswersToAnApprovalAreAskedAgain(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]azure.Fault{
		"not-processed": {Kind: azure.FaultStatus, Status: http.StatusInternalServerError},
		"processed":     {Kind: azure.FaultReset, Processed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "approval-"+name, 1)
			was := f.marksOf(0)
			fault.Method, fault.ScaleSet, fault.Times = http.MethodPost, f.pool.ScaleSetName(), 2
			f.check(f.Azure.InjectFaults(fault))
			f.agent(0, brisk)
			e := f.announce(azure.Announcement{Type: azure.Reboot, Notice: 5 * time.Minute})
			if over := f.awaitOver(e.EventID); over.StartedBy != azure.ByApproval {
				t.Errorf("the event was started %s", over.StartedBy)
			}
			f.awaitAsItWas(0, was)
		})
	}
}
