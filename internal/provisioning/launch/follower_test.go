package launch

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestI7LaunchClaimsNoOldInstanceAfterAnEmptyList has a cloud with three instances that first lists none. The Node of one
// instance is 3 minutes older than the launch.
func TestI7LaunchClaimsNoOldInstanceAfterAnEmptyList(t *testing.T) {
	for name, beforeLaunch := range map[string]bool{"in the first read of a process": false, "right before the launch": true} {
		t.Run(name, func(t *testing.T) {
			g, c := newGroup(t, "uid", 9)
			r, now := newTestRecord(c), time.Now()
			f := NewFollower(r, SettleTime, func(string, string, error) {})
			const size = 3
			old := []cloud.Instance{
				{ProviderID: "a", State: cloud.Running, Created: now.Add(-time.Hour)}, {ProviderID: "b", State: cloud.Running, Created: now.Add(-time.Hour)},
				{ProviderID: "c", State: cloud.Running, Created: now.Add(-3 * time.Minute)},
			}
			lists := [][]cloud.Instance{nil, old}
			if beforeLaunch {
				f.RecordInstancesBeforeLaunch(g, &v1alpha1.ProvisioningStatus{}, size, nil)
				lists = lists[1:]
			}
			at := metav1.NewTime(now).Rfc3339Copy()
			l := &v1alpha1.Launch{
				ID: "1", State: v1alpha1.LaunchProvisioning, Count: 1, RequestedAt: at, AnsweredAt: &at, For: &v1alpha1.LaunchOwner{Kind: v1alpha1.LaunchForRetirement, UID: "n"},
			}
			must.NoError(t, r.Update(t.Context(), g, func(s *v1alpha1.ProvisioningStatus) error { s.Launches = append(s.Launches, *l); return nil }))
			for _, list := range lists {
				l = must.Get(f.TrackLaunch(t.Context(), g, &laggingCloud{}, l, Observation{
					Group: cloud.Group{Size: size}, Instances: list, JoinState: func(cloud.Instance) JoinState { return NodeUsable },
					JoinTimeout: 15 * time.Minute, ReadAt: now, PreviouslyJoined: map[string]bool{},
				}))(t)
			}
			check.Not(t, l.State != v1alpha1.LaunchProvisioning || len(l.Instances) > 0, "the launch is %s with %+v, want it to wait for its own instance", l.State, l.Instances)
		})
	}
}
