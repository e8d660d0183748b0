package retirement

import (
	"strings"
	"testing"
)

// TestIdleManagerNeedsAPodOnEachNode checks that all sizes are checked before the first is measured.
func TestIdleManagerNeedsAPodOnEachNode(t *testing.T) {
	_, err := MeasureIdleManager(t.Context(), IdleOptions{Nodes: []int{1, 5}, Pods: 3})
	if err == nil || !strings.Contains(err.Error(), "pods is 3: must be at least 5") {
		t.Errorf("got %v, want an error", err)
	}
}
