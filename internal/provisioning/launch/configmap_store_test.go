package launch

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

func TestI8FileGroupLaunchesSurviveARestart(t *testing.T) {
	g, c := newGroup(t, "", 3)
	p := &laggingCloud{size: 2, err: errors.New("connection reset")}
	owner := v1alpha1.LaunchOwner{Kind: "PoolUpdate"}
	if _, err := newTestRecord(c).RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: owner}); !errors.Is(err, p.err) {
		t.Fatal(err)
	}
	next := newTestRecord(c)
	is, err := next.ReadCached(t.Context(), g)
	if err != nil || len(is.Launches) != 1 || is.Launches[0].State != v1alpha1.LaunchRequested {
		t.Fatalf("%v: %+v, want the launch of the process before", err, is)
	}
	var why *NotRequestedError
	if _, err := next.RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: owner}); !errors.As(err, &why) || !why.ResultPending || p.launched != 1 {
		t.Errorf("%v, and %d launched; want none until the result of the first is known", err, p.launched)
	}
}

func TestStaleProcessKeepsFileGroupLaunches(t *testing.T) {
	g, c := newGroup(t, "", 9)
	one, two := newTestRecord(c), newTestRecord(c)
	for _, r := range []*Record{one, two} {
		if _, err := r.ReadCached(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*Record{one, two, one} {
		if _, err := r.RequestInstances(t.Context(), g, &laggingCloud{}, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}}); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := newTestRecord(c).ReadCached(t.Context(), g); err != nil || len(is.Launches) != 3 {
		t.Errorf("%v: %+v, want three launches", err, is)
	}
}

func TestI7UnreadableFileGroupRecordLaunchesNothing(t *testing.T) {
	g, c := newGroup(t, "", 9)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "slipway", Name: "slipway-launches-web"}, Data: map[string]string{"provisioning": "{"}}
	if err := c.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	p := &laggingCloud{}
	_, err := newTestRecord(c).RequestInstances(t.Context(), g, p, LaunchRequest{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}})
	if err == nil || p.launched != 0 || !strings.Contains(err.Error(), "slipway/slipway-launches-web") || !strings.Contains(err.Error(), "delete the ConfigMap") {
		t.Errorf("%v, and %d launched", err, p.launched)
	}
	if _, err := NewRecord(c, c).ReadCached(t.Context(), g); err == nil {
		t.Error("a process without a namespace reads a record")
	}
}
