package result_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/dev/bench/result"
)

func TestOKUsesMeasuredValue(t *testing.T) {
	for name, tc := range map[string]struct {
		reach result.Bound
		value float64
		want  bool
	}{
		"at the upper bound":                {result.AtMost(1.2), 1.2, true},
		"below the upper bound":             {result.AtMost(1.2), 0, true},
		"above by less than is printed":     {result.AtMost(1.2), 1.2000001, false},
		"at the lower bound":                {result.AtLeast(100), 100, true},
		"below the lower bound":             {result.AtLeast(100), 99.9, false},
		"zero allowed, zero measured":       {result.AtMost(0), 0, true},
		"zero allowed, one measured":        {result.AtMost(0), 1, false},
		"no bound":                          {result.Bound{}, 1e9, true},
		"not a number under an upper bound": {result.AtMost(1), math.NaN(), false},
		"not a number over a lower bound":   {result.AtLeast(1), math.NaN(), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (result.Result{Value: tc.value, Target: tc.reach}).MeetsTarget(); got != tc.want {
				t.Errorf("OK of %v is %v, want %v", tc.value, got, tc.want)
			}
		})
	}
}

func testResults() []result.Result {
	return []result.Result{
		{Name: "notice to cordon", Value: 0.9994, Unit: "s", Target: result.AtMost(1.2), Setup: "50 notices"},
		{Name: "resident", Value: 17, Unit: "MiB", Target: result.AtMost(16), Setup: "idle"},
		{Name: "binary", Value: 9158818, Unit: "bytes", Setup: "stripped"},
	}
}

func TestJSONKeepsResults(t *testing.T) {
	want := append(testResults(), result.Result{Name: "speed", Value: 3, Unit: "1/s", Target: result.AtLeast(2.5)})
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got []result.Result
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

func TestWriteProducesDocumentedFields(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	if err := result.WriteJSON(dir, "agent", testResults()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "agent.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"name": "notice to cordon", "value": 0.9994, "unit": "s", "target": "<= 1.2 s", "ok": true, "setup": "50 notices"},
		{"name": "resident", "value": 17.0, "unit": "MiB", "target": "<= 16 MiB", "ok": false, "setup": "idle"},
		{"name": "binary", "value": 9158818.0, "unit": "bytes", "target": "", "ok": true, "setup": "stripped"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWriteRefusesInfiniteValue(t *testing.T) {
	err := result.WriteJSON(t.TempDir(), "agent", []result.Result{{Name: "ratio", Value: math.Inf(1)}})
	if err == nil {
		t.Error("an infinite value was written")
	}
}

func TestMissedListsResultsBelowTarget(t *testing.T) {
	if diff := cmp.Diff([]string{"resident"}, result.MissedTargets(testResults())); diff != "" {
		t.Error(diff)
	}
}

func TestPrintAlignsColumnsAndPrintsSetup(t *testing.T) {
	var out bytes.Buffer
	if err := result.PrintTable(&out, "agent", testResults()); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"agent             value          target",
		"notice to cordon  0.999 s        <= 1.2 s   ok",
		"resident          17 MiB         <= 16 MiB  MISSED",
		"binary            9158818 bytes",
		"  notice to cordon: 50 notices",
		"  resident: idle",
		"  binary: stripped",
	}, "\n")
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.TrimRight(line, " \n"))
	}
	if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
		t.Error(diff)
	}
}
