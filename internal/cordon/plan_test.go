package cordon

import (
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// nodeWith is a node with some of our records and, by change, whatever else.
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

// carol is the owner whose claim a hold replaces.
const carol = "azure-carol"

func TestI3OwnerOfACordonDecidesItsRemoval(t *testing.T) {
	yes, no := new(true), new(false)
	for _, tc := range []struct {
		name   string
		node   *kubeapi.Node
		change *bool  // of spec.unschedulable
		cordon Cordon // in Alice's record afterwards
		hold   bool   // or release
	}{
		{"hold a schedulable node", nodeWith(t, nil), yes, Own, true},
		{"hold a node cordoned by somebody else", nodeWith(t, cordoned), nil, Found, true},
		{"hold again", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Own}), nil, Own, true},
		{"hold again what was found", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Found}), nil, Found, true},
		{"hold with Bob, who cordoned", nodeWith(t, cordoned, Record{Owner: bob, Cordon: Own}), nil, Own, true},
		{"hold with Bob, who found", nodeWith(t, cordoned, Record{Owner: bob, Cordon: Found}), nil, Found, true},
		{"hold with Bob, who did not ask", nodeWith(t, cordoned, Record{Owner: bob}), nil, Found, true},
		{"replace Carol, who cordoned", nodeWith(t, cordoned, Record{Owner: carol, Cordon: Own}), nil, Own, true},
		{
			"replace Carol, who cordoned what we found",
			nodeWith(t, cordoned, Record{Owner: alice, Cordon: Found}, Record{Owner: carol, Cordon: Own}), nil, Own, true,
		},
		{
			"replace Carol, who found what we cordoned",
			nodeWith(t, cordoned, Record{Owner: alice, Cordon: Own}, Record{Owner: carol, Cordon: Found}), nil, Own, true,
		},
		{"hold again after an uncordon", nodeWith(t, nil, Record{Owner: alice, Cordon: Own}), yes, Own, true},
		{"hold again after theirs ended", nodeWith(t, nil, Record{Owner: alice, Cordon: Found}), yes, Own, true},

		{"release our own", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Own}), no, "", false},
		{"release what was found", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Found}), nil, "", false},
		{
			"release before Bob", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Own}, Record{Owner: bob, Cordon: Own}),
			nil, "", false,
		},
		{
			"release, and Bob does not need it", nodeWith(t, cordoned, Record{Owner: alice, Cordon: Own}, Record{Owner: bob}),
			no, "", false,
		},
		{"release after an uncordon", nodeWith(t, nil, Record{Owner: alice, Cordon: Own}), nil, "", false},
		{"release without a record", nodeWith(t, cordoned), nil, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := planRelease(tc.node, alice, true)
			if tc.hold {
				p, err = planHold(tc.node, alice, Request{Unschedulable: true, Replaces: []string{carol}}, noon, true)
			}
			must.NoError(t, err)
			check.Equal(t, tc.change, p.unschedulable)
			if tc.hold && p.record.Cordon != tc.cordon {
				t.Errorf("record says %q, want %q", p.record.Cordon, tc.cordon)
			}
		})
	}
}

func TestAPlanIsSentAsTheNarrowestPatch(t *testing.T) {
	held := nodeWith(t, func(n *kubeapi.Node) {
		cordoned(n)
		n.Labels = map[string]string{LabelKey(alice): "draining"}
		n.Spec.Taints = []kubeapi.Taint{{Key: "k", Effect: "NoSchedule"}}
		n.Status.Conditions = []kubeapi.Condition{{
			Type: DrainInProgress, Status: "True", Reason: "Preempt", LastTransitionTime: noon,
		}}
	}, Record{
		Owner: alice, Cordon: Own, Taints: []Taint{{Key: "k", Effect: "NoSchedule"}}, Phase: Draining,
		Conditions: map[string]Claim{DrainInProgress: {Since: noon, Reason: "Preempt"}},
	})
	over := nodeWith(t, func(n *kubeapi.Node) {
		*n = *held
		n.Status.Conditions = nil
	})
	for _, tc := range []struct {
		name   string
		node   *kubeapi.Node
		hold   *Request
		status bool
		patch  string
	}{
		{
			"the record goes with what it claims", nodeWith(t, nil), &Request{
				Reason: "R", Unschedulable: true,
				Conditions: []Condition{{Type: DrainInProgress, Reason: "Preempt"}},
			}, false,
			`{"metadata":{"annotations":{"cordon.slipway.dev/` + alice + `":"{\"owner\":\"` + alice +
				`\",\"reason\":\"R\",\"since\":\"2026-09-01T12:00:00Z\",\"cordon\":\"own\",\"conditions\":` +
				`{\"DrainInProgress\":{\"since\":\"2026-09-01T12:00:00Z\",\"reason\":\"Preempt\"}}}"},` +
				`"resourceVersion":"7"},"spec":{"unschedulable":true}}`,
		},
		{
			"the condition comes after its claim", over, &Request{
				Unschedulable: true, Phase: Draining,
				Taints:     []Taint{{Key: "k", Effect: "NoSchedule"}},
				Conditions: []Condition{{Type: DrainInProgress, Reason: "Preempt", Message: "M"}},
			}, true,
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"DrainInProgress","status":"True",` +
				`"reason":"Preempt","message":"M","lastTransitionTime":"2026-09-01T12:00:00Z",` +
				`"lastHeartbeatTime":"2026-09-01T12:00:10Z"}]}}`,
		},
		{
			"a release begins with the conditions", held, nil, true,
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"$patch":"delete","type":"DrainInProgress"}]}}`,
		},
		{
			"and ends with the record", over, nil, false,
			`{"metadata":{"annotations":{"cordon.slipway.dev/` + alice + `":null},"labels":{"notice.slipway.dev/` + alice +
				`":null},"resourceVersion":"7"},"spec":{"taints":null,"unschedulable":null}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := planRelease(tc.node, alice, true)
			if tc.hold != nil {
				now := noon
				if tc.status {
					now = noon.Add(10 * time.Second)
				}
				p, err = planHold(tc.node, alice, *tc.hold, now, true)
			}
			must.NoError(t, err)
			patch, status, err := p.bytes("7")
			if err != nil || status != tc.status {
				t.Fatalf("to the status: %v, error %v", status, err)
			}
			check.Equal(t, tc.patch, string(patch))
		})
	}
}

func TestFoundCordonGetsNoLabelOfOwnOnes(t *testing.T) {
	labels := map[string]string{"mechanic.cordoned": "true"}
	for _, tt := range []struct {
		found, own, want bool
	}{{false, true, true}, {true, true, false}, {true, false, true}} {
		node := nodeWith(t, nil)
		node.Spec.Unschedulable = tt.found
		p, err := planHold(node, "azure-E", Request{Unschedulable: true, Labels: labels, LabelOwnCordon: tt.own}, time.Now(), true)
		must.NoError(t, err)
		if _, set := p.labels["mechanic.cordoned"]; set != tt.want {
			t.Errorf("found cordoned %t, for an own cordon only %t: label set %t", tt.found, tt.own, set)
		}
	}
}
