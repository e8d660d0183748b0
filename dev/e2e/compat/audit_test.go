package compat_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// agentUser is the API user of all agents of the testbed.
const agentUser = "system:serviceaccount:" + testbed.AgentNamespace + ":" + testbed.AgentAccount

// requests returns the agents' requests in the test's namespace.
func (f *fixture) requests(verb, resource string) []auditv1.Event {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: verb, Resource: resource, Namespace: f.ns})
	f.check(err)
	return events
}

func TestW06W08W15M20DrainSendsFewRequestsWithoutPauses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "w06")
	const pods = 60
	many := f.app("many", pods)
	many.StopSeconds = "1"
	f.run(many.Deployment())
	f.aksnth()
	f.announce(azure.Announcement{Type: azure.Preempt, Notice: 5 * time.Minute})
	f.awaitPods(0)
	evictions := f.requests("create", "pods/eviction")
	// With a limit of 5 requests per second after a burst of 10, most of (60-10)/5 = 10 s would have no request in
	// flight.
	if idle := idleTime(evictions); len(evictions) < pods || idle > 5*time.Second {
		t.Errorf("%d evictions, with %s in which no request was in flight", len(evictions), idle)
	}
	f.checkAgentRequests()
}

// idleTime returns the total time without a request in flight, between the first request and the last. A rate limit
// increases this time. A slow server or a slow host does not.
func idleTime(events []auditv1.Event) (idle time.Duration) {
	slices.SortFunc(events, func(a, b auditv1.Event) int {
		return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp.Time)
	})
	end := events[0].RequestReceivedTimestamp.Time
	for _, e := range events {
		idle += max(0, e.RequestReceivedTimestamp.Sub(end))
		if e.StageTimestamp.After(end) {
			end = e.StageTimestamp.Time
		}
	}
	return idle
}

// checkAgentRequests checks the requests of all agents of the testbed. They list pods of one node only (W8), evict no DaemonSet
// pods (W15), and never write a whole Node (M20).
func (f *fixture) checkAgentRequests() {
	f.t.Helper()
	lists, err := f.ReadAuditLog(controlplane.AuditFilter{User: agentUser, Verb: "list", Resource: "pods"})
	f.check(err)
	for _, e := range lists {
		if !strings.Contains(e.RequestURI, "fieldSelector=spec.nodeName") {
			f.t.Errorf("W8: %s", e.RequestURI)
		}
	}
	if len(lists) == 0 {
		f.t.Error("the audit log has no list of pods")
	}
	for what, filter := range map[string]controlplane.AuditFilter{
		"W15": {User: agentUser, Resource: "daemonsets"}, "M20": {User: agentUser, Verb: "update", Resource: "nodes"},
	} {
		events, err := f.ReadAuditLog(filter)
		f.check(err)
		if len(events) > 0 {
			f.t.Errorf("%s: %s %s", what, events[0].Verb, events[0].RequestURI)
		}
	}
}
