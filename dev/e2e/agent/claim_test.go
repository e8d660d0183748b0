package agent_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// claimClient returns a client that the audit log identifies by the name of the first node.
func (f *fixture) claimClient() *kubeapi.Client {
	f.t.Helper()
	config, err := kubeapi.LoadConfig(f.Kubeconfig())
	f.check(err)
	api, err := config.NewClient(f.node(0))
	f.check(err)
	return api
}

// claimWriter returns a writer of cordon claims on the first node.
func (f *fixture) claimWriter(api *kubeapi.Client) *cordon.ClaimWriter {
	f.t.Helper()
	n := f.awaitNode(0, "there", func(*corev1.Node) bool { return true })
	w, err := cordon.NewClaimWriter(api, n.Name, string(n.UID))
	f.check(err)
	return w
}

func claimSpec(phase cordon.Phase, conditions ...string) cordon.ClaimSpec {
	s := cordon.ClaimSpec{
		Reason:        "Preempt",
		Unschedulable: true,
		Taints:        []cordon.Taint{{Key: "example.com/leaving", Value: "yes", Effect: "NoSchedule"}},
		Labels:        map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": "true"},
		Phase:         phase,
		State:         json.RawMessage(`{"deadline":"2026-09-01T12:00:00Z"}`),
	}
	for _, kind := range conditions {
		s.Conditions = append(s.Conditions, cordon.Condition{Type: kind, Reason: "Preempt", Message: "set by the test"})
	}
	return s
}

func TestI3RemovedClaimRestoresARealNode(t *testing.T) {
	t.Parallel()
	const owner = "only-here" // the other tests have nodes with claims, too
	f := newFixture(t, "claim", 1)
	api, was := f.claimClient(), f.marksOf(0)
	w := f.claimWriter(api)
	write := func(s cordon.ClaimSpec) cordon.ClaimResult {
		o, err := w.WriteClaim(t.Context(), owner, s)
		f.check(err)
		return o
	}
	write(claimSpec(cordon.Draining, cordon.MaintenancePlanned, cordon.DrainInProgress))
	// The third taint is the one of the node lifecycle controller.
	n := f.awaitNode(0, "tainted", func(n *corev1.Node) bool { return cordoned(n) && len(n.Spec.Taints) == 3 })
	c := condition(n, cordon.DrainInProgress)
	if c == nil || c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.IsZero() {
		t.Errorf("condition %+v", c)
	}
	found, err := api.ListNodes(t.Context(), cordon.LabelKey(owner))
	if err != nil || len(found) != 1 || found[0].Name != f.node(0) {
		t.Errorf("nodes with the label: %v, %v", found, err)
	}

	drained := claimSpec(cordon.Drained, cordon.MaintenancePlanned, cordon.DrainedCondition)
	o := write(drained)
	n = f.awaitNode(0, "drained", hasCondition(cordon.DrainedCondition))
	if condition(n, cordon.DrainInProgress) != nil || condition(n, "Ready") == nil || o.WasUncordoned || len(o.Restored)+len(o.NotOurs) != 0 {
		t.Errorf("conditions %v, outcome %+v", n.Status.Conditions, o)
	}
	if o = write(drained); o.Changed {
		t.Errorf("the same claim changed the node: %+v", o)
	}

	if _, err := w.RemoveClaim(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	f.awaitRestored(0, was)
	f.checkOnlyPatches()
}

// checkOnlyPatches checks the claim client's requests in the audit log.
func (f *fixture) checkOnlyPatches() {
	f.t.Helper()
	events, err := f.ReadAuditLog(controlplane.AuditFilter{UserAgent: f.node(0)})
	f.check(err)
	patches := 0
	for _, e := range events {
		switch e.Verb {
		case "patch":
			patches++
		case "get", "list":
		default:
			f.t.Errorf("%s %s", e.Verb, e.RequestURI)
		}
	}
	if patches == 0 {
		f.t.Error("the audit log has no patch")
	}
}

func TestStatusPatchOfOldVersionIsAConflict(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "conflict", 1)
	api := f.claimClient()
	old := f.awaitNode(0, "there", func(*corev1.Node) bool { return true }).ResourceVersion
	_, err := f.claimWriter(api).WriteClaim(t.Context(), "azure-conflict", claimSpec(cordon.Cordoned))
	f.check(err)
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"conditions":[{"type":"Drained","status":"True"}]}}`, old)
	if _, err := api.PatchNodeStatus(t.Context(), f.node(0), []byte(patch)); !kubeapi.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
}

func TestI3ConcurrentClaimsRestoreARealNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "claims", 1)
	api, was := f.claimClient(), f.marksOf(0)
	const owners = 6
	all := func(call func(w *cordon.ClaimWriter, owner string) error) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, owners)
		for i := range owners {
			w := f.claimWriter(api)
			wg.Go(func() { errs[i] = call(w, fmt.Sprintf("azure-%d", i)) })
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("owner %d: %v", i, err)
			}
		}
	}
	all(func(w *cordon.ClaimWriter, owner string) error {
		_, err := w.WriteClaim(t.Context(), owner, claimSpec(cordon.Draining, cordon.DrainInProgress))
		return err
	})
	node, err := api.GetNode(t.Context(), f.node(0))
	f.check(err)
	if records, problems := cordon.ListRecords(node); len(records) != owners || len(problems) != 0 {
		t.Errorf("%d records, problems %v", len(records), problems)
	}
	all(func(w *cordon.ClaimWriter, owner string) error {
		_, err := w.RemoveClaim(t.Context(), owner)
		return err
	})
	f.awaitRestored(0, was)
}
