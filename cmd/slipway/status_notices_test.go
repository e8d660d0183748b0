package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newNoticedNode returns a node with an agent's record of a notice.
func newNoticedNode(name, kind, phase string, conditions ...corev1.NodeCondition) corev1.Node {
	record := fmt.Sprintf(`{"owner":"azure-E1","since":"2026-03-01T12:00:00Z","state":{"notice":{"ID":"E1","Source":"azure","Type":%q,`+
		`"Status":"Scheduled"},"decision":{"deadline":"2026-03-01T12:09:00Z"},"phase":%q}}`, kind, phase)
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"cordon.slipway.dev/azure-E1": record}},
		Status:     corev1.NodeStatus{Conditions: conditions},
	}
}

func TestStatusShowsPhaseAndBlockerOfEachNotice(t *testing.T) {
	blocked := corev1.NodeCondition{
		Type: "DrainInProgress", Status: corev1.ConditionTrue, Reason: "Slipway",
		Message: "azure Redeploy (E1): 7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)",
	}
	got := listNotices([]corev1.Node{newNoticedNode("b", "Reboot", ""), newNoticedNode("a", "Redeploy", "draining", blocked), {}})
	if len(got) != 2 || got[0].Node != "a" || got[0].Type != notice.Redeploy || got[0].Phase != "draining" || got[0].ID != "E1" ||
		!got[0].Deadline.Equal(time.Date(2026, 3, 1, 12, 9, 0, 0, time.UTC)) ||
		got[0].Blocked != "7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)" ||
		got[1].Node != "b" || got[1].Phase != "noticed" || got[1].Blocked != "" {
		t.Errorf("%+v", got)
	}
	var out bytes.Buffer
	must.NoError(t, (clusterStatus{Notices: got}).printTable(&out, false))
	check.Contains(t, out.String(),
		"a      Redeploy   draining   2026-03-01T12:09:00Z   7 of 12 gone, 1 waiting (disruption-budget shop/web: 1)",
		"b      Reboot     noticed    2026-03-01T12:09:00Z",
	)
	waiting := newNoticedNode("d", "Reboot", "cordoned")
	for key, record := range waiting.Annotations {
		waiting.Annotations[key] = strings.Replace(record, `"phase"`, `"drainWaitsFor":"a drain slot","phase"`, 1)
	}
	out.Reset()
	must.NoError(t, (clusterStatus{Notices: listNotices([]corev1.Node{waiting})}).printTable(&out, false))
	check.Contains(t, out.String(), "d      Reboot   cordoned   2026-03-01T12:09:00Z   waits for a drain slot")
	out.Reset()
	must.NoError(t, (clusterStatus{Notices: listNotices([]corev1.Node{newNoticedNode("c", "Preempt", "drained")})}).printTable(&out, false))
	if strings.Contains(out.String(), "Preempt") {
		t.Errorf("the table contains a handled notice:\n%s", out.String())
	}
}
