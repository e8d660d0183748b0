package orphans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

// unmarkedFake is a markingFake without marks.
type unmarkedFake struct {
	rack          markingFake
	mu            sync.Mutex
	asked         []string
	failingGroups map[string]bool // groups with a failing list
	// unproven are the instances that it cannot prove absent.
	unproven []string
}

func (*unmarkedFake) Name() string { return "rack" }

func (s *unmarkedFake) recordRequest(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf(format, args...))
}

// sortedRequests returns the distinct requests.
func (s *unmarkedFake) sortedRequests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.asked)
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *unmarkedFake) setFailing(groups ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failingGroups = map[string]bool{}
	for _, g := range groups {
		s.failingGroups[g] = true
	}
}

func (s *unmarkedFake) Normalize(id string) (string, error) { return s.rack.Normalize(id) }

func (s *unmarkedFake) NotFoundMeansDeleted(id string) bool { return !slices.Contains(s.unproven, id) }

func (s *unmarkedFake) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	s.recordRequest("instance %s", id)
	return s.rack.Instance(ctx, id)
}

func (s *unmarkedFake) Instances(ctx context.Context, group string) ([]cloud.Instance, error) {
	s.recordRequest("group %s", group)
	s.mu.Lock()
	fails := s.failingGroups[group]
	s.mu.Unlock()
	if fails {
		return nil, errors.New("unreachable")
	}
	all, err := s.rack.ClusterInstances(ctx)
	return slices.DeleteFunc(all, func(m cloud.Instance) bool { return m.Group != group }), err
}

// Delete exists as in every provider, but must not be called.
func (s *unmarkedFake) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	return s.rack.Delete(ctx, id)
}

func newGroup(name, provider, cloudGroup string, marks map[string]string) *v1alpha1.NodeGroup {
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: marks}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": name}
	g.Spec.Cloud = v1alpha1.CloudGroup{Provider: provider, Group: cloudGroup}
	return g
}

func TestCloudWithoutMarksHasOnlyOrphanedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unmarkedFake{rack: markingFake{instances: []cloud.Instance{newInstance("orphan", time.Hour), newInstance("silent", time.Hour)}}}
		young := newNode("young", "web", corev1.ConditionUnknown)
		young.CreationTimestamp = metav1.Now()
		f := startFixture(t, s, nil, newNode("gone", "web", corev1.ConditionUnknown), newNode("silent", "web", corev1.ConditionUnknown),
			newNode("alive", "web", corev1.ConditionTrue), young, newNode("nobodys", "", corev1.ConditionUnknown),
			newNode("theirs", "db", corev1.ConditionUnknown), newGroup("db", "another", "elsewhere", nil))
		f.advance(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired before it is proven: %+v", all)
		}
		if emitted := f.drainEvents(); len(emitted) != 1 || !strings.Contains(emitted[0], "InstanceMissing") || !strings.Contains(emitted[0], "gone (rack://gone)") {
			t.Errorf("first Events: %q", emitted)
		}
		check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", "Node", "suspected")))
		if got, want := s.sortedRequests(), []string{"group racked", "instance rack://gone"}; !slices.Equal(got, want) {
			t.Errorf("requests %q, want %q: none for a Node that is Ready, young, listed, without a group or in another cloud", got, want)
		}
		f.advance(2 * time.Minute)
		if all := f.retirements(); len(all) != 1 || all[0].Spec.NodeName != "gone" || all[0].Spec.Reason != v1alpha1.InstanceGone {
			t.Errorf("retirements %+v", all)
		}
		f.advance(2 * time.Hour)
		if gone := s.rack.deletedIDs(); len(gone) != 0 {
			t.Errorf("deleted %q, which have no known owner", gone)
		}
		if emitted := strings.Join(f.drainEvents(), "\n"); strings.Contains(emitted, "Orphan") {
			t.Errorf("Events: %q", emitted)
		}
		if n := testutil.CollectAndCount(f.options.Metrics.orphans); n != 2 {
			t.Errorf("%d series, want suspected and proven orphaned Nodes", n)
		}
	})
}

func TestUnmarkedCloudIsReadOnlyForSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unmarkedFake{}
		f := startFixture(t, s, nil, newNode("alive", "web", corev1.ConditionTrue))
		f.advance(time.Hour)
		if got := s.sortedRequests(); len(got) != 0 {
			t.Errorf("requests %q", got)
		}
	})
}

func TestI7FailedListFindsNoOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unmarkedFake{}
		f := startFixture(t, s, nil, newNode("gone", "web", corev1.ConditionUnknown), newGroup("db", "rack", "shelved", nil))
		f.advance(12 * time.Minute)
		s.setFailing("shelved")
		f.advance(6 * time.Minute)
		s.setFailing()
		f.advance(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired although not every scan for 15m found it: %+v", all)
		}
		check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.failures.WithLabelValues("rack")))
		s.setFailing("racked")
		f.advance(time.Hour)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired without a list: %+v", all)
		}
		s.setFailing()
		f.advance(25 * time.Minute)
		if all := f.retirements(); len(all) != 1 {
			t.Errorf("%d retirements once it is proven", len(all))
		}
	})
}

// If a list has the instance, its Node is kept, even if the cloud does not find its ID.
func TestI7ListedInstanceKeepsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := newInstance("gone", time.Hour)
		moved.ProviderID, moved.Group = "rack://moved/gone", "shelved"
		s := &unmarkedFake{rack: markingFake{instances: []cloud.Instance{moved}}}
		f := startFixture(t, s, nil, newNode("gone", "web", corev1.ConditionUnknown), newGroup("db", "rack", "shelved", nil))
		f.advance(time.Hour)
		if all, emitted := f.retirements(), f.drainEvents(); len(all) != 0 || len(emitted) != 0 {
			t.Errorf("retirements %+v, said %q", all, emitted)
		}
	})
}

func TestOnlyNodesOfOwnGroupsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unmarkedFake{failingGroups: map[string]bool{"shelved": true}} // only the other manager's configuration knows it
		f := startFixture(t, s, func(o *Options) { o.Selector = labels.SelectorFromSet(labels.Set{"shard": "a"}) },
			newNode("gone", "web", corev1.ConditionUnknown), newNode("theirs", "db", corev1.ConditionUnknown),
			newGroup("db", "rack", "shelved", map[string]string{"shard": "b"}))
		f.advance(time.Hour)
		if all := f.retirements(); len(all) != 1 || all[0].Spec.NodeName != "gone" {
			t.Errorf("retirements %+v", all)
		}
		if got, want := s.sortedRequests(), []string{"group racked", "instance rack://gone"}; !slices.Equal(got, want) {
			t.Errorf("requests %q, want %q", got, want)
		}
	})
}

func TestI7UnprovableInstanceIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unmarkedFake{unproven: []string{"rack://gone"}}
		f := startFixture(t, s, nil, newNode("gone", "web", corev1.ConditionUnknown))
		f.advance(time.Hour)
		if all, asked := f.retirements(), s.sortedRequests(); len(all) != 0 || len(asked) != 0 {
			t.Errorf("retirements %+v, the cloud for %q", all, asked)
		}
	})
}

func TestReportOnlyRetiresNoOrphanedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFixture(t, &unmarkedFake{}, func(o *Options) { o.DeleteOrphans = false }, newNode("gone", "web", corev1.ConditionUnknown))
		f.advance(time.Hour)
		if emitted := strings.Join(f.drainEvents(), "\n"); len(f.retirements()) != 0 || !strings.Contains(emitted, "only reported") {
			t.Errorf("retirements %+v, said %q", f.retirements(), emitted)
		}
		check.Is(t, 1, testutil.ToFloat64(f.options.Metrics.orphans.WithLabelValues("rack", "Node", "proven")))
	})
}
