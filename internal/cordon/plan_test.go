package cordon

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// nodeWith returns a node with the records and changes.
func nodeWith(t *testing.T, change func(*kubeapi.Node), records ...Record) *kubeapi.Node {
	t.Helper()
	n := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Name: nodeName, UID: nodeUID, Annotations: map[string]string{}}}
	for _, r := range records {
		r.Since = noon.Add(-time.Hour)
		value, err := r.encode()
		must.NoError(t, err)
		n.Annotations[AnnotationKey(r.Owner)] = value
	}
	if change != nil {
		change(n)
	}
	return n
}

func cordoned(n *kubeapi.Node) { n.Spec.Unschedulable = true }

// carol is the owner of the replaced claim.
const carol = "azure-carol"

func TestI3CordonOriginDecidesItsRemoval(t *testing.T) {
	yes, no := new(true), new(false)
	for _, tc := range []struct {
		name   string
		node   *kubeapi.Node
		change *bool        // of spec.unschedulable
		cordon CordonOrigin // in Alice's record afterwards
		hold   bool         // false removes the claim
	}{
		{"claim a schedulable node", nodeWith(t, nil), yes, OwnCordon, true},
		{"claim a node cordoned by others", nodeWith(t, cordoned), nil, FoundCordon, true},
		{"claim again", nodeWith(t, cordoned, Record{Owner: alice, Cordon: OwnCordon}), nil, OwnCordon, true},
		{"claim a found cordon again", nodeWith(t, cordoned, Record{Owner: alice, Cordon: FoundCordon}), nil, FoundCordon, true},
		{"claim after Bob, who cordoned", nodeWith(t, cordoned, Record{Owner: bob, Cordon: OwnCordon}), nil, OwnCordon, true},
		{"claim after Bob, who found a cordon", nodeWith(t, cordoned, Record{Owner: bob, Cordon: FoundCordon}), nil, FoundCordon, true},
		{"claim after Bob, who did not cordon", nodeWith(t, cordoned, Record{Owner: bob}), nil, FoundCordon, true},
		{"replace Carol, who cordoned", nodeWith(t, cordoned, Record{Owner: carol, Cordon: OwnCordon}), nil, OwnCordon, true},
		{
			"replace Carol, who cordoned after we found a cordon",
			nodeWith(t, cordoned, Record{Owner: alice, Cordon: FoundCordon}, Record{Owner: carol, Cordon: OwnCordon}), nil, OwnCordon, true,
		},
		{
			"replace Carol, who found our cordon",
			nodeWith(t, cordoned, Record{Owner: alice, Cordon: OwnCordon}, Record{Owner: carol, Cordon: FoundCordon}), nil, OwnCordon, true,
		},
		{"claim again after an uncordon", nodeWith(t, nil, Record{Owner: alice, Cordon: OwnCordon}), yes, OwnCordon, true},
		{"claim again after the found cordon ended", nodeWith(t, nil, Record{Owner: alice, Cordon: FoundCordon}), yes, OwnCordon, true},

		{"remove our own cordon", nodeWith(t, cordoned, Record{Owner: alice, Cordon: OwnCordon}), no, "", false},
		{"remove a claim with a found cordon", nodeWith(t, cordoned, Record{Owner: alice, Cordon: FoundCordon}), nil, "", false},
		{
			"remove before Bob", nodeWith(t, cordoned, Record{Owner: alice, Cordon: OwnCordon}, Record{Owner: bob, Cordon: OwnCordon}),
			nil, "", false,
		},
		{
			"remove a cordon that Bob does not need", nodeWith(t, cordoned, Record{Owner: alice, Cordon: OwnCordon}, Record{Owner: bob}),
			no, "", false,
		},
		{"remove after an uncordon", nodeWith(t, nil, Record{Owner: alice, Cordon: OwnCordon}), nil, "", false},
		{"remove without a record", nodeWith(t, cordoned), nil, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := planClaimRemoval(tc.node, alice, true)
			if tc.hold {
				p, err = planClaim(tc.node, alice, ClaimSpec{Unschedulable: true, ReplacedOwners: []string{carol}}, noon, true)
			}
			must.NoError(t, err)
			check.Equal(t, tc.change, p.unschedulable)
			if tc.hold && p.record.Cordon != tc.cordon {
				t.Errorf("record has cordon %q, want %q", p.record.Cordon, tc.cordon)
			}
		})
	}
}

func TestPlanIsSentAsMinimalPatch(t *testing.T) {
	held := nodeWith(t, func(n *kubeapi.Node) {
		cordoned(n)
		n.Labels = map[string]string{LabelKey(alice): "draining"}
		n.Spec.Taints = []kubeapi.Taint{{Key: "k", Effect: "NoSchedule"}}
		n.Status.Conditions = []kubeapi.Condition{{
			Type: DrainInProgress, Status: "True", Reason: "Preempt", LastTransitionTime: noon,
		}}
	}, Record{
		Owner: alice, Cordon: OwnCordon, Taints: []Taint{{Key: "k", Effect: "NoSchedule"}}, Phase: Draining,
		Conditions: map[string]ConditionClaim{DrainInProgress: {Since: noon, Reason: "Preempt"}},
	})
	over := nodeWith(t, func(n *kubeapi.Node) {
		*n = *held
		n.Status.Conditions = nil
	})
	for _, tc := range []struct {
		name   string
		node   *kubeapi.Node
		hold   *ClaimSpec
		status bool
		patch  string
	}{
		{
			"one patch has the record and the cordon", nodeWith(t, nil), &ClaimSpec{
				Reason: "R", Unschedulable: true,
				Conditions: []Condition{{Type: DrainInProgress, Reason: "Preempt"}},
			}, false,
			`{"metadata":{"annotations":{"cordon.slipway.dev/` + alice + `":"{\"owner\":\"` + alice +
				`\",\"reason\":\"R\",\"since\":\"2026-09-01T12:00:00Z\",\"cordon\":\"own\",\"conditions\":` +
				`{\"DrainInProgress\":{\"since\":\"2026-09-01T12:00:00Z\",\"reason\":\"Preempt\"}}}"},` +
				`"resourceVersion":"7"},"spec":{"unschedulable":true}}`,
		},
		{
			"the condition comes after its record", over, &ClaimSpec{
				Unschedulable: true, Phase: Draining,
				Taints:     []Taint{{Key: "k", Effect: "NoSchedule"}},
				Conditions: []Condition{{Type: DrainInProgress, Reason: "Preempt", Message: "M"}},
			}, true,
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"DrainInProgress","status":"True",` +
				`"reason":"Preempt","message":"M","lastTransitionTime":"2026-09-01T12:00:00Z",` +
				`"lastHeartbeatTime":"2026-09-01T12:00:10Z"}]}}`,
		},
		{
			"a removal begins with the conditions", held, nil, true,
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"$patch":"delete","type":"DrainInProgress"}]}}`,
		},
		{
			"a removal ends with the record", over, nil, false,
			`{"metadata":{"annotations":{"cordon.slipway.dev/` + alice + `":null},"labels":{"notice.slipway.dev/` + alice +
				`":null},"resourceVersion":"7"},"spec":{"taints":null,"unschedulable":null}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := planClaimRemoval(tc.node, alice, true)
			if tc.hold != nil {
				now := noon
				if tc.status {
					now = noon.Add(10 * time.Second)
				}
				p, err = planClaim(tc.node, alice, *tc.hold, now, true)
			}
			must.NoError(t, err)
			patch, status, err := p.nextPatch("7")
			if err != nil || status != tc.status {
				t.Fatalf("status patch: %v, error %v", status, err)
			}
			check.Equal(t, tc.patch, string(patch))
		})
	}
}

func TestFoundCordonGetsNoOwnCordonLabel(t *testing.T) {
	labels := map[string]string{"mechanic.cordoned": "true"}
	for _, tt := range []struct {
		found, own, want bool
	}{{false, true, true}, {true, true, false}, {true, false, true}} {
		node := nodeWith(t, nil)
		node.Spec.Unschedulable = tt.found
		p, err := planClaim(node, "azure-E", ClaimSpec{Unschedulable: true, Labels: labels, LabelOnlyOwnCordon: tt.own}, time.Now(), true)
		must.NoError(t, err)
		if _, set := p.labels["mechanic.cordoned"]; set != tt.want {
			t.Errorf("found cordoned %t, only with own cordon %t: label set %t", tt.found, tt.own, set)
		}
	}
}
