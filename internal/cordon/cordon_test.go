package cordon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var _ API = (*kubeapi.Client)(nil)

const (
	alice = "azure-C7061BAC-AFDC-4513-B24B-AA5F13A16123"
	bob   = "azure-F020BA2E-3BC0-4C40-A10B-86575A9EABD5"
)

func fullRequest() ClaimSpec {
	return ClaimSpec{
		Reason:        "Preempt of vm_1",
		Unschedulable: true,
		Taints:        []Taint{{Key: "example.com/leaving", Value: "yes", Effect: "NoSchedule"}},
		Labels:        map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": "true"},
		Conditions:    []Condition{{Type: DrainInProgress, Reason: "Preempt", Message: "40 pods to go"}},
		Phase:         Draining,
		State:         json.RawMessage(`{"id": "C7061BAC", "deadline": 30}`),
	}
}

type fixture struct {
	t           *testing.T
	server      *apiServer
	claimWriter *ClaimWriter
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	server := newAPIServer(t)
	writer, err := NewClaimWriter(server.client(), nodeName, nodeUID)
	must.NoError(t, err)
	return &fixture{t: t, server: server, claimWriter: writer}
}

func (f *fixture) writeClaim(owner string, r ClaimSpec) ClaimResult {
	f.t.Helper()
	o, err := f.claimWriter.WriteClaim(f.t.Context(), owner, r)
	must.NoError(f.t, err)
	return o
}

func (f *fixture) removeClaim(owner string) ClaimResult {
	f.t.Helper()
	o, err := f.claimWriter.RemoveClaim(f.t.Context(), owner)
	must.NoError(f.t, err)
	return o
}

// wantUnchanged compares the node with an earlier state, except for resourceVersion and empty lists.
func (f *fixture) wantUnchanged(was *kubeapi.Node) {
	f.t.Helper()
	opts := cmp.Options{cmpopts.IgnoreFields(kubeapi.ObjectMeta{}, "ResourceVersion"), cmpopts.EquateEmpty()}
	check.Equal(f.t, was, f.server.currentNode(), opts)
}

func TestClaimSetsEverythingAndRemovalRestores(t *testing.T) {
	f := newFixture(t)
	f.server.foreignTaint("example.com/team", "NoExecute", "blue")
	f.server.foreignLabel("example.com/team", "blue")
	was := f.server.currentNode()
	o := f.writeClaim(alice, fullRequest())
	if !o.Changed || o.WasUncordoned || len(o.NotOurs)+len(o.Restored)+len(o.OtherOwners)+len(o.UnreadableRecords) != 0 {
		t.Errorf("outcome %+v", o)
	}
	if n := f.server.countWrites(); n != 2 {
		t.Errorf("%d requests, want one to the node and one to its status", n)
	}
	n := f.server.currentNode()
	check.Equal(t, n, o.Node)
	if !n.Spec.Unschedulable || len(n.Spec.Taints) != 2 || n.Spec.Taints[1].Key != "example.com/leaving" ||
		n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != "true" ||
		n.Labels["notice.slipway.dev/"+alice] != "draining" {
		t.Errorf("node %+v", n)
	}
	c := n.Status.Conditions[1]
	if c.Type != "DrainInProgress" || c.Status != "True" || c.Reason != "Preempt" || c.Message != "40 pods to go" ||
		c.LastTransitionTime.IsZero() {
		t.Errorf("condition %+v", c)
	}
	records, problems := ListRecords(n)
	if len(problems) != 0 || len(records) != 1 || records[0].Owner != alice || records[0].Cordon != OwnCordon ||
		string(records[0].State) != `{"id":"C7061BAC","deadline":30}` || records[0].Phase != Draining {
		t.Errorf("records %+v, problems %v", records, problems)
	}

	if o := f.writeClaim(alice, fullRequest()); o.Changed || f.server.countWrites() != 0 {
		t.Errorf("the second Hold changed something: %+v", o)
	}
	if o := f.removeClaim(alice); !o.Changed || o.Record.Owner != alice || o.Node.Spec.Unschedulable {
		t.Errorf("outcome %+v", o)
	}
	f.wantUnchanged(was)
	f.server.countWrites()
	if o := f.removeClaim(alice); o.Changed || f.server.countWrites() != 0 {
		t.Errorf("the second Release changed something: %+v", o)
	}
}

func TestI3ExistingSettingsStay(t *testing.T) {
	f := newFixture(t)
	f.server.foreignCordon(true)
	f.server.foreignTaint("example.com/leaving", "NoSchedule", "because")
	f.server.foreignLabel("node.kubernetes.io/exclude-from-external-load-balancers", "true") // the same label and value as requested
	f.server.foreignCondition(DrainInProgress, "KubectlDrain")
	was := f.server.currentNode()
	o := f.writeClaim(alice, fullRequest())
	want := []string{
		"spec.unschedulable", "taint example.com/leaving=because:NoSchedule",
		"label node.kubernetes.io/exclude-from-external-load-balancers", "condition DrainInProgress",
	}
	check.Equal(t, want, o.NotOurs)
	if o.Record.Cordon != FoundCordon {
		t.Errorf("record %+v", o.Record)
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestI3LastOwnerRemovesSharedSettings(t *testing.T) {
	for _, order := range [][]string{{alice, bob}, {bob, alice}} {
		f := newFixture(t)
		was := f.server.currentNode()
		f.writeClaim(alice, fullRequest())
		shared := fullRequest()
		shared.Taints[0].Value = "other" // Alice's taint keeps its value
		o := f.writeClaim(bob, shared)
		if o.Record.Cordon != OwnCordon || o.Record.Taints[0].Value != "yes" || !slices.Equal(o.OtherOwners, []string{alice}) {
			t.Errorf("outcome %+v", o)
		}
		f.removeClaim(order[0])
		n := f.server.currentNode()
		if !n.Spec.Unschedulable || len(n.Spec.Taints) != 1 || len(n.Status.Conditions) != 2 || len(n.Labels) != 2 {
			t.Errorf("after the first removal: %+v", n)
		}
		f.removeClaim(order[1])
		f.wantUnchanged(was)
	}
}

func TestI3LastOwnerRemovesCordonAfterForeignUncordon(t *testing.T) {
	f := newFixture(t)
	was := f.server.currentNode()
	f.server.foreignCordon(true)
	f.writeClaim(alice, ClaimSpec{Unschedulable: true})
	f.server.foreignCordon(false)
	f.writeClaim(bob, ClaimSpec{Unschedulable: true}) // from here on the cordon is Bob's, and so is Alice's
	f.removeClaim(bob)
	if !f.server.currentNode().Spec.Unschedulable {
		t.Error("uncordoned before Alice's claim was removed")
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestManuallyUncordonedNodeIsCordonedAgainAndReported(t *testing.T) {
	for _, foundCordoned := range []bool{false, true} {
		f := newFixture(t)
		was := f.server.currentNode()
		f.server.foreignCordon(foundCordoned)
		f.writeClaim(alice, fullRequest())
		f.server.foreignCordon(false)
		f.server.foreignTaint("example.com/leaving", "NoSchedule", "")
		o := f.writeClaim(alice, fullRequest())
		if !o.WasUncordoned || !o.Node.Spec.Unschedulable || o.Record.Cordon != OwnCordon ||
			!slices.Equal(o.Restored, []string{"taint example.com/leaving=yes:NoSchedule"}) {
			t.Errorf("outcome %+v", o)
		}
		if o := f.writeClaim(alice, fullRequest()); o.WasUncordoned || o.Changed {
			t.Errorf("reported twice: %+v", o)
		}
		f.removeClaim(alice)
		f.wantUnchanged(was)
	}
}

func TestClaimDropsSettingsNoLongerRequested(t *testing.T) {
	f := newFixture(t)
	was := f.server.currentNode()
	planned := ClaimSpec{Conditions: []Condition{{Type: MaintenancePlanned, Reason: "Reboot"}}, Phase: Cordoned}
	f.writeClaim(alice, fullRequest())
	o := f.writeClaim(alice, planned)
	n := f.server.currentNode()
	if n.Spec.Unschedulable || len(n.Spec.Taints) != 0 || len(n.Status.Conditions) != 2 ||
		n.Status.Conditions[1].Type != MaintenancePlanned || len(n.Labels) != 1 {
		t.Errorf("node %+v", n)
	}
	if len(o.Record.Conditions) != 1 || o.Record.Cordon != "" || o.Record.State != nil {
		t.Errorf("record %+v", o.Record)
	}
	f.server.countWrites()
	if o := f.writeClaim(alice, planned); o.Changed || f.server.countWrites() != 0 {
		t.Errorf("the second Hold changed something: %+v", o)
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestClaimUpdatesValuesAndMessages(t *testing.T) {
	f := newFixture(t)
	was := f.server.currentNode()
	before := f.writeClaim(alice, fullRequest())
	r := fullRequest()
	r.Taints[0].Value = "now"
	r.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] = "yes"
	r.Conditions[0].Message = "3 pods to go"
	r.Phase = Drained
	o := f.writeClaim(alice, r)
	n := o.Node
	if n.Spec.Taints[0].Value != "now" || n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != "yes" ||
		n.Status.Conditions[1].Message != "3 pods to go" || n.Labels[LabelKey(alice)] != "drained" {
		t.Errorf("node %+v", n)
	}
	if !n.Status.Conditions[1].LastTransitionTime.Equal(before.Node.Status.Conditions[1].LastTransitionTime) {
		t.Error("the condition's transition time moved although its status did not change")
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestSharedConditionKeepsItsFirstOwnersMessage(t *testing.T) {
	f := newFixture(t)
	first := ClaimSpec{Conditions: []Condition{{Type: DrainInProgress, Reason: "Preempt", Message: "first"}}}
	second := ClaimSpec{Conditions: []Condition{{Type: DrainInProgress, Reason: "Reboot", Message: "second"}}}
	f.writeClaim(alice, first)
	f.writeClaim(bob, second)
	f.server.countWrites()
	for range 3 {
		f.writeClaim(alice, first)
		f.writeClaim(bob, second)
	}
	if n := f.server.countWrites(); n != 0 {
		t.Errorf("%d requests for one message", n)
	}
	f.removeClaim(alice)
	if o := f.writeClaim(bob, second); o.Node.Status.Conditions[1].Message != "second" {
		t.Errorf("condition %+v", o.Node.Status.Conditions[1])
	}
}

func TestI3SettingsChangedByOthersStay(t *testing.T) {
	f := newFixture(t)
	f.writeClaim(alice, fullRequest())
	f.server.foreignTaint("example.com/leaving", "NoSchedule", "mine-now")
	f.server.foreignLabel("node.kubernetes.io/exclude-from-external-load-balancers", "mine-now")
	f.server.foreignCondition(DrainInProgress, "MineNow")
	o := f.writeClaim(alice, fullRequest())
	if len(o.NotOurs) != 3 {
		t.Errorf("foreign %v", o.NotOurs)
	}
	f.removeClaim(alice)
	n := f.server.currentNode()
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Value != "mine-now" || len(n.Labels) != 1 ||
		len(n.Status.Conditions) != 2 || n.Status.Conditions[1].Reason != "MineNow" {
		t.Errorf("node %+v", n)
	}
}

func TestI3ConditionSetAgainByOthersStays(t *testing.T) {
	for field, value := range map[string]string{"status": "False", "lastTransitionTime": "2020-01-02T03:04:05Z"} {
		f := newFixture(t)
		f.writeClaim(alice, fullRequest())
		f.server.edit(func(n map[string]any) {
			subMap(n, "status")["conditions"].([]any)[1].(map[string]any)[field] = value
		})
		was := f.server.currentNode().Status.Conditions
		if o := f.writeClaim(alice, fullRequest()); !slices.Contains(o.NotOurs, "condition "+DrainInProgress) {
			t.Errorf("%s changed: Foreign is %q", field, o.NotOurs)
		}
		f.removeClaim(alice)
		if diff := cmp.Diff(was, f.server.currentNode().Status.Conditions); diff != "" {
			t.Errorf("%s changed: conditions (-want +got):\n%s", field, diff)
		}
	}
}

func TestI8CrashAtAnyRequestReachesTheSameState(t *testing.T) {
	want := newFixture(t)
	want.writeClaim(alice, fullRequest())
	for crash := -5; crash <= 5; crash++ {
		if crash == 0 {
			continue
		}
		f := newFixture(t)
		was := f.server.currentNode()
		f.server.crash = crash
		if _, err := f.claimWriter.WriteClaim(t.Context(), alice, fullRequest()); err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		f.server.crash = 0
		o := f.writeClaim(alice, fullRequest())
		held, _ := ListRecords(want.server.currentNode())
		if diff := cmp.Diff(held[0], o.Record, cmpopts.IgnoreTypes(was.CreationTimestamp)); diff != "" {
			t.Errorf("crash at %d: record (-want +got):\n%s", crash, diff)
		}
		f.server.crash = crash
		if _, err := f.claimWriter.RemoveClaim(t.Context(), alice); err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		f.server.crash = 0
		f.removeClaim(alice)
		f.wantUnchanged(was)
	}
}

func TestChangeBetweenReadAndPatchIsRetried(t *testing.T) {
	f := newFixture(t)
	met := 0
	f.server.before = func(method string) {
		if method == "PATCH" && met < 3 {
			met++
			f.server.foreignTaint("example.com/new", "NoSchedule", strings.Repeat("x", met))
		}
	}
	o := f.writeClaim(alice, fullRequest())
	if met != 3 || len(o.Node.Spec.Taints) != 2 || o.Node.Spec.Taints[0].Value != "xxx" {
		t.Errorf("after %d changes the taints are %+v", met, o.Node.Spec.Taints)
	}
}

func TestConstantConflictsEndWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		turns := 0
		f.server.before = func(method string) {
			if method == "PATCH" {
				turns++
				f.server.foreignLabel("example.com/turn", strings.Repeat("x", turns))
			}
		}
		began := time.Now()
		_, err := f.claimWriter.WriteClaim(t.Context(), alice, fullRequest())
		if !kubeapi.IsConflict(err) || turns != maxConflicts+1 || !strings.Contains(err.Error(), nodeName) {
			t.Errorf("after %d attempts: %v", turns, err)
		}
		if took := time.Since(began); took < 1800*time.Millisecond || took > 4*time.Second {
			t.Errorf("gave up after %s, want pauses that double: 1.8 to 4 s in all", took)
		}
	})
}

// uncordoningAPI uncordons the node after each patch.
type uncordoningAPI struct {
	API
	server *apiServer
}

func (u *uncordoningAPI) PatchNode(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error) {
	if _, err := u.API.PatchNode(ctx, name, patch); err != nil {
		return nil, err
	}
	u.server.foreignCordon(false)
	return u.server.currentNode(), nil
}

func TestUndonePatchesEndWithAnError(t *testing.T) {
	f := newFixture(t)
	f.claimWriter.api = &uncordoningAPI{f.claimWriter.api, f.server}
	_, err := f.claimWriter.WriteClaim(t.Context(), alice, ClaimSpec{Unschedulable: true})
	if n := f.server.countWrites(); err == nil || !strings.Contains(err.Error(), "gave up after") || n != maxPatches {
		t.Errorf("after %d patches: %v", n, err)
	}
}

func TestContextEndsThePauseBetweenRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		turns := 0
		f.server.before = func(method string) {
			if method == "PATCH" {
				turns++
				f.server.foreignLabel("example.com/turn", strings.Repeat("x", turns))
			}
			if turns == 2 {
				cancel()
			}
		}
		if _, err := f.claimWriter.WriteClaim(ctx, alice, fullRequest()); !errors.Is(err, context.Canceled) || turns != 2 {
			t.Errorf("after %d attempts: %v", turns, err)
		}
	})
}

func TestReplacedNodeIsRefused(t *testing.T) {
	f := newFixture(t)
	f.writeClaim(alice, fullRequest())
	f.server.edit(func(n map[string]any) { subMap(n, "metadata")["uid"] = "uid-2" })
	f.server.countWrites()
	_, holdErr := f.claimWriter.WriteClaim(t.Context(), alice, fullRequest())
	_, releaseErr := f.claimWriter.RemoveClaim(t.Context(), alice)
	for _, err := range []error{holdErr, releaseErr} {
		if !IsReplacedError(err) || !strings.Contains(err.Error(), "uid-2") {
			t.Errorf("error %v", err)
		}
	}
	if f.server.countWrites() != 0 {
		t.Error("a patch was sent")
	}
}

func TestMissingNodeIsReported(t *testing.T) {
	server := newAPIServer(t)
	writer, err := NewClaimWriter(server.client(), "node-2", nodeUID)
	must.NoError(t, err)
	if _, err := writer.RemoveClaim(t.Context(), alice); !kubeapi.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}

func TestInvalidAnnotationIsReportedAndLeftAlone(t *testing.T) {
	f := newFixture(t)
	garbage := map[string]string{
		annotationPrefix + "torn":             `{"owner":"torn","since":"2026-0`,
		annotationPrefix + "list":             `[]`,
		annotationPrefix + "empty":            ``,
		annotationPrefix + "not-my-name":      `{"owner":"somebody","since":"2026-09-01T12:00:00Z"}`,
		annotationPrefix + "time":             `{"owner":"time","since":"yesterday"}`,
		annotationPrefix + "cordon":           `{"owner":"cordon","since":"2026-09-01T12:00:00Z","cordon":"maybe"}`,
		annotationPrefix + "no-owner":         `{}`,
		annotationPrefix + "Wrong-conditions": `{"owner":"Wrong-conditions","conditions":{"Drained":7}}`,
	}
	for key, value := range garbage {
		f.server.annotate(key, value)
	}
	was := f.server.currentNode()
	o := f.writeClaim(alice, fullRequest())
	if len(o.UnreadableRecords) != len(garbage) || len(o.OtherOwners) != 0 {
		t.Errorf("%d problems, other owners %v: %v", len(o.UnreadableRecords), o.OtherOwners, o.UnreadableRecords)
	}
	for _, err := range o.UnreadableRecords {
		if !IsUnreadableError(err) || !strings.Contains(err.Error(), annotationPrefix) {
			t.Errorf("problem %v", err)
		}
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestOwnInvalidRecordAllowsClaimButNotRemoval(t *testing.T) {
	f := newFixture(t)
	f.server.foreignCordon(true) // it is unknown who cordoned
	f.server.annotate(AnnotationKey(alice), "{")
	was := f.server.currentNode()
	if _, err := f.claimWriter.RemoveClaim(t.Context(), alice); !IsUnreadableError(err) {
		t.Errorf("error %v", err)
	}
	f.wantUnchanged(was)
	if o := f.writeClaim(alice, fullRequest()); len(o.UnreadableRecords) != 1 || o.Record.Cordon != FoundCordon {
		t.Errorf("outcome %+v", o)
	}
	f.removeClaim(alice)
	if n := f.server.currentNode(); !n.Spec.Unschedulable || len(n.Annotations) != 0 {
		t.Errorf("node %+v", n)
	}
}

func TestI10BadRequestIsRefusedUnsent(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		owner string
		r     ClaimSpec
		says  string
	}{
		{"", ClaimSpec{}, "owner: is empty"},
		{"\xff", ClaimSpec{}, "owner"},
		{"x", ClaimSpec{State: json.RawMessage("{")}, "state"},
		{"x", ClaimSpec{State: json.RawMessage(`"` + strings.Repeat("x", maxState) + `"`)}, "state: has 32770 bytes"},
		{"x", ClaimSpec{Reason: strings.Repeat("x", maxText+1)}, "reason"},
		{"x", ClaimSpec{Phase: "so so"}, `phase: "so so"`},
		{"x", ClaimSpec{Labels: map[string]string{"a b": ""}}, `label "a b"`},
		{"x", ClaimSpec{Labels: map[string]string{"a": "ü"}}, `label a: "ü"`},
		{"x", ClaimSpec{Labels: map[string]string{labelPrefix + "x": "y"}}, "reserved for the phase label"},
		{"x", ClaimSpec{Taints: []Taint{{Key: "a/b/c", Effect: "NoSchedule"}}}, "a/b/c"},
		{"x", ClaimSpec{Taints: []Taint{{Key: "A.com/c", Effect: "NoSchedule"}}}, "A.com/c"},
		{"x", ClaimSpec{Taints: []Taint{{Key: "a", Value: "-", Effect: "NoSchedule"}}}, "a=-:NoSchedule"},
		{"x", ClaimSpec{Taints: []Taint{{Key: "a", Effect: "Never"}}}, "NoSchedule, PreferNoSchedule, NoExecute"},
		{"x", ClaimSpec{Taints: []Taint{{Key: "a", Effect: "NoExecute"}, {Key: "a", Value: "b", Effect: "NoExecute"}}}, "twice"},
		{"x", ClaimSpec{Conditions: []Condition{{Type: "Ready", Reason: "R"}}}, "MaintenancePlanned"},
		{"x", ClaimSpec{Conditions: []Condition{{Type: DrainedCondition, Reason: "two words"}}}, "two words"},
		{"x", ClaimSpec{Conditions: []Condition{{Type: DrainedCondition}}}, `reason ""`},
		{"x", ClaimSpec{Conditions: []Condition{{Type: DrainedCondition, Reason: "R"}, {Type: DrainedCondition, Reason: "R"}}}, "twice"},
	} {
		_, err := f.claimWriter.WriteClaim(t.Context(), tc.owner, tc.r)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v: error %v, want it to contain %q", tc.r, err, tc.says)
		}
	}
	if len(f.server.requests) != 0 {
		t.Errorf("requests %v", f.server.requests)
	}
	for _, pair := range [][2]string{{"", "uid"}, {"node", ""}} {
		if _, err := NewClaimWriter(f.server.client(), pair[0], pair[1]); err == nil {
			t.Errorf("New(%q, %q) returned no error", pair[0], pair[1])
		}
	}
}

func TestClaimAndRemovalOverARealConnection(t *testing.T) {
	server := newAPIServer(t)
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	base, err := url.Parse(listening.URL)
	must.NoError(t, err)
	writer, err := NewClaimWriter(kubeapi.NewClient(base, listening.Client(), "test"), nodeName, nodeUID)
	must.NoError(t, err)
	f := &fixture{t: t, server: server, claimWriter: writer}
	was := server.currentNode()
	f.writeClaim(alice, fullRequest())
	f.writeClaim(bob, fullRequest())
	f.removeClaim(alice)
	f.removeClaim(bob)
	f.wantUnchanged(was)
}

func TestI3FailedConditionsStopNothingElse(t *testing.T) {
	for name, tt := range map[string]struct {
		withRight bool // while the claim is written
		left      int  // conditions that cannot be removed without the right
	}{
		"without the right":                       {false, 0},
		"the right is removed before the removal": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			was := f.server.currentNode()
			f.server.noStatus = !tt.withRight
			o, err := f.claimWriter.WriteClaim(t.Context(), alice, fullRequest())
			if IsConditionsError(err) == tt.withRight || (err == nil) != tt.withRight {
				t.Fatalf("hold: %v", err)
			}
			if !o.Node.Spec.Unschedulable || len(o.Node.Spec.Taints) == 0 || o.Record.Cordon != OwnCordon {
				t.Errorf("no claim: %+v", o.Node)
			}
			f.server.noStatus = true
			o, err = f.claimWriter.RemoveClaim(t.Context(), alice)
			if IsConditionsError(err) != (tt.left > 0) || (err == nil) != (tt.left == 0) {
				t.Fatalf("release: %v", err)
			}
			now := f.server.currentNode()
			records, _ := ListRecords(now)
			if now.Spec.Unschedulable || len(now.Spec.Taints) != len(was.Spec.Taints) || len(records) != tt.left {
				t.Errorf("not restored: %+v, records %+v", now, records)
			}
			if tt.left > 0 && (len(records[0].Conditions) != 1 || records[0].Cordon != "") {
				t.Errorf("the rest is recorded as %+v", records[0])
			}
			f.server.noStatus = false
			f.removeClaim(alice)
			f.wantUnchanged(was)
		})
	}
}

func TestRemovingToolsExcludesOwnTaints(t *testing.T) {
	f := newFixture(t)
	check.Equal(t, []string(nil), RemovingTools(f.server.currentNode()))
	hint := Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "us", Effect: "NoSchedule"}
	o := f.writeClaim(alice, ClaimSpec{Taints: []Taint{hint}})
	check.Equal(t, []string(nil), RemovingTools(o.Node))
	f.removeClaim(alice)
	f.server.foreignTaint("ToBeDeletedByClusterAutoscaler", "NoSchedule", "1700000000")
	f.server.foreignTaint("karpenter.sh/disrupted", "NoSchedule", "x")
	f.server.foreignTaint("prefix.remediator.kubernetes.azure.com/unschedulable", "NoSchedule", "x")
	f.server.foreignTaint("karpenter.sh/disrupted-not", "NoSchedule", "x")
	want := []string{
		"cluster-autoscaler (taint ToBeDeletedByClusterAutoscaler=1700000000:NoSchedule)",
		"Karpenter (taint karpenter.sh/disrupted=x:NoSchedule)",
		"AKS node auto-drain (taint prefix.remediator.kubernetes.azure.com/unschedulable=x:NoSchedule)",
	}
	check.Equal(t, want, RemovingTools(f.server.currentNode()))
}
