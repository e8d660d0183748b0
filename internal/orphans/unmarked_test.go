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

// shelf is a rack that marks nothing.
type shelf struct {
	rack  rack
	mu    sync.Mutex
	asked []string
	fails map[string]bool // groups whose list does
	// unproven are the machines of which its word proves nothing.
	unproven []string
}

func (*shelf) Name() string { return "rack" }

func (s *shelf) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf(format, args...))
}

// questions are what it was asked, each once.
func (s *shelf) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.asked)
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *shelf) fail(groups ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = map[string]bool{}
	for _, g := range groups {
		s.fails[g] = true
	}
}

func (s *shelf) Normalize(id string) (string, error) { return s.rack.Normalize(id) }

func (s *shelf) ProvesGone(id string) bool { return !slices.Contains(s.unproven, id) }

func (s *shelf) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	s.note("instance %s", id)
	return s.rack.Instance(ctx, id)
}

func (s *shelf) Instances(ctx context.Context, group string) ([]cloud.Instance, error) {
	s.note("group %s", group)
	s.mu.Lock()
	fails := s.fails[group]
	s.mu.Unlock()
	if fails {
		return nil, errors.New("unreachable")
	}
	all, err := s.rack.Ours(ctx)
	return slices.DeleteFunc(all, func(m cloud.Instance) bool { return m.Group != group }), err
}

// Delete is there as in every provider, and not to be used.
func (s *shelf) Delete(ctx context.Context, id string) (cloud.Operation, error) {
	return s.rack.Delete(ctx, id)
}

func group(name, provider, cloudGroup string, marks map[string]string) *v1alpha1.NodeGroup {
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: marks}}
	g.Spec.NodeSelector.MatchLabels = map[string]string{"pool": name}
	g.Spec.Cloud = v1alpha1.CloudGroup{Provider: provider, Group: cloudGroup}
	return g
}

func TestCloudWithoutMarksHasOnlyOrphanedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{rack: rack{machines: []cloud.Instance{racked("orphan", time.Hour), racked("silent", time.Hour)}}}
		young := node("young", "web", corev1.ConditionUnknown)
		young.CreationTimestamp = metav1.Now()
		f := started(t, s, nil, node("gone", "web", corev1.ConditionUnknown), node("silent", "web", corev1.ConditionUnknown),
			node("alive", "web", corev1.ConditionTrue), young, node("nobodys", "", corev1.ConditionUnknown),
			node("theirs", "db", corev1.ConditionUnknown), group("db", "another", "elsewhere", nil))
		f.pass(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired before it is proven: %+v", all)
		}
		if said := f.said(); len(said) != 1 || !strings.Contains(said[0], "InstanceMissing") || !strings.Contains(said[0], "gone (rack://gone)") {
			t.Errorf("at first it is said: %q", said)
		}
		check.Is(t, 1, testutil.ToFloat64(f.o.Metrics.orphans.WithLabelValues("rack", "Node", "suspected")))
		if got, want := s.questions(), []string{"group racked", "instance rack://gone"}; !slices.Equal(got, want) {
			t.Errorf("asked were %q, want %q: of no Node that is Ready, young, listed, nobody's or of another cloud's group", got, want)
		}
		f.pass(2 * time.Minute)
		if all := f.retirements(); len(all) != 1 || all[0].Spec.NodeName != "gone" || all[0].Spec.Reason != v1alpha1.MachineGone {
			t.Errorf("asked for %+v", all)
		}
		f.pass(2 * time.Hour)
		if gone := s.rack.gone(); len(gone) != 0 {
			t.Errorf("deleted are %q, of which nobody knows whose they are", gone)
		}
		if said := strings.Join(f.said(), "\n"); strings.Contains(said, "Orphan") {
			t.Errorf("it is said: %q", said)
		}
		if n := testutil.CollectAndCount(f.o.Metrics.orphans); n != 2 {
			t.Errorf("%d series of strays, want suspected and proven ghosts", n)
		}
	})
}

func TestUnmarkedCloudIsAskedOnlyForSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		f := started(t, s, nil, node("alive", "web", corev1.ConditionTrue))
		f.pass(time.Hour)
		if got := s.questions(); len(got) != 0 {
			t.Errorf("asked were %q", got)
		}
	})
}

func TestI7FailedListFindsNoOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		f := started(t, s, nil, node("gone", "web", corev1.ConditionUnknown), group("db", "rack", "shelved", nil))
		f.pass(12 * time.Minute)
		s.fail("shelved")
		f.pass(6 * time.Minute)
		s.fail()
		f.pass(14 * time.Minute)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired though not every look for 15m has found it: %+v", all)
		}
		check.Is(t, 1, testutil.ToFloat64(f.o.Metrics.failures.WithLabelValues("rack")))
		s.fail("racked")
		f.pass(time.Hour)
		if all := f.retirements(); len(all) != 0 {
			t.Errorf("retired without a list: %+v", all)
		}
		s.fail()
		f.pass(25 * time.Minute)
		if all := f.retirements(); len(all) != 1 {
			t.Errorf("%d retirements once it is proven", len(all))
		}
	})
}

// A machine that a list has, whatever the cloud says of its ID, is a reason to leave its Node alone.
func TestI7ListedInstanceKeepsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := racked("gone", time.Hour)
		moved.ProviderID, moved.Group = "rack://moved/gone", "shelved"
		s := &shelf{rack: rack{machines: []cloud.Instance{moved}}}
		f := started(t, s, nil, node("gone", "web", corev1.ConditionUnknown), group("db", "rack", "shelved", nil))
		f.pass(time.Hour)
		if all, said := f.retirements(), f.said(); len(all) != 0 || len(said) != 0 {
			t.Errorf("asked for %+v, said %q", all, said)
		}
	})
}

func TestOnlyNodesOfOwnGroupsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{fails: map[string]bool{"shelved": true}} // which is in the other manager's configuration alone
		f := started(t, s, func(o *Options) { o.Selector = labels.SelectorFromSet(labels.Set{"shard": "a"}) },
			node("gone", "web", corev1.ConditionUnknown), node("theirs", "db", corev1.ConditionUnknown),
			group("db", "rack", "shelved", map[string]string{"shard": "b"}))
		f.pass(time.Hour)
		if all := f.retirements(); len(all) != 1 || all[0].Spec.NodeName != "gone" {
			t.Errorf("asked for %+v", all)
		}
		if got, want := s.questions(), []string{"group racked", "instance rack://gone"}; !slices.Equal(got, want) {
			t.Errorf("asked were %q, want %q", got, want)
		}
	})
}

func TestI7UnprovenAnswerIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{unproven: []string{"rack://gone"}}
		f := started(t, s, nil, node("gone", "web", corev1.ConditionUnknown))
		f.pass(time.Hour)
		if all, asked := f.retirements(), s.questions(); len(all) != 0 || len(asked) != 0 {
			t.Errorf("asked for %+v, the cloud for %q", all, asked)
		}
	})
}

func TestReportOnlyLeavesOrphanedNodesOfUnmarkedClouds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := started(t, &shelf{}, func(o *Options) { o.Delete = false }, node("gone", "web", corev1.ConditionUnknown))
		f.pass(time.Hour)
		if said := strings.Join(f.said(), "\n"); len(f.retirements()) != 0 || !strings.Contains(said, "left alone") {
			t.Errorf("asked for %+v, said %q", f.retirements(), said)
		}
		check.Is(t, 1, testutil.ToFloat64(f.o.Metrics.orphans.WithLabelValues("rack", "Node", "proven")))
	})
}
