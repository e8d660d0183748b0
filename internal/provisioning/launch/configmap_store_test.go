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
	if _, err := newRecord(c).Launch(t.Context(), g, p, Want{Count: 1, Owner: owner}); !errors.Is(err, p.err) {
		t.Fatal(err)
	}
	next := newRecord(c)
	is, err := next.Read(t.Context(), g)
	if err != nil || len(is.Launches) != 1 || is.Launches[0].State != v1alpha1.LaunchRequested {
		t.Fatalf("%v: %+v, want the launch of the process before", err, is)
	}
	var why *NotRequestedError
	if _, err := next.Launch(t.Context(), g, p, Want{Count: 1, Owner: owner}); !errors.As(err, &why) || !why.Pending || p.launched != 1 {
		t.Errorf("%v, and %d launched; want none until the result of the first is known", err, p.launched)
	}
}

func TestStaleProcessKeepsFileGroupLaunches(t *testing.T) {
	g, c := newGroup(t, "", 9)
	one, two := newRecord(c), newRecord(c)
	for _, r := range []*Record{one, two} {
		if _, err := r.Read(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*Record{one, two, one} {
		if _, err := r.Launch(t.Context(), g, &laggingCloud{}, Want{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}}); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := newRecord(c).Read(t.Context(), g); err != nil || len(is.Launches) != 3 {
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
	_, err := newRecord(c).Launch(t.Context(), g, p, Want{Count: 1, Owner: v1alpha1.LaunchOwner{Kind: "PoolUpdate"}})
	if err == nil || p.launched != 0 || !strings.Contains(err.Error(), "slipway/slipway-launches-web") || !strings.Contains(err.Error(), "delete the ConfigMap") {
		t.Errorf("%v, and %d launched", err, p.launched)
	}
	if _, err := New(c, c).Read(t.Context(), g); err == nil {
		t.Error("a process without a namespace reads a record")
	}
}
