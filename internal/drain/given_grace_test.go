package drain

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestObjectRemovalKeepsGivenGrace: the kubelet deletes the object of an ended pod with grace 0. The API server then
// moves its deletionTimestamp to that moment.
func TestObjectRemovalKeepsGivenGrace(t *testing.T) {
	asked := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	state := func(deletion time.Time, grace int64, ended bool) kubeapi.Pod {
		var pod kubeapi.Pod
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &deletion, &grace
		status := `[{"state":{"running":{}}}]`
		if ended {
			status = `[{"state":{"terminated":{"exitCode":0,"finishedAt":"2026-09-01T12:00:02Z"}}}]`
		}
		must.NoError(t, json.Unmarshal([]byte(status), &pod.Status.ContainerStatuses))
		return pod
	}
	for _, tc := range []struct {
		name  string
		ended bool
		given time.Duration
	}{
		{"kubelet removes it after its end", true, 30 * time.Second},
		{"force-deleted while running", false, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &podState{}
			p.setPod(state(asked.Add(30*time.Second), 30, false))
			p.setPod(state(asked.Add(3*time.Second), 0, tc.ended))
			check.Is(t, tc.given, p.givenGrace)
		})
	}
}
