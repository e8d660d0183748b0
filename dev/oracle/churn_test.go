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

// clustersPerSnapshot is the number of clusters that one snapshot goes through.
const clustersPerSnapshot = 16

// snapshotChanger changes one snapshot from cluster to cluster, event by event. The scheduler only sees the state.
type snapshotChanger struct {
	*rand.Rand
	snapshot *snapshot.Snapshot
	cluster  *placementtest.Cluster
}

// event makes one change to the current cluster and to the snapshot.
type event func() error

// eventsTowards lists, per object, the events that lead to a cluster. Many make a detour: the object is created late or as
// another one, is deleted and recreated, or changes in one field.
func (c *snapshotChanger) eventsTowards(want, other *placementtest.Cluster) [][]event {
	s, now := c.snapshot, &c.cluster.Objects
	trim := live.NewPodTrimmer()
	setPod := func(p *corev1.Pod) error {
		trimmed, err := trim(p)
		if err != nil {
			return err
		}
		return s.SetPod(trimmed.(*corev1.Pod))
	}
	c.cluster.Candidates, c.cluster.Capacities = want.Candidates, want.Capacities
	return slices.Concat(
		eventsOfKind(c, &now.Namespaces, want.Namespaces, other.Namespaces, s.SetNamespace, byName(s.DeleteNamespace)),
		eventsOfKind(c, &now.Nodes, want.Nodes, other.Nodes, s.SetNode, byName(s.DeleteNode)),
		eventsOfKind(c, &now.Pods, want.Pods, other.Pods, setPod, s.DeletePod),
		eventsOfKind(c, &now.Claims, want.Claims, other.Claims, s.Storage.SetPersistentVolumeClaim, s.Storage.DeletePersistentVolumeClaim),
		eventsOfKind(c, &now.Volumes, want.Volumes, other.Volumes, s.Storage.SetPersistentVolume, byName(s.Storage.DeletePersistentVolume)),
		eventsOfKind(c, &now.StorageClasses, want.StorageClasses, other.StorageClasses, s.Storage.SetStorageClass, byName(s.Storage.DeleteStorageClass)),
		eventsOfKind(c, &now.CSINodes, want.CSINodes, other.CSINodes, s.Storage.SetCSINode, byName(s.Storage.DeleteCSINode)),
		eventsOfKind(c, &now.CSIDrivers, want.CSIDrivers, other.CSIDrivers, s.Storage.SetCSIDriver, byName(s.Storage.DeleteCSIDriver)),
		eventsOfKind(c, &now.Attachments, want.Attachments, other.Attachments, s.Storage.SetVolumeAttachment, byName(s.Storage.DeleteVolumeAttachment)),
		eventsOfKind(c, &now.DeviceClasses, want.DeviceClasses, other.DeviceClasses, s.Storage.SetDeviceClass, byName(s.Storage.DeleteDeviceClass)))
}

func byName(remove func(string) error) func(placement.PodKey) error {
	return func(key placement.PodKey) error { return remove(key.Name) }
}

func nameOf(o metav1.Object) placement.PodKey {
	return placement.PodKey{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// eventsOfKind lists the events of the objects of one kind.
func eventsOfKind[T object](c *snapshotChanger, now *[]T, want, other []T, set func(T) error, remove func(placement.PodKey) error) [][]event {
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
	queues, versions := map[placement.PodKey][]event{}, map[placement.PodKey][]T{}
	for _, o := range slices.Concat(*now, other, want) {
		versions[nameOf(o)] = append(versions[nameOf(o)], o)
	}
	for _, o := range slices.Concat(*now, other) {
		key := nameOf(o)
		if v := versions[key]; c.IntN(2) == 0 {
			queues[key] = append(queues[key], put(o), put(withOneFieldOf(c, o, v[c.IntN(len(v))])))
		}
		if c.IntN(3) == 0 {
			queues[key] = append(queues[key], put(o))
		}
		if c.IntN(3) == 0 {
			queues[key] = append(queues[key], drop(key))
		}
	}
	wanted := map[placement.PodKey]bool{}
	for _, o := range want {
		wanted[nameOf(o)] = true
		queues[nameOf(o)] = append(queues[nameOf(o)], put(o))
	}
	for _, o := range slices.Concat(*now, other) {
		if key := nameOf(o); !wanted[key] {
			queues[key] = append(queues[key], drop(key))
		}
	}
	byKey := func(a, b placement.PodKey) int { return strings.Compare(a.String(), b.String()) }
	var list [][]event
	for _, key := range slices.SortedFunc(maps.Keys(queues), byKey) {
		list = append(list, queues[key])
	}
	return list
}

// object is an object of an event.
type object interface {
	metav1.Object
	runtime.Object
}

// withOneFieldOf copies an object and takes one field from another object, because most events change a single field.
func withOneFieldOf[T object](c *snapshotChanger, o, other T) T {
	out, from := o.DeepCopyObject().(T), other.DeepCopyObject().(T)
	if fields := differingFields(reflect.ValueOf(out).Elem(), reflect.ValueOf(from).Elem()); len(fields) > 0 {
		f := fields[c.IntN(len(fields))]
		f[0].Set(f[1])
	}
	return out
}

// differingFields lists the differing fields of two structs and of their nested structs.
func differingFields(a, b reflect.Value) (fields [][2]reflect.Value) {
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		switch {
		case reflect.DeepEqual(x.Interface(), y.Interface()):
		case x.Kind() == reflect.Struct && x.Type() != reflect.TypeFor[metav1.Time]():
			fields = append(fields, differingFields(x, y)...)
		default:
			fields = append(fields, [2]reflect.Value{x, y})
		}
	}
	return fields
}

// takeRandomEvent removes and returns the next event of a random object.
func (c *snapshotChanger) takeRandomEvent(queues *[][]event) event {
	i := c.IntN(len(*queues))
	e := (*queues)[i][0]
	if (*queues)[i] = (*queues)[i][1:]; len((*queues)[i]) == 0 {
		last := len(*queues) - 1
		(*queues)[i] = (*queues)[last]
		*queues = (*queues)[:last]
	}
	return e
}

// TestAgreementAfterEventsInAnyOrder compares in the middle of changes to clusters, and after them.
func TestAgreementAfterEventsInAnyOrder(t *testing.T) {
	t.Parallel()
	judge := newScheduler(t)
	var judged, undecided, states int
	plugins := map[string]int{}
	for first := *seed; judged < *churned; first += clustersPerSnapshot {
		c := &snapshotChanger{rand.New(rand.NewPCG(first, 6)), snapshot.New(), &placementtest.Cluster{}}
		for s := first; s < first+clustersPerSnapshot; s++ {
			queues := c.eventsTowards(placementtest.NewRandomCluster(s), placementtest.NewRandomCluster(s+1<<32))
			for len(queues) > 0 {
				if err := c.takeRandomEvent(&queues)(); err != nil {
					t.Fatal(err)
				}
				if len(queues) > 0 && c.IntN(40) != 0 {
					continue
				}
				n, u, err := c.compare(t, judge, plugins)
				if judged, undecided, states = judged+n, undecided+u, states+1; err != nil {
					t.Fatalf("seed %d towards %d, state %d: %v", first, s, states, err)
				}
				if c.IntN(4) == 0 {
					judged += c.checkRandomPlan(t, judge, s)
				}
			}
		}
	}
	t.Logf("%d pairs in %d states, %d undecidable; refused by %v", judged, states, undecided, plugins)
}

// compare compares the current state. If a fresh snapshot disagrees too, the state is shrunk and stored as a case.
func (c *snapshotChanger) compare(t *testing.T, judge *Scheduler, plugins map[string]int) (judged, undecided int, err error) {
	t.Helper()
	if err := judge.LoadCluster(c.cluster); err != nil {
		return 0, 0, err
	}
	judged, undecided, err = compare(t.Context(), judge, c.cluster, c.snapshot, plugins)
	if err != nil {
		if _, _, freshErr := compareFreshSnapshot(t.Context(), judge, c.cluster, map[string]int{}); freshErr != nil {
			shrinkAndFail(t, judge, c.cluster, fmt.Errorf("between events: %w", err))
		}
	}
	return judged, undecided, err
}

// checkRandomPlan makes random moves in a fork of the current state, compares, and rolls the fork back.
func (c *snapshotChanger) checkRandomPlan(t *testing.T, judge *Scheduler, seed uint64) (judged int) {
	t.Helper()
	present := *c.cluster
	present.Pods = slices.DeleteFunc(slices.Clone(present.Pods), placementtest.IsFinished)
	if len(present.Nodes) < 3 {
		return 0
	}
	fork := c.snapshot.Fork()
	moved := makeRandomMoves(t, c.Rand, &present, fork)
	judged = compareAndFail(t, judge, moved, c.snapshot, seed)
	fork.Rollback()
	return judged + compareAndFail(t, judge, &present, c.snapshot, seed)
}
