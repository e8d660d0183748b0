package retirement

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/cloudtest"
)

// countingReader counts the live reads.
type countingReader struct {
	client.Reader
	reads *atomic.Int32
}

func (c countingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, record := o.(*v1alpha1.NodeRetirement); record {
		c.reads.Add(1)
	}
	return c.Reader.Get(ctx, key, o, opts...)
}

// TestHungCloudDelaysNoOtherCloud has more retirements in a hanging cloud than workers, half of them not captured yet,
// and then one in another cloud.
func TestHungCloudDelaysNoOtherCloud(t *testing.T) {
	for name, inGroup := range map[string]string{"they name their group": "stuck", "they name no group": ""} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s, c, reads := newSimWithHungCloud(t)
				returned := atomic.Int32{}
				const all = 4 * maxConcurrentReconciles
				for i := range all {
					node := fmt.Sprintf("stuck-%d", i)
					s.addNode(node, map[string]string{pool: "stuck"})
					s.createRetirement(t, node, v1alpha1.NodeRetirementSpec{NodeName: node, Group: inGroup})
					if i%2 == 0 {
						rt := s.getRetirement(node)
						rt.Status.Phase = v1alpha1.Drained
						rt.Status.Conditions = []metav1.Condition{{Type: v1alpha1.RetirementAdmitted, Status: metav1.ConditionTrue}}
						rt.Status.Captured = &v1alpha1.Captured{
							NodeUID: s.nodes[node].UID, ProviderID: "sim://" + node, Provider: "hung", Group: "stuck",
						}
						if err := s.retirements.Status().Update(ctx, rt); err != nil {
							t.Fatal(err)
						}
					}
				}
				for i := range all {
					go func() {
						_, _ = c.Reconcile(ctx, newRequest(fmt.Sprintf("stuck-%d", i)))
						returned.Add(1)
					}()
				}
				began := time.Now()
				synctest.Wait()
				busy := all - int(returned.Load())
				if busy >= maxConcurrentReconciles {
					t.Errorf("the hanging cloud occupies %d workers of %d", busy, maxConcurrentReconciles)
				}
				if got := int(reads.Load()); got > busy {
					t.Errorf("%d records were read live for %d workers, want no read for one that is requeued", got, busy)
				}
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Group: "ci"})
				result, err := c.Reconcile(ctx, newRequest("r"))
				if took := time.Since(began); err != nil || took > 0 || s.getRetirement("r").Status.Captured == nil {
					t.Errorf("the retirement in the other cloud: %+v, %v after %s; want it captured at once", result, err, took)
				}
				time.Sleep(cloud.ReadTimeout)
				synctest.Wait()
				if left := all - int(returned.Load()); left > 0 {
					t.Errorf("%d workers wait for the hanging cloud after %s", left, cloud.ReadTimeout)
				}
			})
		})
	}
}

// newSimWithHungCloud returns a sim with a group in a hanging cloud, and the count of live reads.
func newSimWithHungCloud(t *testing.T) (*sim, *Controller, *atomic.Int32) {
	s := newGroupOfTwo(t)
	stuck := newGroup()
	stuck.Name, stuck.Spec.NodeSelector.MatchLabels = "stuck", map[string]string{pool: "stuck"}
	stuck.Spec.Cloud = v1alpha1.CloudGroup{Provider: "hung", Group: "stuck"}
	s.groups = append(s.groups, stuck)
	o, reads := s.newController(t).options, &atomic.Int32{}
	o.Clouds = map[string]cloud.Provider{"sim": simCloud{s}, "hung": cloudtest.HangingProvider{}}
	o.LiveReader = countingReader{o.LiveReader, reads}
	return s, New(o), reads
}

func newRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
