package storm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cordon"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

// stormMeasurements holds the measured values. Each list has one value for each machine with a notice.
type stormMeasurements struct {
	cordoned, evicted, drained []time.Duration // since the machine's own notice was visible
	lastEviction               time.Time       // of all machines
	requests                   []int
	deleted, neverEvicted      int // pods that were not evicted
	refused                    int // failed requests of all agents
	kinds                      map[string]int
}

// newResults returns the results of the agents, which it reads from the audit log and the ledger.
func (s *stormBench) newResults(records []azure.EventRecord) ([]result.Result, error) {
	began := slices.MinFunc(records, func(a, b azure.EventRecord) int { return a.VisibleAt.Compare(b.VisibleAt) }).VisibleAt
	requests, err := audit.AgentRequestsByNode(s.Cluster, began)
	if err != nil {
		return nil, err
	}
	m := stormMeasurements{kinds: map[string]int{}}
	for _, r := range records {
		node, err := s.nodeOfEvent(r)
		if err != nil {
			return nil, err
		}
		if err := m.addAgentRequests(r, node, requests[node]); err != nil {
			return nil, err
		}
	}
	s.lastEviction = m.lastEviction.Sub(began)
	ledger, err := s.outcomeResults(records)
	if err != nil {
		return nil, err
	}
	return slices.Concat(m.timeAndLossResults(s), ledger, m.requestResults(s, requests)), nil
}

// addAgentRequests adds the measured values of one agent, from the agent's requests after its notice.
func (m *stormMeasurements) addAgentRequests(r azure.EventRecord, node string, requests []auditv1.Event) error {
	key := cordon.AnnotationKey(source.SourceName + "-" + r.EventID)
	at, ok := audit.CordonTimes(requests)[key]
	if !ok {
		return fmt.Errorf("audit log: no patch cordons node %s for event %s", node, r.EventID)
	}
	evictions, err := audit.EvictionTimes(requests)
	if err != nil {
		return err
	}
	deletions := audit.DeletionTimes(requests)
	m.deleted += len(deletions)
	m.neverEvicted += podsEach - len(evictions) - len(deletions)
	last := r.VisibleAt
	for _, evicted := range slices.Concat(slices.Collect(maps.Values(evictions)), slices.Collect(maps.Values(deletions))) {
		if evicted.After(last) {
			last = evicted
		}
	}
	m.cordoned = append(m.cordoned, at.Sub(r.VisibleAt))
	m.evicted = append(m.evicted, last.Sub(r.VisibleAt))
	if last.After(m.lastEviction) {
		m.lastEviction = last
	}
	if len(r.Approvals) > 0 {
		m.drained = append(m.drained, r.Approvals[0].At.Sub(r.VisibleAt))
	}
	m.requests = append(m.requests, len(requests))
	m.refused += countRefused(requests)
	for _, e := range requests {
		m.kinds[requestKind(e)]++
	}
	return nil
}

// countRefused counts the requests that failed.
func countRefused(requests []auditv1.Event) int {
	n := 0
	for _, e := range requests {
		if _, done := audit.AcceptedAt(e); !done && e.Verb != "watch" {
			n++
		}
	}
	return n
}

// requestKind returns the verb and resource of a request, such as "create pods/eviction".
func requestKind(e auditv1.Event) string {
	if e.ObjectRef == nil {
		return e.Verb + " " + e.RequestURI
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return e.Verb + " " + resource
}

func (m *stormMeasurements) timeAndLossResults(s *stormBench) []result.Result {
	row := func(name string, took []time.Duration, end string) result.Result {
		return result.Result{
			Name: name, Value: slices.Max(took).Seconds(), Unit: "s",
			Setup: s.describeSetup("p50 %.2f s; the end is %s", median(took).Seconds(), end),
		}
	}
	results := []result.Result{
		row(fmt.Sprintf("notice visible to node cordoned, maximum of %d", s.size), m.cordoned,
			"the audit log's time of the answered patch"),
		row(fmt.Sprintf("notice visible to last of %d evictions accepted, maximum of %d nodes", podsEach, s.size),
			m.evicted, "the audit log's time of the last response"),
		{
			Name: "machines that ended without approval", Value: float64(s.size - len(m.drained)), Unit: "machines",
			Setup: s.describeSetup("their agents were still waiting for pods to end; the rows below count the pods"),
		},
		{
			Name: "pods deleted despite their PDB, or never evicted", Value: float64(m.deleted + m.neverEvicted), Unit: "pods",
			Target: result.AtMost(0), Setup: s.describeSetup("%d deleted, %d never evicted, from the audit log", m.deleted, m.neverEvicted),
		},
	}
	if len(m.drained) > 0 {
		results = append(results, row("notice visible to drained and approved, maximum", m.drained,
			"the emulator's time of the StartRequest"))
	}
	return results
}

// outcomeResults counts the pods that did not finish, and the pods that were cut short with time left. Every pod
// needs 1 s to stop, so all pods can be saved.
func (s *stormBench) outcomeResults(records []azure.EventRecord) ([]result.Result, error) {
	ledger := s.Azure.Ledger()
	seen, finished, cut := 0, 0, 0
	for _, r := range records {
		l, ok := ledger.Event(r.EventID)
		if !ok {
			return nil, fmt.Errorf("event %s is not in the ledger", r.EventID)
		}
		seen += len(l.Pods)
		finished += l.CountOutcome(azure.OutcomeFinished)
		cut += len(l.PodsKilledWithTimeLeft(testbed.CutTolerance))
	}
	if seen != s.podCount() {
		return nil, fmt.Errorf("the ledger has %d pods, want %d:\n%s", seen, s.podCount(), ledger.Summary(testbed.CutTolerance))
	}
	setup := s.describeSetup("every pod needs 1 s to stop, so each one can be saved; from the emulator's ledger")
	return []result.Result{
		{
			Name: fmt.Sprintf("pods that did not finish, of %d", s.podCount()), Value: float64(s.podCount() - finished), Unit: "pods",
			Target: result.AtMost(0), Setup: setup,
		},
		{Name: "pods cut short with time left", Value: float64(cut), Unit: "pods", Target: result.AtMost(0), Setup: setup},
	}, nil
}

// requestResults returns the numbers of API requests that the agents sent.
func (m *stormMeasurements) requestResults(s *stormBench, requests map[string][]auditv1.Event) []result.Result {
	bystanders := 0
	for _, node := range s.otherNodes {
		bystanders = max(bystanders, len(requests[node]))
	}
	kinds := make([]string, 0, len(m.kinds))
	for k, n := range m.kinds {
		kinds = append(kinds, fmt.Sprintf("%.1f %s", float64(n)/float64(s.size), k))
	}
	slices.SortFunc(kinds, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	setup := s.describeSetup("from the audit log, from the first notice to the machine's end, a watch once; on average %v", kinds)
	return []result.Result{
		{Name: "API requests per drained node, p50", Value: float64(median(m.requests)), Unit: "requests", Setup: setup},
		{Name: "API requests per drained node, maximum", Value: float64(slices.Max(m.requests)), Unit: "requests", Setup: setup},
		{
			Name:  "API requests refused or abandoned, all nodes",
			Value: float64(m.refused + len(requests[audit.UnknownNode])), Unit: "requests", Setup: setup,
		},
		{Name: "API requests by the agent of a node without notice, maximum", Value: float64(bystanders), Unit: "requests", Setup: setup},
	}
}

// median returns the middle value. For an even number of values it returns the lower of the two in the middle.
func median[T cmp.Ordered](values []T) T {
	return slices.Sorted(slices.Values(values))[(len(values)-1)/2]
}
