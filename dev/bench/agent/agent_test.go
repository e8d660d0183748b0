package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/dev/bench/result"
)

func TestOnlySelectsMeasurementsByName(t *testing.T) {
	all := (&agentBench{}).listMeasurements()
	for text, want := range map[string]int{"": len(all), "Node requests hang": 1, "notice to evictions": 4, "AWS": 4} {
		if chosen, err := selectMeasurements(all, text); err != nil || len(chosen) != want {
			t.Errorf("%q selects %d measurements, %v; want %d", text, len(chosen), err, want)
		}
	}
	if chosen, err := selectMeasurements(all, "nothing"); err == nil || !strings.Contains(err.Error(), `"binary"`) {
		t.Errorf("%d measurements, %v; want an error with their names", len(chosen), err)
	}
}

func TestCloudsAreComparedWithAzureOfSameRun(t *testing.T) {
	const idle = "AWS: " + idleMemoryName
	ratios := compareClouds([]result.Result{
		{Name: idleMemoryName, Value: 10}, {Name: idleRequestsName, Value: 0}, {Name: "size of slipway-agent", Value: 3},
		{Name: idle, Value: 12}, {Name: "AWS: " + idleRequestsName, Value: 2}, {Name: "AWS: size of slipway-agent", Value: 3},
		{Name: "Google: " + cordonName, Value: 1}, // not measured with Azure
	})
	if len(ratios) != 1 || ratios[0].Value != 1.2 || ratios[0].MeetsTarget() || !strings.Contains(ratios[0].Name, idleMemoryName) {
		t.Errorf("%+v; want one missed target: the idle memory of AWS as 1.2 times Azure's", ratios)
	}
}

func TestBoundIsBesideItsFloor(t *testing.T) {
	got := map[string]float64{}
	results := newBoundResults("AWS: ", bareClientName, 6*time.Second, time.Second, 3*time.Second, "")
	for _, r := range results {
		got[r.Name] = r.Value
	}
	want := map[string]float64{
		"AWS: floor: a bare client": 3, "AWS: bound: the poll interval and a bare client": 4,
		"AWS: as a multiple of the bound, the poll interval and a bare client": 1.5,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if missed := result.MissedTargets(results); len(missed) != 1 {
		t.Errorf("missed targets %q, want the multiple of the bound", missed)
	}
}
