package drain

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestDetermineEnd(t *testing.T) {
	told := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	exited := func(code int, at time.Time, reason string) func(p *kubeapi.Pod) {
		return func(p *kubeapi.Pod) {
			var q simPod
			q.setTerminated(code, at)
			q.Status.ContainerStatuses[0].State.Terminated.Reason = reason
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, q.Status.ContainerStatuses...)
		}
	}
	running := func(p *kubeapi.Pod) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, kubeapi.ContainerStatus{Name: "side"})
	}
	for _, c := range []struct {
		name       string
		containers []func(p *kubeapi.Pod)
		want       PodEnd
	}{
		{"no container status", nil, Vanished},
		{"one still running", []func(*kubeapi.Pod){exited(0, told, ""), running}, Vanished},
		{"all stopped themselves", []func(*kubeapi.Pod){exited(0, told, ""), exited(143, told, "Error")}, Stopped},
		{"one killed", []func(*kubeapi.Pod){exited(0, told, ""), exited(137, told.Add(30*time.Second), "Error")}, Killed},
		{"one killed long before", []func(*kubeapi.Pod){exited(137, told.Add(-time.Hour), "Error"), exited(0, told, "")}, Stopped},
		{"out of memory while stopping", []func(*kubeapi.Pod){exited(137, told.Add(time.Second), "OOMKilled")}, Stopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p kubeapi.Pod
			for _, add := range c.containers {
				add(&p)
			}
			check.Is(t, c.want, determinePodEnd(&p, told))
		})
	}
}

func TestUnsetGraceMeansAPIDefault(t *testing.T) {
	for _, c := range []struct {
		spec, override *int64
		want           time.Duration
	}{
		{nil, nil, 30 * time.Second},
		{ptr(int64(5)), nil, 5 * time.Second},
		{ptr(int64(0)), nil, 0},
		{ptr(int64(-7)), nil, time.Second},
		{ptr(int64(5)), ptr(int64(60)), time.Minute},
		{ptr(int64(5)), ptr(int64(0)), 0},
		{ptr(int64(5)), ptr(int64(-1)), 5 * time.Second},
		{ptr(int64(9_999_999_999)), nil, maxGrace},
		{ptr(int64(5)), ptr(int64(math.MaxInt64)), maxGrace},
	} {
		var p kubeapi.Pod
		p.Spec.TerminationGracePeriodSeconds = c.spec
		check.Is(t, c.want, wantedGrace(&p, c.override), c.spec, c.override)
	}
}

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

func TestTerminatingPodWithoutGraceIsNotAttributed(t *testing.T) {
	p := &podState{unansweredRequest: GraceShortened}
	p.pod.DeletionTimestamp = ptr(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))
	p.attributeToUnansweredRequest()
	check.Is(t, NotRemoved, p.removal)
}
