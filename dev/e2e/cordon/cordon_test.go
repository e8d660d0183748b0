// Package cordon_test cordons a node of a real control plane. It checks the effects of Slipway's patches on a real API
// server.
package cordon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTestsAndStopShared(m)) }

type fixture struct {
	cluster *controlplane.Cluster
	api     *kubeapi.Client
	node    string
	uid     string
}

// newFixture adds a node and a client. The audit log identifies the client by the node's name.
func newFixture(t *testing.T, node string) *fixture {
	t.Helper()
	cluster := controlplane.StartShared(t)
	if err := cluster.AddNodes(t.Context(), controlplane.NodeSpec{
		Name:   node,
		Labels: map[string]string{"example.com/team": "blue"},
		Taints: []corev1.Taint{{Key: "example.com/team", Value: "blue", Effect: corev1.TaintEffectPreferNoSchedule}},
	}); err != nil {
		t.Fatal(err)
	}
	config, err := kubeapi.LoadConfig(cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	api, err := config.NewClient(node)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{cluster: cluster, api: api, node: node}
	f.uid = string(f.read(t).UID)
	return f
}

func (f *fixture) read(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := f.cluster.Client().CoreV1().Nodes().Get(t.Context(), f.node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (f *fixture) keeper(t *testing.T) *cordon.ClaimWriter {
	t.Helper()
	k, err := cordon.NewClaimWriter(f.api, f.node, f.uid)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// settled waits until the node lifecycle controller has synced its own taint with spec.unschedulable.
func (f *fixture) settled(t *testing.T) *corev1.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		n := f.read(t)
		tainted := slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnschedulable
		})
		if tainted == n.Spec.Unschedulable {
			return n
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("unschedulable is %v, and the taints are %v", n.Spec.Unschedulable, n.Spec.Taints)
		}
	}
}

// left describes everything on the node except what Kubernetes changes.
func left(n *corev1.Node) string {
	var conditions []string
	for _, c := range n.Status.Conditions {
		conditions = append(conditions, string(c.Type))
	}
	slices.Sort(conditions)
	annotations := maps.Clone(n.Annotations)
	delete(annotations, corev1.ObjectTTLAnnotationKey) // the TTL controller changes it at any time
	return fmt.Sprint(n.Spec.Unschedulable, n.Spec.Taints, n.Labels, annotations, conditions)
}

func condition(n *corev1.Node, kind string) *corev1.NodeCondition {
	for i, c := range n.Status.Conditions {
		if string(c.Type) == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func request(phase cordon.Phase, conditions ...string) cordon.ClaimSpec {
	r := cordon.ClaimSpec{
		Reason:        "Preempt",
		Unschedulable: true,
		Taints:        []cordon.Taint{{Key: "example.com/leaving", Value: "yes", Effect: "NoSchedule"}},
		Labels:        map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": "true"},
		Phase:         phase,
		State:         json.RawMessage(`{"deadline":"2026-09-01T12:00:00Z"}`),
	}
	for _, kind := range conditions {
		r.Conditions = append(r.Conditions, cordon.Condition{Type: kind, Reason: "Preempt", Message: "said by the test"})
	}
	return r
}

func TestI3HoldAndReleaseLeaveARealNodeAsItWas(t *testing.T) {
	f := newFixture(t, "node-hold")
	k := f.keeper(t)
	was := left(f.settled(t))

	if _, err := k.WriteClaim(t.Context(), "azure-1", request(cordon.Draining, cordon.MaintenancePlanned,
		cordon.DrainInProgress)); err != nil {
		t.Fatal(err)
	}
	n := f.settled(t)
	c := condition(n, cordon.DrainInProgress)
	if !n.Spec.Unschedulable || len(n.Spec.Taints) != 3 || c == nil || c.Status != corev1.ConditionTrue ||
		c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.IsZero() {
		t.Errorf("taints %v, condition %+v", n.Spec.Taints, c)
	}
	found, err := f.api.ListNodes(t.Context(), cordon.LabelKey("azure-1"))
	if err != nil || len(found) != 1 || found[0].Name != f.node {
		t.Errorf("by the label: %v, %v", found, err)
	}

	o, err := k.WriteClaim(t.Context(), "azure-1", request(cordon.Drained, cordon.MaintenancePlanned, cordon.DrainedCondition))
	if err != nil {
		t.Fatal(err)
	}
	n = f.read(t)
	if condition(n, cordon.DrainInProgress) != nil || condition(n, cordon.DrainedCondition) == nil ||
		condition(n, "Ready") == nil || o.WasUncordoned || len(o.Restored)+len(o.NotOurs) != 0 {
		t.Errorf("conditions %v, outcome %+v", n.Status.Conditions, o)
	}
	if o, err = k.WriteClaim(t.Context(), "azure-1", request(cordon.Drained, cordon.MaintenancePlanned,
		cordon.DrainedCondition)); err != nil || o.Changed {
		t.Errorf("the same hold again: %+v, %v", o, err)
	}

	if _, err := k.RemoveClaim(t.Context(), "azure-1"); err != nil {
		t.Fatal(err)
	}
	if is := left(f.settled(t)); is != was {
		t.Errorf("the node is %s\nit was     %s", is, was)
	}
	f.onlyPatches(t)
}

// onlyPatches checks the audit log for the client's requests to the node.
func (f *fixture) onlyPatches(t *testing.T) {
	t.Helper()
	events, err := f.cluster.ReadAuditLog(controlplane.AuditFilter{UserAgent: f.node})
	if err != nil {
		t.Fatal(err)
	}
	patches := 0
	for _, e := range events {
		switch e.Verb {
		case "patch":
			patches++
		case "get", "list":
		default:
			t.Errorf("%s %s", e.Verb, e.RequestURI)
		}
	}
	if patches == 0 {
		t.Error("the audit log knows of no patch")
	}
}

func TestAStatusPatchOfAnOldResourceVersionIsRefused(t *testing.T) {
	f := newFixture(t, "node-conflict")
	old := f.read(t).ResourceVersion
	if _, err := f.keeper(t).WriteClaim(t.Context(), "azure-conflict", request(cordon.Cordoned)); err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"status":{"conditions":[{"type":"Drained","status":"True"}]}}`,
		old)
	if _, err := f.api.PatchNodeStatus(t.Context(), f.node, []byte(patch)); !kubeapi.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
}

func TestI3ManyOwnersAtOnceLeaveARealNodeAsItWas(t *testing.T) {
	f := newFixture(t, "node-many")
	was := left(f.settled(t))
	const owners = 6
	all := func(call func(k *cordon.ClaimWriter, owner string) error) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, owners)
		for i := range owners {
			wg.Go(func() { errs[i] = call(f.keeper(t), fmt.Sprintf("azure-%d", i)) })
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("owner %d: %v", i, err)
			}
		}
	}
	all(func(k *cordon.ClaimWriter, owner string) error {
		_, err := k.WriteClaim(t.Context(), owner, request(cordon.Draining, cordon.DrainInProgress))
		return err
	})
	node, err := f.api.GetNode(t.Context(), f.node)
	if err != nil {
		t.Fatal(err)
	}
	if records, problems := cordon.ListRecords(node); len(records) != owners || len(problems) != 0 {
		t.Errorf("%d records, problems %v", len(records), problems)
	}
	all(func(k *cordon.ClaimWriter, owner string) error {
		_, err := k.RemoveClaim(t.Context(), owner)
		return err
	})
	if is := left(f.settled(t)); is != was {
		t.Errorf("the node is %s\nit was     %s", is, was)
	}
}
