package agent

import (
	"strings"
	"testing"
)

func TestOnlyChoosesMeasuresByPartsOfTheirNames(t *testing.T) {
	all := (&bench{}).measures()
	for text, want := range map[string]int{"": len(all), "Node requests hang": 1, "notice to evictions": 2} {
		if chosen, err := choose(all, text); err != nil || len(chosen) != want {
			t.Errorf("%q selects %d measurements, %v; want %d", text, len(chosen), err, want)
		}
	}
	if chosen, err := choose(all, "nothing"); err == nil || !strings.Contains(err.Error(), `"binary"`) {
		t.Errorf("%d measurements, %v; want an error with their names", len(chosen), err)
	}
}
