package placement_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
)

// unthrottled returns a client without a client-side rate limit.
func unthrottled(t *testing.T, bed *testbed.Testbed) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", bed.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inParallel calls fn for 0 to n-1, some concurrently, and returns the first error.
func inParallel(n int, fn func(i int) error) error {
	const workers = 8
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			var err error
			for i := w; i < n && err == nil; i += workers {
				err = fn(i)
			}
			errs <- err
		}()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// eventually polls until is returns true.
func eventually(ctx context.Context, t *testing.T, what string, is func() bool) {
	t.Helper()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

var crowd = flag.Int("crowd", 40, "how many nodes, with ten pods each, a cluster has that is read whole")

// TestEveryReaderSeesTheWholeCluster logs the duration of each way to read a cluster. The nodes and pods are only objects,
// without instances.
func TestEveryReaderSeesTheWholeCluster(t *testing.T) {
	nodes, pods := *crowd, 10**crowd
	bed := testbed.StartForTest(t, testbed.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	client := unthrottled(t, bed)
	if err := workload.CreateAndAwait(ctx, client, workload.NewNamespace("crowd")); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the namespace to have its ServiceAccount", func() bool {
		_, err := client.CoreV1().ServiceAccounts("crowd").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	name := func(i int) string { return fmt.Sprintf("crowd-%03d", i%nodes) }
	err := inParallel(nodes, func(i int) error {
		_, err := client.CoreV1().Nodes().Create(ctx, placementtest.NewNode(name(i), "zone-a", 32, 128, 110), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	no := false
	err = inParallel(pods, func(i int) error {
		p := placementtest.NewPod("web", i, name(i), 100, 128)
		p.Namespace, p.OwnerReferences, p.Spec.AutomountServiceAccountToken = "crowd", nil, &no
		p.Spec.Containers[0].Image = "none"
		_, err := client.CoreV1().Pods("crowd").Create(ctx, p, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	timed := func(what string, fn func() error) {
		t.Helper()
		start := time.Now()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: %.0f ms", what, time.Since(start).Seconds()*1e3)
	}
	timed("listed", func() error {
		o, err := live.ReadClusterObjects(ctx, client)
		if err == nil && (len(o.Nodes) != nodes || len(o.Pods) < pods) {
			err = fmt.Errorf("%d nodes and %d pods", len(o.Nodes), len(o.Pods))
		}
		return err
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	defer cancel()
	var cluster *live.Cluster
	timed("watched and synced", func() (err error) {
		if cluster, err = live.WatchCluster(client.Discovery(), live.InformersOfFactory(factory), slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		factory.Start(ctx.Done())
		return cluster.WaitForSync(ctx)
	})
	timed("why NODE of the watched cluster", func() error {
		return cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
			if s.Nodes.Len() != nodes || s.PodCount() < pods {
				return fmt.Errorf("%d nodes and %d pods", s.Nodes.Len(), s.PodCount())
			}
			e, err := planner.PlanEvacuation(s, name(7), planner.LeastDisruption, planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict)})
			if err == nil && len(e.Moves)+len(e.Refusals)+len(e.DeletedPods) == 0 {
				err = fmt.Errorf("the plan names no pods: %+v", e)
			}
			return err
		})
	})
	checkDeviceClasses(ctx, t, client, cluster, name(7))
	file := filepath.Join(t.TempDir(), "crowd.snapshot")
	for _, args := range [][]string{
		{"why", "node/" + name(7), "--force"}, {"plan", "--force"}, {"snapshot", "save", "--hash-names", file}, {"plan", "--force", "--snapshot", file},
	} {
		timed(fmt.Sprintf("slipway %v", args), func() error {
			return testbed.NewCommand(ctx, t, "slipway", append(args, "--kubeconfig", bed.Kubeconfig())...).Run()
		})
	}
}

// checkDeviceClasses checks that a watched cluster follows device classes: a pod that needs one is undecidable while the
// class exists, and otherwise blocked.
func checkDeviceClasses(ctx context.Context, t *testing.T, client kubernetes.Interface, cluster *live.Cluster, node string) {
	t.Helper()
	pod := placementtest.NewPod("train", 0, "", 100, 64)
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix + "gpu"): resource.MustParse("1"),
	}
	outcome := func() (v placement.Outcome) {
		err := cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
			verdict, err := s.JudgeNewPod(pod, node)
			v = verdict.Outcome
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if got := outcome(); got != placement.Blocked {
		t.Errorf("without a device class: %s, want %s", got, placement.Blocked)
	}
	classes := client.ResourceV1().DeviceClasses()
	if _, err := classes.Create(ctx, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the device class to be known", func() bool { return outcome() == placement.Undecidable })
	if err := classes.Delete(ctx, "gpu", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the device class to be gone", func() bool { return outcome() == placement.Blocked })
}
