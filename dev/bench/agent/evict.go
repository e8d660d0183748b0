package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/workload"
)

const evictedPods = 96

// evicting times a Spot notice from being visible to the API server's having accepted the last eviction. One budget
// covers all pods and allows all of it: the API server still counts each one in it.
func (b *bench) evicting(ctx context.Context) ([]result.Result, error) {
	app := workload.App{
		Namespace: "evictions", Name: "web", Replicas: evictedPods, NodeSelector: place("evictions"), MaxUnavailable: "100%",
	}
	pods, err := b.settle(ctx, "evictions", evictedMachine, evictedPods, workload.Namespace(app.Namespace),
		app.Deployment(), app.Budget())
	if err != nil {
		return nil, err
	}
	agent, err := b.guard(ctx, evictedMachine)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, time.Second+time.Duration(b.random.Int64N(int64(time.Second)))); err != nil {
		return nil, err
	}
	event, err := b.takeAway(ctx, evictedMachine)
	if err != nil {
		return nil, err
	}
	requests, err := b.requests(agent.Node, event.VisibleAt)
	if err != nil {
		return nil, err
	}
	evicted, err := evictions(requests)
	if err != nil {
		return nil, err
	}
	last := event.VisibleAt
	for _, p := range pods {
		at, ok := evicted[p.UID]
		if !ok {
			return nil, fmt.Errorf("audit log: pod %s was not evicted with its UID %s as the precondition", p.Name, p.UID)
		}
		if at.After(last) {
			last = at
		}
	}
	ledger, err := b.gone(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	if err := allFinished(ledger, evictedPods); err != nil {
		return nil, err
	}
	return b.evictionResults(event, last, requests), nil
}

func (b *bench) evictionResults(event azure.Record, last time.Time, requests []auditv1.Event) []result.Result {
	setup := b.setup("one Spot notice (seed %d); Deployment of %d pods on one node, budget maxUnavailable 100%%, each "+
		"replaced on one of %d others", b.o.Seed, evictedPods, refugeMachines)
	return []result.Result{
		{
			Name:  fmt.Sprintf("notice visible to every eviction of %d pods accepted", evictedPods),
			Value: last.Sub(event.VisibleAt).Seconds(), Unit: "s", Reach: result.AtMost(2),
			Setup: setup + "; the end is the audit log's time of the last answer",
		},
		{
			Name:  "API requests for each drained pod",
			Value: float64(len(requests)) / evictedPods, Unit: "",
			Setup: setup + "; all requests from the notice to the acknowledgement",
		},
	}
}

// evictions tells when each pod's eviction was accepted, by the UID that was its precondition.
func evictions(requests []auditv1.Event) (map[types.UID]time.Time, error) {
	evicted := map[types.UID]time.Time{}
	for _, r := range requests {
		at, done := accepted(r)
		if !done || !is(r, "create", "pods", "eviction") {
			continue
		}
		var eviction policyv1.Eviction
		if r.RequestObject == nil {
			return nil, fmt.Errorf("audit log: %s was logged without its body", r.RequestURI)
		}
		if err := json.Unmarshal(r.RequestObject.Raw, &eviction); err != nil {
			return nil, fmt.Errorf("audit log: %s: %w", r.RequestURI, err)
		}
		if o := eviction.DeleteOptions; o != nil && o.Preconditions != nil && o.Preconditions.UID != nil {
			evicted[*o.Preconditions.UID] = at
		}
	}
	return evicted, nil
}
