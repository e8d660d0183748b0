package oracle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// lives is the number of clusters that one snapshot goes through.
const lives = 16

// churn changes one snapshot from cluster to cluster, event by event. The scheduler only sees the state.
type churn struct {
	*rand.Rand
	snapshot *snapshot.Snapshot
	now      *placementtest.Cluster
}

// event makes one change to the current cluster and to the snapshot.
type event func() error

// towards lists, per object, the events that lead to a cluster. Many make a detour: the object is created late or as
// another one, is deleted and recreated, or changes in one field.
func (c *churn) towards(want, other *placementtest.Cluster) [][]event {
	s, now := c.snapshot, &c.now.Objects
	trim := live.TrimPods()
	setPod := func(p *corev1.Pod) error {
		trimmed, err := trim(p)
		if err != nil {
			return err
		}
		return s.SetPod(trimmed.(*corev1.Pod))
	}
	c.now.Candidates, c.now.Capacities = want.Candidates, want.Capacities
	return slices.Concat(
		changes(c, &now.Namespaces, want.Namespaces, other.Namespaces, s.SetNamespace, byName(s.DeleteNamespace)),
		changes(c, &now.Nodes, want.Nodes, other.Nodes, s.SetNode, byName(s.DeleteNode)),
		changes(c, &now.Pods, want.Pods, other.Pods, setPod, s.DeletePod),
		changes(c, &now.Claims, want.Claims, other.Claims, s.Storage.SetPersistentVolumeClaim, s.Storage.DeletePersistentVolumeClaim),
		changes(c, &now.Volumes, want.Volumes, other.Volumes, s.Storage.SetPersistentVolume, byName(s.Storage.DeletePersistentVolume)),
		changes(c, &now.StorageClasses, want.StorageClasses, other.StorageClasses, s.Storage.SetStorageClass, byName(s.Storage.DeleteStorageClass)),
		changes(c, &now.CSINodes, want.CSINodes, other.CSINodes, s.Storage.SetCSINode, byName(s.Storage.DeleteCSINode)),
		changes(c, &now.CSIDrivers, want.CSIDrivers, other.CSIDrivers, s.Storage.SetCSIDriver, byName(s.Storage.DeleteCSIDriver)),
		changes(c, &now.Attachments, want.Attachments, other.Attachments, s.Storage.SetVolumeAttachment, byName(s.Storage.DeleteVolumeAttachment)),
		changes(c, &now.DeviceClasses, want.DeviceClasses, other.DeviceClasses, s.Storage.SetDeviceClass, byName(s.Storage.DeleteDeviceClass)))
}

func byName(remove func(string) error) func(placement.PodKey) error {
	return func(key placement.PodKey) error { return remove(key.Name) }
}

func nameOf(o metav1.Object) placement.PodKey {
	return placement.PodKey{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// changes lists the events of the objects of one kind.
func changes[T object](c *churn, now *[]T, want, other []T, set func(T) error, remove func(placement.PodKey) error) [][]event {
	put := func(o T) event {
		return func() error {
			if i := slices.IndexFunc(*now, func(old T) bool { return nameOf(old) == nameOf(o) }); i >= 0 {
				(*now)[i] = o
			} else {
				*now = append(*now, o)
			}
			return set(o)
		}
	}
	drop := func(key placement.PodKey) event {
		return func() error {
			*now = slices.DeleteFunc(*now, func(old T) bool { return nameOf(old) == key })
			return remove(key)
		}
	}
	ways, versions := map[placement.PodKey][]event{}, map[placement.PodKey][]T{}
	for _, o := range slices.Concat(*now, other, want) {
		versions[nameOf(o)] = append(versions[nameOf(o)], o)
	}
	for _, o := range slices.Concat(*now, other) {
		key := nameOf(o)
		if v := versions[key]; c.IntN(2) == 0 {
			ways[key] = append(ways[key], put(o), put(mixed(c, o, v[c.IntN(len(v))])))
		}
		if c.IntN(3) == 0 {
			ways[key] = append(ways[key], put(o))
		}
		if c.IntN(3) == 0 {
			ways[key] = append(ways[key], drop(key))
		}
	}
	wanted := map[placement.PodKey]bool{}
	for _, o := range want {
		wanted[nameOf(o)] = true
		ways[nameOf(o)] = append(ways[nameOf(o)], put(o))
	}
	for _, o := range slices.Concat(*now, other) {
		if key := nameOf(o); !wanted[key] {
			ways[key] = append(ways[key], drop(key))
		}
	}
	byKey := func(a, b placement.PodKey) int { return strings.Compare(a.String(), b.String()) }
	var list [][]event
	for _, key := range slices.SortedFunc(maps.Keys(ways), byKey) {
		list = append(list, ways[key])
	}
	return list
}

// object is an object of an event.
type object interface {
	metav1.Object
	runtime.Object
}

// mixed copies an object and takes one field from another object, because most events change a single field.
func mixed[T object](c *churn, o, other T) T {
	out, from := o.DeepCopyObject().(T), other.DeepCopyObject().(T)
	if fields := differences(reflect.ValueOf(out).Elem(), reflect.ValueOf(from).Elem()); len(fields) > 0 {
		f := fields[c.IntN(len(fields))]
		f[0].Set(f[1])
	}
	return out
}

// differences lists the differing fields of two structs and of their nested structs.
func differences(a, b reflect.Value) (fields [][2]reflect.Value) {
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		switch {
		case reflect.DeepEqual(x.Interface(), y.Interface()):
		case x.Kind() == reflect.Struct && x.Type() != reflect.TypeFor[metav1.Time]():
			fields = append(fields, differences(x, y)...)
		default:
			fields = append(fields, [2]reflect.Value{x, y})
		}
	}
	return fields
}

// next removes and returns the next event of a random object.
func (c *churn) next(ways *[][]event) event {
	i := c.IntN(len(*ways))
	e := (*ways)[i][0]
	if (*ways)[i] = (*ways)[i][1:]; len((*ways)[i]) == 0 {
		last := len(*ways) - 1
		(*ways)[i] = (*ways)[last]
		*ways = (*ways)[:last]
	}
	return e
}

// TestAgreementSurvivesEventsInAnyOrder compares in the middle of changes to clusters, and after them.
func TestAgreementSurvivesEventsInAnyOrder(t *testing.T) {
	judge := newScheduler(t)
	var judged, undecided, states int
	plugins := map[string]int{}
	for first := *seed; judged < *churned; first += lives {
		c := &churn{rand.New(rand.NewPCG(first, 6)), snapshot.New(), &placementtest.Cluster{}}
		for s := first; s < first+lives; s++ {
			ways := c.towards(placementtest.Random(s), placementtest.Random(s+1<<32))
			for len(ways) > 0 {
				if err := c.next(&ways)(); err != nil {
					t.Fatal(err)
				}
				if len(ways) > 0 && c.IntN(40) != 0 {
					continue
				}
				n, u, err := c.compare(t, judge, plugins)
				if judged, undecided, states = judged+n, undecided+u, states+1; err != nil {
					t.Fatalf("seed %d towards %d, state %d: %v", first, s, states, err)
				}
				if c.IntN(4) == 0 {
					judged += c.plan(t, judge, s)
				}
			}
		}
	}
	t.Logf("%d pairs in %d states, %d undecidable; refused by %v", judged, states, undecided, plugins)
}

// compare compares the current state. If a fresh snapshot disagrees too, the state is shrunk and stored as a case.
func (c *churn) compare(t *testing.T, judge *Scheduler, plugins map[string]int) (judged, undecided int, err error) {
	t.Helper()
	if err := judge.Load(c.now); err != nil {
		return 0, 0, err
	}
	judged, undecided, err = compare(t.Context(), judge, c.now, c.snapshot, plugins)
	if err != nil {
		if _, _, fresh := compareAfresh(t.Context(), judge, c.now, map[string]int{}); fresh != nil {
			report(t, judge, c.now, fmt.Errorf("between events: %w", err))
		}
	}
	return judged, undecided, err
}

// plan makes random moves in a fork of the current state, compares, and rolls the fork back.
func (c *churn) plan(t *testing.T, judge *Scheduler, seed uint64) (judged int) {
	t.Helper()
	present := *c.now
	present.Pods = slices.DeleteFunc(slices.Clone(present.Pods), placementtest.IsFinished)
	if len(present.Nodes) < 3 {
		return 0
	}
	fork := c.snapshot.Fork()
	moved := tryMoves(t, c.Rand, &present, fork)
	judged = agree(t, judge, moved, c.snapshot, seed)
	fork.Rollback()
	return judged + agree(t, judge, &present, c.snapshot, seed)
}
