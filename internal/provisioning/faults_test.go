package provisioning

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// The tests of this file are named after faults of the OpenStack cluster autoscaler that concern watches and actions.
// Package openstackautoscaler has the faults that concern decisions.

// watches are the open watches of an API server.
type watches struct {
	mu   sync.Mutex
	open []*watch.RaceFreeFakeWatcher
}

func recordWatches(kube *fake.Clientset) *watches {
	w := &watches{}
	kube.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if asked, ok := action.(clienttesting.WatchActionImpl); ok {
			options = asked.ListOptions
		}
		opened, err := kube.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
		if of, ok := opened.(*watch.RaceFreeFakeWatcher); ok {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.open = append(w.open, of)
		}
		return true, opened, err
	})
	return w
}

// endAll ends all open watches, after it has called last for each.
func (w *watches) endAll(last func(*watch.RaceFreeFakeWatcher)) (n int) {
	w.mu.Lock()
	open := w.open
	w.open = nil
	w.mu.Unlock()
	for _, of := range open {
		last(of)
		of.Stop()
	}
	return len(open)
}

func TestFaultPodsAreDeletedWithServer(t *testing.T) {
	controlled := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: "web", UID: "uid-web", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &controlled}},
	}}
	p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"),
	}}}}
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	}, newIdleNode("a", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)), newIdleNode("b", ""), p)
	f.observeSince("a")
	f.reconcile()
	var all v1alpha1.NodeRetirementList
	if err := f.client.List(t.Context(), &all); err != nil || len(all.Items) != 1 || all.Items[0].Spec.NodeName != "a" {
		t.Fatalf("retirements are %+v, %v, want one of a", all.Items, err)
	}
	// The retirement drains the node before its instance is deleted.
	if len(f.pool.deleted) != 0 {
		t.Errorf("deleted is %v", f.pool.deleted)
	}
	f.sinceAnnotation("a") // fails unless the Node is there
	for _, action := range f.kube.Actions() {
		if action.GetVerb() == "delete" {
			t.Errorf("a %s is deleted", action.GetResource().Resource)
		}
	}
}

func TestFaultPendingPodsAreKnownByTheirNameAlone(t *testing.T) {
	f := newFixture(t, nil)
	shop, blog := newUnschedulablePod("shop", "web-0"), newUnschedulablePod("blog", "web-0")
	f.addUnschedulablePod(shop)
	f.addUnschedulablePod(blog)
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 2 {
		t.Errorf("launches are %v for two pods of one name in two namespaces, want one of 2", got)
	}
	f.removePod(shop)
	f.waitUntil("the pod of the shop is gone", func() bool { return !f.isUnschedulable(shop) })
	if !f.isUnschedulable(blog) {
		t.Error("with the pod of the shop that of the blog is forgotten")
	}
}

func TestFaultAMissingNodeAndAPodWithoutConditionsArePanics(t *testing.T) {
	f := newFixture(t, func(g *v1alpha1.NodeGroup) {
		g.Spec.ScaleDown = &v1alpha1.ScaleDown{Underutilized: &v1alpha1.UnderutilizedRule{}}
	})
	bare, orphan := newUnschedulablePod("apps", "bare"), newUnschedulablePod("apps", "orphan")
	bare.Status.Conditions = nil
	orphan.Spec.NodeName, orphan.Status.Phase = "gone", corev1.PodRunning
	f.createPod(bare)
	f.createPod(orphan)
	f.addUnschedulable("a") // the watch has delivered the others by then
	f.reconcile()
	f.removePod(bare)
	f.removePod(orphan)
	f.addUnschedulable("b")
	f.pods.eventHandler().OnDelete(cache.DeletedFinalStateUnknown{Key: "apps/b"}) // the watch was interrupted when it was deleted
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 1 {
		t.Errorf("launches are %v, want one of 1: no other pod has found no room and is there", got)
	}
}

func TestFaultAWatchThatEndsIsNeverRestarted(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old resource version").Status()
	f := newFixture(t, nil)
	f.addUnschedulable("a")
	for pod, last := range map[string]func(*watch.RaceFreeFakeWatcher){
		"b": func(*watch.RaceFreeFakeWatcher) {},
		"c": func(w *watch.RaceFreeFakeWatcher) { w.Error(&expired) },
	} {
		if f.watches.endAll(last) == 0 {
			t.Fatal("no watch was open")
		}
		f.addUnschedulable(pod) // it is created while no watch is open
	}
	f.reconcile()
	if got := f.pool.launches(); len(got) != 1 || got[0].Count != 3 {
		t.Errorf("launches are %v, want one of 3", got)
	}
}
