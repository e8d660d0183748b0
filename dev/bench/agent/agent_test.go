package agent

import (
	"strings"
	"testing"
)

func TestOnlySelectsMeasurementsByName(t *testing.T) {
	all := (&agentBench{}).listMeasurements()
	for text, want := range map[string]int{"": len(all), "Node requests hang": 1, "notice to evictions": 2} {
		if chosen, err := selectMeasurements(all, text); err != nil || len(chosen) != want {
			t.Errorf("%q selects %d measurements, %v; want %d", text, len(chosen), err, want)
		}
	}
	if chosen, err := selectMeasurements(all, "nothing"); err == nil || !strings.Contains(err.Error(), `"binary"`) {
		t.Errorf("%d measurements, %v; want an error with their names", len(chosen), err)
	}
}
