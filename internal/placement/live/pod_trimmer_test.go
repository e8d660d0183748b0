package live_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func trimPod(t must.T, trim cache.TransformFunc, p *corev1.Pod) *corev1.Pod {
	o, err := trim(p)
	must.NoError(t, err)
	return o.(*corev1.Pod)
}

// listVerdicts returns the verdict of every pod on every node, and the result of the eviction rules for every node.
func listVerdicts(t *rapid.T, o *saved.Objects) map[string]string {
	s, err := o.BuildSnapshot()
	must.NoError(t, err)
	out := map[string]string{}
	for _, n := range o.Nodes {
		for _, p := range o.Pods {
			if placementtest.IsFinished(p) {
				continue // excluded from the requests
			}
			key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
			verdict, err := s.JudgeRecreatedPod(key, n.Name)
			must.NoError(t, err)
			out[fmt.Sprintf("%s on %s", key, n.Name)] = verdict.String()
		}
	}
	selection, err := planner.SelectVictims(s, s.Nodes.Len(), planner.LeastDisruption, planner.Options{})
	must.NoError(t, err)
	out["victims"] = fmt.Sprintf("%+v", selection)
	return out
}

func TestTrimmedPodsGetSameVerdicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := placementtest.NewRandomCluster(rapid.Uint64Range(0, 5_000).Draw(t, "seed")).Objects
		small, trim := whole, live.NewPodTrimmer()
		small.Pods = nil
		for _, p := range whole.Pods {
			before := p.DeepCopy()
			once := trimPod(t, trim, p)
			if !reflect.DeepEqual(p, before) {
				t.Fatalf("pod %s/%s was changed", p.Namespace, p.Name)
			}
			if twice := trimPod(t, trim, once); !reflect.DeepEqual(once, twice) || len(p.Spec.Containers) > 0 && once != twice {
				t.Fatalf("the second trim changes the pod: %+v, %+v", once, twice)
			}
			small.Pods = append(small.Pods, once)
		}
		if want, got := listVerdicts(t, &whole), listVerdicts(t, &small); !reflect.DeepEqual(want, got) {
			for question, answer := range want {
				check.Not(t, got[question] != answer, "%s: trimmed %q, whole %q", question, got[question], answer)
			}
		}
	})
}

func TestSiblingsShareCommonParts(t *testing.T) {
	trim := live.NewPodTrimmer()
	sibling := func(name, node string) *corev1.Pod {
		p := placementtest.NewPod("web", 0, node, 100, 64)
		p.Name, p.UID, p.ResourceVersion = name, types.UID("uid-"+name), "rv-"+name
		p.Annotations = map[string]string{"prometheus.io/port": name, "karpenter.sh/do-not-disrupt": "true"}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "POD", Value: name}}
		return p
	}
	a, b := trimPod(t, trim, sibling("web-a", "n1")), trimPod(t, trim, sibling("web-b", "n2"))
	if &a.Spec.Containers[0] != &b.Spec.Containers[0] || reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() {
		t.Error("two pods of one workload share neither containers nor labels")
	}
	if a.Name != "web-a" || a.UID != "uid-web-a" || a.ResourceVersion != "rv-web-a" || a.Spec.NodeName != "n1" || b.Name != "web-b" || b.Spec.NodeName != "n2" {
		t.Errorf("%+v and %+v", a.ObjectMeta, b.ObjectMeta)
	}
	check.Not(t, len(a.Annotations) != 1 || a.Annotations["karpenter.sh/do-not-disrupt"] != "true", "annotations %v", a.Annotations)
	larger := sibling("web-c", "n1")
	larger.Spec.Containers[0].Resources.Requests = placementtest.NewPod("web", 0, "n1", 200, 64).Spec.Containers[0].Resources.Requests
	c := trimPod(t, trim, larger)
	check.Not(t, &c.Spec.Containers[0] == &a.Spec.Containers[0], "pods with different requests share containers")
}

func TestTrimmedUnschedulablePodStaysUnschedulable(t *testing.T) {
	p := placementtest.NewPod("web", 0, "", 100, 64)
	said := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: "n1", Conditions: []corev1.PodCondition{said}}
	p.Status.Conditions[0].Message = "0/3 nodes are available"
	got := trimPod(t, live.NewPodTrimmer(), p).Status
	check.Not(t, got.Phase != corev1.PodPending || got.NominatedNodeName != "n1" || !slices.Contains(got.Conditions, said), "%+v", got)
}

func TestTrimLeavesOtherObjectsUnchanged(t *testing.T) {
	tomb := cache.DeletedFinalStateUnknown{Key: "shop/web", Obj: 1}
	got, err := live.NewPodTrimmer()(tomb)
	check.Not(t, err != nil || got != any(tomb), "%v, %v", got, err)
}

func TestCachedPodsAreReadInPlace(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	informers := func(schema.GroupVersionResource, client.Object) (cache.SharedIndexInformer, error) {
		return informer, nil
	}
	for range 2 { // the second call finds an existing index
		must.NoError(t, check.Err(live.NewCachedPodReader(informers)))
	}
	pods, err := live.NewCachedPodReader(informers)
	must.NoError(t, err)
	held := map[string]*corev1.Pod{}
	for _, at := range [][3]string{{"shop", "a", "n1"}, {"shop", "b", "n2"}, {"bank", "c", "n1"}, {"bank", "d", ""}} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: at[0], Name: at[1], Labels: map[string]string{"app": at[1]}}, Spec: corev1.PodSpec{NodeName: at[2]}}
		held[at[1]] = p
		must.NoError(t, informer.GetIndexer().Add(p))
	}
	only := func(names ...string) func(found []*corev1.Pod, err error) {
		return func(found []*corev1.Pod, err error) {
			t.Helper()
			check.Not(t, err != nil || len(found) != len(names), "%d pods, %v, want %v", len(found), err, names)
			for _, p := range found {
				check.Not(t, !slices.Contains(names, p.Name) || held[p.Name] != p, "%s at %p", p.Name, p)
			}
		}
	}
	ctx := t.Context()
	only("a", "b", "c", "d")(pods.ListSelected(ctx, "", labels.Everything()))
	only("a", "b")(pods.ListSelected(ctx, "shop", labels.Everything()))
	only("c")(pods.ListSelected(ctx, "", labels.SelectorFromSet(labels.Set{"app": "c"})))
	only()(pods.ListSelected(ctx, "shop", labels.SelectorFromSet(labels.Set{"app": "c"})))
	only("a", "c")(pods.ListOnNode(ctx, "n1"))
	only()(pods.ListOnNode(ctx, ""))
}
