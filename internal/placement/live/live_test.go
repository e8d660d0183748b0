package live_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// patience limits how long a test waits. It is far longer than needed, because the machine can be busy.
const patience = 2 * time.Minute

func listObjects(c *placementtest.Cluster) []runtime.Object {
	var list []runtime.Object
	for _, n := range c.Nodes {
		list = append(list, n)
	}
	for _, p := range c.Pods {
		list = append(list, p)
	}
	for _, b := range c.PDBs {
		list = append(list, b)
	}
	return list
}

// formatPlan returns the plan for every node as text.
func formatPlan(t *testing.T, s *snapshot.Snapshot) string {
	t.Helper()
	selection, err := planner.SelectVictims(s, s.Nodes.Len(), planner.LeastDisruption, planner.Options{})
	must.NoError(t, err)
	text, err := json.Marshal(selection)
	must.NoError(t, err)
	return string(text)
}

func TestListedAndSavedClustersGiveTheSameAnswers(t *testing.T) {
	c := placementtest.NewDiverseCluster(3, 12, 200, 5)
	direct, err := c.BuildSnapshot()
	must.NoError(t, err)
	listed, err := live.ReadClusterObjects(t.Context(), fake.NewClientset(listObjects(c)...))
	must.NoError(t, err)
	var file bytes.Buffer
	must.NoError(t, listed.WriteReduced(&file, saved.Compact))
	reread, err := saved.Decode(file.Bytes())
	must.NoError(t, err)
	want := formatPlan(t, direct)
	for name, o := range map[string]*saved.Objects{"listed": listed, "saved": reread} {
		s, err := o.BuildSnapshot()
		must.NoError(t, err)
		check.Is(t, want, formatPlan(t, s), name)
	}
}

// setServedResources adds resources to the discovery of a fake client.
func setServedResources(client *fake.Clientset, groupVersion string, resources ...metav1.APIResource) {
	client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: groupVersion, APIResources: resources})
}

func TestDeviceClassesAreWatchedOnlyIfServed(t *testing.T) {
	node := placementtest.NewNode("a", "zone-a", 4, 16, 10)
	pod := placementtest.NewPod("train", 0, "", 100, 64)
	pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	gpu := "example.com/gpu"
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu},
	}
	for want, versions := range map[string][]string{
		"undecidable: example.com/gpu is offered by device class gpu": {"resource.k8s.io/v1beta2", "resource.k8s.io/v1"},
		"blocked: insufficient example.com/gpu":                       {"resource.k8s.io/v1beta2"},
	} {
		client := fake.NewClientset(node, class)
		for _, version := range versions {
			setServedResources(client, version, metav1.APIResource{Name: "deviceclasses"}, metav1.APIResource{Name: "resourceslices"})
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		factory := informers.NewSharedInformerFactory(client, 0)
		cluster, err := live.WatchCluster(client.Discovery(), live.InformersOfFactory(factory), slog.New(slog.DiscardHandler))
		must.NoError(t, err)
		factory.Start(ctx.Done())
		must.NoError(t, cluster.WaitForSync(ctx))
		err = cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
			verdict, err := s.JudgeNewPod(pod, "a")
			check.Not(t, err == nil && verdict.String() != want, "%v served: %s, want %s", versions, verdict, want)
			return err
		})
		must.NoError(t, err)
		cancel()
		factory.Shutdown()
	}
}

// TestPodsCanArriveBeforeTheirNamespaces has the first pod of a group with affinity to itself, by a label of their
// namespace.
func TestPodsCanArriveBeforeTheirNamespaces(t *testing.T) {
	pod := placementtest.NewPod("web", 0, "", 100, 64)
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}, NamespaceSelector: team,
		}},
	}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: team.MatchLabels}}
	client := fake.NewClientset(pod, namespace, placementtest.NewNode("a", "zone-a", 4, 16, 10))
	first, others := informers.NewSharedInformerFactory(client, 0), informers.NewSharedInformerFactory(client, 0)
	cluster, err := live.WatchCluster(client.Discovery(), func(r schema.GroupVersionResource, kind ctrlclient.Object) (cache.SharedIndexInformer, error) {
		if r.Resource == "pods" {
			return live.InformersOfFactory(first)(r, kind)
		}
		return live.InformersOfFactory(others)(r, kind)
	}, slog.New(slog.DiscardHandler))
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer first.Shutdown()
	defer others.Shutdown()
	defer cancel()
	first.Start(ctx.Done())
	for pods := 0; pods == 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		_ = cluster.WithSnapshot(func(s *snapshot.Snapshot) error { pods = s.PodCount(); return nil })
	}
	others.Start(ctx.Done())
	must.NoError(t, cluster.WaitForSync(ctx))
	err = cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
		v, err := s.JudgeRecreatedPod(placement.PodKey{Namespace: "default", Name: "web-0"}, "a")
		check.Is(t, placement.Fits, v.Outcome, v)
		return err
	})
	must.NoError(t, err)
}

// newPodOfGroup returns a pod of the PodGroup gang.
func newPodOfGroup() *corev1.Pod {
	pod := placementtest.NewPod("train", 0, "a", 100, 64)
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
	return pod
}

// newPodGroups returns the PodGroup gang with the mode single, in each version.
func newPodGroups() map[string]runtime.Object {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "gang"}
	return map[string]runtime.Object{
		"v1beta1": &schedulingv1beta1.PodGroup{ObjectMeta: meta, Spec: schedulingv1beta1.PodGroupSpec{
			DisruptionMode: &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}},
		}},
		"v1alpha3": &schedulingv1alpha3.PodGroup{ObjectMeta: meta, Spec: schedulingv1alpha3.PodGroupSpec{
			DisruptionMode: &schedulingv1alpha3.DisruptionMode{Single: &schedulingv1alpha3.SingleDisruptionMode{}},
		}},
		"none": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
	}
}

// findGroupOfPod returns the group that the pod of newPodOfGroup counts in.
func findGroupOfPod(s *snapshot.Snapshot) string {
	return s.PodGroups.FindGroup(s.Pod(placement.PodKey{Namespace: "default", Name: "train-0"})).String()
}

func TestPodGroupsAreReadInTheServedVersion(t *testing.T) {
	node, resource := placementtest.NewNode("a", "zone-a", 4, 16, 10), schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"}
	for version, object := range newPodGroups() {
		for want, failure := range map[string]error{
			"":              nil,
			"PodGroup/gang": apierrors.NewForbidden(resource, "", errors.New("no right")),
		} {
			client := fake.NewClientset(node, newPodOfGroup(), object)
			client.PrependReactor("list", "podgroups", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetResource().Version == version {
					return failure != nil, nil, failure
				}
				return true, nil, apierrors.NewNotFound(resource, "")
			})
			if version == "none" {
				want = "PodGroup/gang"
			}
			o, err := live.ReadClusterObjects(t.Context(), client)
			must.NoError(t, err)
			for _, format := range []saved.Format{saved.Compact, saved.JSON} {
				var file bytes.Buffer
				must.NoError(t, o.WriteReduced(&file, format))
				reread, err := saved.Decode(file.Bytes())
				must.NoError(t, err)
				s, err := reread.BuildSnapshot()
				must.NoError(t, err)
				check.Is(t, want, findGroupOfPod(s), version, failure)
			}
		}
	}
	client := fake.NewClientset(node, newPodOfGroup())
	client.PrependReactor("list", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	check.ErrorContains(t, check.Err(live.ReadClusterObjects(t.Context(), client)), "connection refused")
}

func TestDiscoveryErrorIsReturned(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	_, err := live.WatchCluster(client.Discovery(), live.InformersOfFactory(informers.NewSharedInformerFactory(client, 0)), slog.New(slog.DiscardHandler))
	check.ErrorContains(t, err, "discover the resources of resource.k8s.io/v1: connection refused")
}

func TestWatchedClusterFollowsEvents(t *testing.T) {
	c := placementtest.NewDiverseCluster(4, 9, 120, 3)
	client := fake.NewClientset(listObjects(c)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	cluster, err := live.WatchCluster(client.Discovery(), live.InformersOfFactory(factory), slog.New(slog.DiscardHandler))
	must.NoError(t, err)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	must.NoError(t, cluster.WaitForSync(ctx))
	gone := c.Pods[0]
	must.NoError(t, client.CoreV1().Pods(gone.Namespace).Delete(ctx, gone.Name, metav1.DeleteOptions{}))
	c.Pods = c.Pods[1:]
	direct, err := c.BuildSnapshot()
	must.NoError(t, err)
	for ctx.Err() == nil {
		pods := 0
		_ = cluster.WithSnapshot(func(s *snapshot.Snapshot) error { pods = s.PodCount(); return nil })
		if pods == len(c.Pods) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	err = cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
		if got, want := formatPlan(t, s), formatPlan(t, direct); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return nil
	})
	must.NoError(t, err)
}
