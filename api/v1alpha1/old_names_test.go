package v1alpha1_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const newGroup = `
metadata: {name: ci}
spec:
  nodeSelector: {matchLabels: {pool: ci}}
  cloud: {provider: azure, group: ci}
  minSize: 2
  maxSize: 9
  scaleUp:
    enforceMinSize: false
    headroom: {slots: 3, requests: {cpu: "1"}}
  scaleDown:
    underutilized: {cpuBelow: 40, cooldown: 5m}
  disruptionBudgets:
  - {nodes: 1, reasons: [Underutilized, InstanceGone, Idle]}
status:
  cloudMinSize: 1
  conditions:
  - {type: Accepted, status: Unknown, reason: CloudUnreadable}
`

// oldName maps new names in these tests to old ones.
var oldName = strings.NewReplacer(
	"minSize", "minimum", "maxSize", "maximum", "enforceMinSize", "keepMinimum", "headroom", "headRoom",
	"underutilized", "underused", "Underutilized", "Underused", "InstanceGone", "MachineGone", "instanceGone", "machineGone",
	"cloudMinSize", "cloudMinimum", "CloudUnreadable", "CloudNotRead", "Cancelled", "CalledOff", "FitsElsewhere", "RoomElsewhere",
	"Unblocked", "GoesOn", "skipped", "passed", "Removing", "Leaving", "state: Removed", "state: Gone",
)

// TestOldNamesGiveSameObject decodes the same objects with new and with old names, in both ways that clients decode.
func TestOldNamesGiveSameObject(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		make func() any
	}{
		"NodeGroup": {newGroup, func() any { return &v1alpha1.NodeGroup{} }},
		"NodeRetirement": {`
spec: {nodeName: node-7, reason: Underutilized}
status:
  phase: Draining
  instanceGone: true
  reasons: [{code: Cancelled, message: m}]
  replacement: {state: Waiting, since: null, reasons: [{code: FitsElsewhere, message: m}]}
  conditions: [{type: Blocked, status: "False", reason: Unblocked}, {type: Succeeded, status: "False", reason: Cancelled}]
`, func() any { return &v1alpha1.NodeRetirement{} }},
		"PoolUpdate": {`
spec: {pool: p, type: SetSize, desiredSize: 1}
status:
  machines: [{id: a, state: Removing}, {id: b, state: Removed}, {id: c, state: Planned}]
  skipped: [{machine: d, rule: r}]
`, func() any { return &v1alpha1.PoolUpdate{} }},
	} {
		t.Run(name, func(t *testing.T) {
			old := oldName.Replace(tc.text)
			if old == tc.text {
				t.Fatal("no old name is in the text")
			}
			want := tc.make()
			unmarshal(t, tc.text, want)
			for way, decode := range map[string]func(*testing.T, string, any){"JSON": unmarshal, "unstructured": fromUnstructured} {
				got := tc.make()
				decode(t, old, got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s with old names differs: %s", way, diff)
				}
			}
			encoded, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{"minimum", "maximum", "headRoom", "underused", "keepMinimum", "cloudMinimum", "machineGone", "passed"} {
				if strings.Contains(string(encoded), `"`+word+`"`) {
					t.Errorf("the old name %s is written: %s", word, encoded)
				}
			}
		})
	}
}

func TestDefaultsHoldWithEitherName(t *testing.T) {
	for text, want := range map[string]int32{
		"{}": 0, "{minimum: 0}": 0, "{minSize: 0}": 0, "{minimum: 3}": 3, "{minSize: 3}": 3, "{minimum: 0, minSize: 3}": 3,
		"{minimum: 3, minSize: 3}": 3,
	} {
		var s v1alpha1.NodeGroupSpec
		unmarshal(t, text, &s)
		if s.MinSize != want || len(s.OldNameContradictions()) > 0 {
			t.Errorf("%s: minSize %d, %v; want %d", text, s.MinSize, s.OldNameContradictions(), want)
		}
	}
	for text, want := range map[string]string{
		"{}": "null", "{keepMinimum: false}": "false", "{keepMinimum: true}": "true", "{enforceMinSize: false}": "false",
		"{enforceMinSize: false, keepMinimum: true}": "false", "{enforceMinSize: false, keepMinimum: false}": "false",
	} {
		var s v1alpha1.NodeGroupSpec
		unmarshal(t, "scaleUp: "+text, &s)
		got, err := json.Marshal(s.ScaleUp.EnforceMinSize)
		if err != nil || string(got) != want || len(s.OldNameContradictions()) > 0 {
			t.Errorf("%s: enforceMinSize %s, %v, %v; want %s", text, got, s.OldNameContradictions(), err, want)
		}
	}
}

func TestContradictionIsReportedAndNewNameCounts(t *testing.T) {
	for text, field := range map[string]string{
		"{minSize: 3, minimum: 4}":                                   "spec.minimum",
		"{minSize: 0, minimum: 4}":                                   "spec.minimum",
		"{maxSize: 3, maximum: 0}":                                   "spec.maximum",
		"{scaleUp: {enforceMinSize: true, keepMinimum: false}}":      "spec.scaleUp.keepMinimum",
		"{scaleUp: {headroom: {slots: 1}, headRoom: {slots: 2}}}":    "spec.scaleUp.headRoom",
		"{scaleDown: {underutilized: {}, underused: {cpuBelow: 3}}}": "spec.scaleDown.underused",
	} {
		var s v1alpha1.NodeGroupSpec
		unmarshal(t, text, &s)
		if errs := s.OldNameContradictions(); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), field+": ") {
			t.Errorf("%s: %v, want an error about %s", text, errs, field)
		}
		if s.MinSize == 4 || s.MaxSize != nil && *s.MaxSize == 0 {
			t.Errorf("%s: the old name counts", text)
		}
	}
	var s v1alpha1.NodeGroupSpec
	unmarshal(t, "{scaleUp: {headroom: {slots: 1, requests: {cpu: '1'}}, headRoom: {slots: 1, requests: {cpu: 1000m}}}}", &s)
	if errs := s.OldNameContradictions(); len(errs) > 0 {
		t.Errorf("equal values contradict: %v", errs)
	}
}

func TestBudgetWithBothNamesOfReasonGetsItOnce(t *testing.T) {
	var s v1alpha1.NodeGroupSpec
	unmarshal(t, "disruptionBudgets: [{nodes: 1, reasons: [Underused, Idle, Underutilized]}]", &s)
	if got, want := s.DisruptionBudgets[0].Reasons, []v1alpha1.Reason{v1alpha1.Idle, v1alpha1.Underutilized}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func unmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func fromUnstructured(t *testing.T, text string, into any) {
	t.Helper()
	var object map[string]any
	unmarshal(t, text, &object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, into); err != nil {
		t.Fatal(err)
	}
}
