package live_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// listOnly is an API server that does not stream lists. A list at any version is complete; a list at the newest
// version comes in pages.
type listOnly struct {
	pods    []corev1.Pod
	largest int
}

func (l *listOnly) listPage(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	from, _ := strconv.Atoi(o.Continue)
	to := len(l.pods)
	if o.ResourceVersion != "0" && o.Limit > 0 {
		to = min(to, from+int(o.Limit))
	}
	page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, pod := range l.pods[from:to] {
		page.Items = append(page.Items, *pod.DeepCopy())
	}
	if to < len(l.pods) {
		page.Continue = strconv.Itoa(to)
	}
	l.largest = max(l.largest, to-from)
	return page, nil
}

func (l *listOnly) refuseWatch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	return watch.NewFake(), nil
}

func TestUnstreamedPodsAreReadInPagesAndTrimmed(t *testing.T) {
	from := &listOnly{}
	for i := range 1234 {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: fmt.Sprint("pod-", i), Annotations: map[string]string{"note": "long"}}}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}
		from.pods = append(from.pods, pod)
	}
	trim := live.NewPodTrimmer()
	informer := live.NewPagedPodInformers(trim)(&cache.ListWatch{ListWithContextFunc: from.listPage, WatchFuncWithContext: from.refuseWatch}, &corev1.Pod{}, 0, cache.Indexers{})
	must.NoError(t, informer.SetTransform(trim))
	ctx, stop := context.WithTimeout(t.Context(), patience)
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(ctx) }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer has not read the pods")
	}
	stop()
	<-done
	held := informer.GetStore().List()
	if len(held) != len(from.pods) || from.largest != 500 {
		t.Errorf("read %d of %d pods, at most %d per page; want all, 500 per page", len(held), len(from.pods), from.largest)
	}
	for _, o := range held {
		p := o.(*corev1.Pod)
		must.Not(t, p.Spec.Containers[0].Env != nil || p.Spec.Containers[0].Name != "app", "the pod is not trimmed: %+v", p)
	}
}
