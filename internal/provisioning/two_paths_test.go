package provisioning

import (
	"context"
	"errors"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup"
)

// lagging lists the groups as a cache that has not heard of the last write.
type lagging struct{ before []v1alpha1.NodeGroup }

func (l lagging) List(context.Context) ([]v1alpha1.NodeGroup, error) { return l.before, nil }

// replace launches an instance as a replacement does after a notice.
func (f *fixture) replace(node string) error {
	f.t.Helper()
	var g v1alpha1.NodeGroup
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, &g); err != nil {
		f.t.Fatal(err)
	}
	_, err := f.o.Launches.Launch(f.t.Context(), &g, f.pool, 1, v1alpha1.LaunchOwner{Kind: "NodeRetirement", Name: node})
	return err
}

// A replacement is launched after the cloud was last read, and then a pod becomes unschedulable.
func TestI5ANoticeAndUnschedulablePodsLaunchOnce(t *testing.T) {
	for name, lags := range map[string]bool{"the cache knows the launch": false, "the cache lags": true} {
		for limit, maximum := range map[string]int32{"below the maximum": 10, "at the maximum": 1} {
			t.Run(name+", "+limit, func(t *testing.T) {
				f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = &maximum })
				f.readOnce()
				before, err := f.o.Groups.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := f.replace("n1"); err != nil {
					t.Fatal(err)
				}
				answer := f.silent()
				defer answer()
				f.patience = time.Millisecond
				f.wait("a")
				current := f.o.Groups
				if lags {
					f.o.Groups = lagging{before}
				}
				if _, err := f.Controller.look(t.Context(), f.sources, true); lags != errors.Is(err, errRecounted) {
					t.Errorf("the look ends with %v", err)
				}
				f.o.Groups = current
				f.look()
				if n, s := len(f.pool.ordered()), f.status(); n != 1 || s.OnTheWay != 1 {
					t.Errorf("%d launches, and status is %+v; want the replacement to be for the pod", n, s)
				}
			})
		}
	}
}

// A launch that is written and has no answer counts for a replacement too.
func TestI5AReplacementCountsLaunchesForPods(t *testing.T) {
	one := int32(1)
	f := newFixture(t, func(g *v1alpha1.NodeGroup) { g.Spec.Maximum = &one })
	f.readOnce()
	answer := f.busy()
	defer answer()
	f.wait("a")
	f.patience = time.Millisecond
	f.look()
	f.until("the cloud is asked", func() bool { return f.calls() == 1 })
	f.pool.change(func() { f.pool.busy = nil }) // another request is answered at once
	if err := f.replace("n1"); err == nil || f.calls() != 1 {
		t.Errorf("%v, and the cloud was asked %d times, want once", err, f.calls())
	}
}

var _ nodegroup.Groups = lagging{}
