package replacement

import (
	"context"
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

// countingReader counts the uncached reads.
type countingReader struct {
	client.Reader
	reads int
}

func (p *countingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	p.reads++
	return p.Reader.Get(ctx, key, o, opts...)
}

// TestHangingCloudBlocksNoOtherCloud has two nodes in the hanging cloud, and one in another.
func TestHangingCloudBlocksNoOtherCloud(t *testing.T) {
	inBubble(t, func(t *testing.T, ctx context.Context) {
		s := newSim(t, 3)
		s.beside = []v1alpha1.NodeGroup{{
			ObjectMeta: metav1.ObjectMeta{Name: "stuck"},
			Spec: v1alpha1.NodeGroupSpec{
				NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "stuck"}},
				Cloud:        v1alpha1.CloudGroup{Provider: "hung", Group: "set"}, Replacement: v1alpha1.ReplaceAlways,
			},
		}}
		c := s.newController(t)
		c.options.Clouds["hung"] = cloudtest.HangingProvider{}
		if got := c.controllerOptions().MaxConcurrentReconciles; got < 2 {
			t.Fatalf("%d workers for two clouds, want one for each", got)
		}
		for _, name := range []string{"first", "second"} {
			rt := &v1alpha1.NodeRetirement{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
				Spec: v1alpha1.NodeRetirementSpec{
					NodeName: name, NodeUID: types.UID(name), ProviderID: "sim://" + name, Group: "stuck", Reason: v1alpha1.Notice,
					Notice: &v1alpha1.NoticeReference{Source: "azure", ID: name, Type: "Preempt"},
				},
			}
			if err := s.records.Create(ctx, rt); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		request := func(name string) reconcile.Request {
			return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
		}
		ended := make(chan time.Duration, 1)
		go func() {
			_, _ = c.Reconcile(ctx, request("first"))
			ended <- time.Since(began)
		}()
		synctest.Wait()
		past := &countingReader{Reader: c.options.APIReader}
		c.options.APIReader = past
		result, err := c.Reconcile(ctx, request("second"))
		if took := time.Since(began); err != nil || took > 0 || result.RequeueAfter != cloud.WorkerRetryDelay {
			t.Errorf("the second record of the hung cloud: %+v, %v after %s; want it requeued at once", result, err, took)
		}
		if past.reads > 0 {
			t.Errorf("the second record was read %d times past the caches, want none before it has a slot", past.reads)
		}
		s.addNotice(t, "vm-0", "Preempt")
		s.evictInstance(t, "vm-0")
		for range 3 {
			_, _ = NoticeReconciler{c}.Reconcile(ctx, request("vm-0"))
			_, _ = c.Reconcile(ctx, request(s.retirementByNode(t)["vm-0"].Name))
		}
		if took := time.Since(began); s.grown != 1 || took > 0 {
			t.Errorf("%d launched in the other cloud after %s, want 1 at once", s.grown, took)
		}
		if took := <-ended; took > cloud.ReadTimeout {
			t.Errorf("the hung call took %s, want at most %s", took, cloud.ReadTimeout)
		}
	})
}

// hangingCloud is a cloud with one call that blocks until its context ends.
type hangingCloud struct {
	*sim
	call string
}

func (h hangingCloud) wait(ctx context.Context, call string) error {
	if call != h.call {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h hangingCloud) Group(ctx context.Context, name string) (cloud.Group, error) {
	if err := h.wait(ctx, "Group"); err != nil {
		return cloud.Group{}, err
	}
	return h.sim.Group(ctx, name)
}

func (h hangingCloud) Instances(ctx context.Context, group string) ([]cloud.Instance, error) {
	if err := h.wait(ctx, "Instances"); err != nil {
		return nil, err
	}
	return h.sim.Instances(ctx, group)
}

func (h hangingCloud) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	if err := h.wait(ctx, "Instance"); err != nil {
		return cloud.Instance{}, err
	}
	return h.sim.Instance(ctx, id)
}

func (h hangingCloud) Grow(ctx context.Context, group string, o cloud.LaunchRequest) (cloud.Operation, error) {
	if err := h.wait(ctx, "Grow"); err != nil {
		return cloud.Operation{}, err
	}
	return h.sim.Grow(ctx, group, o)
}

func (h hangingCloud) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	if err := h.wait(ctx, "Status"); err != nil {
		return cloud.OperationStatus{}, err
	}
	return h.sim.Status(ctx, op)
}

// TestEveryCloudCallTimesOut has a cloud that hangs in one of its calls, and then answers again.
func TestEveryCloudCallTimesOut(t *testing.T) {
	for _, call := range []string{"Group", "Instances", "Instance", "Grow", "Status"} {
		t.Run(call, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := newSim(t, 3)
				s.slow = 5 * time.Minute
				c := s.newController(t)
				c.options.Clouds["sim"] = hangingCloud{s, call}
				s.addNotice(t, "vm-0", "Preempt")
				s.evictInstance(t, "vm-0")
				for range 5 {
					began := time.Now()
					s.reconcileAll(ctx, c)
					if took := time.Since(began); took > cloud.ChangeTimeout+5*cloud.ReadTimeout {
						t.Fatalf("a reconcile took %s", took)
					}
				}
				c.options.Clouds["sim"] = s
				s.run(ctx, c, 15*time.Minute)
				s.expect(t, "vm-0", v1alpha1.ReplacementReady, "", 1)
			})
		})
	}
}
