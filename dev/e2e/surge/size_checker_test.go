package surge_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// surgeManager is the field manager of Slipway's changes of sizes.
const surgeManager = "slipway-surge"

// sizeChecker follows each change of the sizes of Deployments and of the minimums of autoscalers. It checks that each
// change of Slipway's is a step up by one from the wish of everybody else, or a step back to exactly that wish.
type sizeChecker struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	objects map[string]*checkedSize // by kind and name
	faults  []string
}

type checkedSize struct {
	size, wish int32
	manager    string
	raises     int // by Slipway
	history    []sizeChange
	autoscaler bool
}

// sizeChange is a change of a size, and when the watch has seen it.
type sizeChange struct {
	at      time.Time
	size    int32
	manager string
}

func (c sizeChange) String() string {
	return fmt.Sprintf("%s %d by %s", c.at.Format("15:04:05.000"), c.size, c.manager)
}

// checkSizes starts a checker for the test's namespace.
func (f *fixture) checkSizes() *sizeChecker {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.ctx)
	c := &sizeChecker{stop: stop, objects: map[string]*checkedSize{}}
	seconds := int64(3600 * 6) // longer than the test
	deployments, err := f.Client().AppsV1().Deployments(f.ns).Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds})
	f.check(err)
	autoscalers, err := f.Client().AutoscalingV2().HorizontalPodAutoscalers(f.ns).Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds})
	f.check(err)
	for _, events := range []watch.Interface{deployments, autoscalers} {
		c.done.Go(func() {
			for e := range events.ResultChan() {
				if ctx.Err() == nil { // a cancelled watch may end with an error
					c.recordEvent(e)
				}
			}
			if ctx.Err() == nil {
				c.addFault("the watch of sizes ended")
			}
		})
	}
	f.t.Cleanup(func() {
		stop()
		c.done.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, fault := range c.faults {
			f.t.Error(fault)
		}
		if f.t.Failed() {
			for name, o := range c.objects {
				f.t.Logf("sizes of %s: %v", name, o.history)
			}
		}
	})
	return c
}

func (c *sizeChecker) addFault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *sizeChecker) recordEvent(e watch.Event) {
	if e.Type == watch.Deleted {
		return
	}
	switch o := e.Object.(type) {
	case *appsv1.Deployment:
		c.recordSize("Deployment "+o.Name, *o.Spec.Replicas, fieldManager(o.ManagedFields, "replicas"), false)
	case *autoscalingv2.HorizontalPodAutoscaler:
		c.recordSize("HorizontalPodAutoscaler "+o.Name, *o.Spec.MinReplicas, fieldManager(o.ManagedFields, "minReplicas"), true)
	default:
		c.addFault("the watch of sizes failed: %v", e.Object)
	}
}

// fieldManager returns who changed a field of the spec last. It returns "" if the field is not set.
func fieldManager(all []metav1.ManagedFieldsEntry, field string) string {
	i := slices.IndexFunc(all, func(e metav1.ManagedFieldsEntry) bool {
		return e.Subresource != "status" && e.FieldsV1 != nil && strings.Contains(string(e.FieldsV1.Raw), `"f:`+field+`"`)
	})
	if i < 0 {
		return ""
	}
	return all[i].Manager
}

func (c *sizeChecker) recordSize(name string, size int32, manager string, autoscaler bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, known := c.objects[name]
	if !known {
		o = &checkedSize{size: size, wish: size, manager: manager, autoscaler: autoscaler}
		c.objects[name] = o
		o.history = append(o.history, sizeChange{time.Now(), size, manager})
		return
	}
	if size == o.size && manager == o.manager {
		return
	}
	before := o.size
	o.size, o.manager = size, manager
	o.history = append(o.history, sizeChange{time.Now(), size, manager})
	fault := func(what string) {
		c.faults = append(c.faults, fmt.Sprintf("%s: %s set it from %d to %d, while the others want %d: %s", name, manager, before, size, o.wish, what))
	}
	switch {
	case manager != surgeManager:
		o.wish = size
	case size == o.wish: // restored
	case size < o.wish:
		fault("below the wish")
	case before != o.wish:
		fault("an update was lost")
	case !autoscaler && size != o.wish+1:
		fault("more than one")
	default:
		o.raises++
	}
}

// countRaises returns how often Slipway has raised sizes.
func (c *sizeChecker) countRaises() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.objects {
		n += o.raises
	}
	return n
}

// lastWriter returns who changed the size of a Deployment last.
func (c *sizeChecker) lastWriter(deployment string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objects["Deployment "+deployment]; o != nil {
		return o.manager
	}
	return ""
}

// describeUnrestored returns the objects with a size that differs from the wish.
func (c *sizeChecker) describeUnrestored() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, o := range c.objects {
		if o.size != o.wish {
			all = append(all, fmt.Sprintf("%s has %d, want %d", name, o.size, o.wish))
		}
	}
	slices.Sort(all)
	return all
}

// crash is the kill of a process that surges Deployments.
type crash struct {
	at time.Time
	// raised has the Deployments that the process wanted to resize, and held those with a record that it wrote after another process.
	raised, held map[string]bool
}

// lateRaise is how long after a kill the watch may still show a change by the killed process.
const lateRaise = 2 * time.Second

// describeLateRestores returns the Deployments with a size that differed from the wish for longer than restoreTime after a crash. If a
// later process had taken the record over in time and crashed too, the time begins with that crash (I11). The crashes are in order. Only
// Slipway changes the sizes.
func (c *sizeChecker) describeLateRestores(crashes []crash) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, k := range crashes {
		for name, o := range c.objects {
			deployment := strings.TrimPrefix(name, "Deployment ")
			restored := o.restoredAfter(k.at, k.raised[deployment])
			if !restored.IsZero() && restored.Sub(k.at) <= restoreTime {
				continue
			}
			if slices.ContainsFunc(crashes[n+1:], func(next crash) bool {
				return next.held[deployment] && (restored.IsZero() || next.at.Before(restored)) && next.at.Sub(k.at) <= restoreTime
			}) {
				continue // checked for that crash
			}
			all = append(all, fmt.Sprintf("%s was not restored within %s after the kill at %s: %v", name, restoreTime,
				k.at.Format("15:04:05.000"), o.history))
		}
	}
	slices.Sort(all)
	return all
}

// restoredAfter returns when the size was first right after a crash; zero if it was not. If the process had wanted to raise the size,
// the API server may have carried this out shortly after the crash.
func (o *checkedSize) restoredAfter(crashed time.Time, wantedRaise bool) (at time.Time) {
	for _, c := range o.history {
		isRight := c.size == o.wish
		switch {
		case !c.at.After(crashed) && isRight:
			at = crashed
		case !c.at.After(crashed):
			at = time.Time{}
		case at.IsZero() && isRight:
			return c.at
		case at.Equal(crashed) && !isRight && wantedRaise && c.at.Sub(crashed) <= lateRaise:
			at = time.Time{}
		}
	}
	return at
}

func TestLateRestoreIsFound(t *testing.T) {
	start := time.Now()
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	web := map[string]bool{"web": true}
	for _, tc := range []struct {
		name    string
		changes map[int]int32 // sizes by second
		crashes []crash
		late    bool
	}{
		{"restored in time", map[int]int32{5: 2, 60: 1}, []crash{{at: second(10), raised: web}}, false},
		{"restored late", map[int]int32{5: 2, 71: 1}, []crash{{at: second(10), raised: web}}, true},
		{"never restored", map[int]int32{5: 2}, []crash{{at: second(10), raised: web}}, true},
		{"never raised", nil, []crash{{at: second(10)}}, false},
		{"raised by the next process", map[int]int32{40: 2}, []crash{{at: second(10)}}, false},
		{"raise arrives after the kill", map[int]int32{11: 2, 75: 1}, []crash{{at: second(10), raised: web}}, true},
		{"taken over by a process that crashes too", map[int]int32{5: 2, 80: 1}, []crash{{at: second(10), raised: web}, {at: second(31), held: web}}, false},
		{"another process crashes", map[int]int32{5: 2, 80: 1}, []crash{{at: second(10), raised: web}, {at: second(31)}}, true},
		{"taken over too late by a process that crashes too", map[int]int32{5: 2, 190: 1}, []crash{{at: second(10), raised: web}, {at: second(150), held: web}}, true},
		{"late after both crashes", map[int]int32{5: 2, 95: 1}, []crash{{at: second(10), raised: web}, {at: second(31), held: web}}, true},
	} {
		o := &checkedSize{size: 1, wish: 1, history: []sizeChange{{start, 1, userManager}}}
		for _, at := range slices.Sorted(maps.Keys(tc.changes)) {
			o.history = append(o.history, sizeChange{second(at), tc.changes[at], surgeManager})
		}
		c := &sizeChecker{objects: map[string]*checkedSize{"Deployment web": o}}
		if all := c.describeLateRestores(tc.crashes); (len(all) > 0) != tc.late {
			t.Errorf("%s: late restores %q, want late %v", tc.name, all, tc.late)
		}
	}
}
