package live_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

func objects(c *placementtest.Cluster) []runtime.Object {
	var list []runtime.Object
	for _, n := range c.Nodes {
		list = append(list, n)
	}
	for _, p := range c.Pods {
		list = append(list, p)
	}
	for _, b := range c.Budgets {
		list = append(list, b)
	}
	return list
}

// answer is what the snapshot says of every node, to be compared.
func answer(t *testing.T, s *placement.Snapshot) string {
	t.Helper()
	selection, err := s.Victims(s.Nodes(), placement.LeastDisruption, placement.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(selection)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAListedAndASavedClusterGiveTheSameAnswers(t *testing.T) {
	c := placementtest.Diverse(3, 12, 200, 5)
	direct, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	listed, err := live.List(t.Context(), fake.NewClientset(objects(c)...))
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := listed.Write(&file, saved.Compact); err != nil {
		t.Fatal(err)
	}
	reread, err := saved.Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	want := answer(t, direct)
	for name, o := range map[string]*saved.Objects{"listed": listed, "saved": reread} {
		s, err := o.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(t, s); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// discovered makes a cluster's clients say what they serve beside what every cluster does.
func discovered(client *fake.Clientset, groupVersion string, resources ...metav1.APIResource) {
	client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: groupVersion, APIResources: resources})
}

func TestDeviceClassesAreWatchedWhereTheyAreServed(t *testing.T) {
	node := placementtest.Node("a", "zone-a", 4, 16, 10)
	pod := placementtest.Pod("train", 0, "", 100, 64)
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
			discovered(client, version, metav1.APIResource{Name: "deviceclasses"}, metav1.APIResource{Name: "resourceslices"})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		factory := informers.NewSharedInformerFactory(client, 0)
		cluster, err := live.Watch(client.Discovery(), live.OfFactory(factory), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		if err := cluster.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		err = cluster.With(func(s *placement.Snapshot) error {
			verdict, err := s.Judge(pod, "a")
			if err == nil && verdict.String() != want {
				t.Errorf("%v served: %s, want %s", versions, verdict, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		factory.Shutdown()
	}
}

func TestAnAPIServerThatCannotBeAskedWhatItServesIsNoReasonToGuess(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	_, err := live.Watch(client.Discovery(), live.OfFactory(informers.NewSharedInformerFactory(client, 0)), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "ask which resources of resource.k8s.io/v1 are served: connection refused") {
		t.Errorf("error %v", err)
	}
}

func TestAWatchedClusterFollowsItsEvents(t *testing.T) {
	c := placementtest.Diverse(4, 9, 120, 3)
	client := fake.NewClientset(objects(c)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	cluster, err := live.Watch(client.Discovery(), live.OfFactory(factory), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	if err := cluster.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	gone := c.Pods[0]
	if err := client.CoreV1().Pods(gone.Namespace).Delete(ctx, gone.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Pods = c.Pods[1:]
	direct, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		pods := 0
		_ = cluster.With(func(s *placement.Snapshot) error { pods = s.Pods(); return nil })
		if pods == len(c.Pods) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	err = cluster.With(func(s *placement.Snapshot) error {
		if got, want := answer(t, s), answer(t, direct); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
