package surge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/drain"
)

// usedMillicores is what all pods of a Deployment use together. With the autoscaler of fixture.autoscaler and pods that
// request twice as much, one pod is enough.
const usedMillicores = 100

var metricsAPI struct {
	sync.Once
	err error
}

// serveMetrics serves the resource metrics API (https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/)
// behind the shared control plane, for its autoscalers.
func (f *fixture) serveMetrics() {
	f.t.Helper()
	metricsAPI.Do(func() { metricsAPI.err = f.startMetricsAPI() })
	f.check(metricsAPI.err)
}

func (f *fixture) startMetricsAPI() error {
	const group, version = "metrics.k8s.io", "v1beta1"
	client, bed := f.Client(), f.Testbed
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		at := strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, path.Join("/apis", group, version)), "/"), "/")
		if len(at) != 3 || at[0] != "namespaces" || at[2] != "pods" {
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/" + version,
				APIResources: []metav1.APIResource{{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}}},
			})
			return
		}
		list, err := client.CoreV1().Pods(at[1]).List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(newPodMetrics(list.Items, group+"/"+version))
	}))
	address, err := url.Parse(server.URL) // it serves until the tests have ended
	if err != nil {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "metrics-server"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if _, err := client.CoreV1().Services(service.Namespace).Create(f.ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	port, err := resource.ParseQuantity(address.Port())
	if err != nil {
		return err
	}
	registration := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": version + "." + group},
		"spec": map[string]any{
			"group": group, "version": version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": service.Namespace, "name": service.Name, "port": port.Value()},
		},
	}}
	objects, err := dynamic.NewForConfig(bed.RESTConfig())
	if err != nil {
		return err
	}
	services := objects.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	if _, err := services.Create(f.ctx, registration, metav1.CreateOptions{}); err != nil {
		return err
	}
	return testbed.PollUntil(f.ctx, "the API server forwards to the metrics API", func() bool {
		_, err := client.Discovery().ServerResourcesForGroupVersion(group + "/" + version)
		return err == nil
	})
}

// newPodMetrics returns a PodMetricsList of the Ready pods, which use usedMillicores together.
func newPodMetrics(pods []corev1.Pod, apiVersion string) map[string]any {
	var ready []corev1.Pod
	for _, p := range pods {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				ready = append(ready, p)
			}
		}
	}
	items := []any{}
	for _, p := range ready {
		items = append(items, map[string]any{
			"metadata": map[string]any{"name": p.Name, "namespace": p.Namespace, "labels": p.Labels}, "timestamp": metav1.Now(), "window": "1s",
			"containers": []any{map[string]any{
				"name": p.Spec.Containers[0].Name, "usage": map[string]string{"cpu": fmt.Sprintf("%dm", usedMillicores/len(ready)), "memory": "1Mi"},
			}},
		})
	}
	return map[string]any{"kind": "PodMetricsList", "apiVersion": apiVersion, "metadata": map[string]any{}, "items": items}
}

// TestAutoscalerKeepsItsMinimum drains a pod with a real HorizontalPodAutoscaler. It lowers the size itself after its
// minimum is restored.
func TestAutoscalerKeepsItsMinimum(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "autoscaled")
	f.serveMetrics()
	sizes := f.checkSizes()
	app := f.app("web", 1)
	app.CPU = *resource.NewMilliQuantity(2*usedMillicores, resource.DecimalSI)
	f.runAtHome(append(objects(app), f.autoscaler("web", new(int32(1)), 3))...)
	report := f.drain("--timeout", "3m")
	f.checkNoGaps()
	f.awaitNoTraces(restoreTime, map[string]int32{"web": 1})
	f.check(testbed.PollUntil(f.ctx, "the minimum is restored", func() bool { return len(sizes.describeUnrestored()) == 0 }))
	if report.Outcome != drain.Drained || sizes.countRaises() != 1 {
		t.Errorf("outcome %s, %d raises, want 1", report.Outcome, sizes.countRaises())
	}
}

// TestGitOpsRevertIsRespected has a GitOps tool that writes the size back each second, also while the successor starts.
func TestGitOpsRevertIsRespected(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "gitops")
	sizes := f.checkSizes()
	app := f.app("web", 1)
	app.StartSeconds = "4"
	f.runAtHome(objects(app)...)
	git := f.startGitOps("web", 1, time.Second)
	cmd := testbed.NewCommand(f.ctx, t, "slipway", "drain", f.node(home), "--kubeconfig", f.Kubeconfig(), "--surge=always", "--timeout", "20s")
	out, _ := cmd.CombinedOutput() // its PDB allows no eviction, so the drain may time out
	f.awaitNoTraces(restoreTime, map[string]int32{"web": 1})
	f.checkNoGaps()
	if sizes.countRaises() == 0 || git.countReverts() == 0 || sizes.countRaises() != git.countReverts() {
		t.Errorf("%d raises and %d reverts: want as many, and at least one", sizes.countRaises(), git.countReverts())
	}
	if !strings.Contains(string(out), gitOpsManager) {
		t.Errorf("the output does not say who changed the size:\n%s", out)
	}
}

// TestUsersScaleDuringSurgeWins changes the size while the successor starts.
func TestUsersScaleDuringSurgeWins(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "scaled")
	sizes := f.checkSizes()
	app := f.app("web", 1)
	app.StartSeconds = "3"
	f.runAtHome(objects(app)...)
	cmd := testbed.NewCommand(f.ctx, t, "slipway", "drain", f.node(home), "--kubeconfig", f.Kubeconfig(), "--surge=always", "--timeout", "1m")
	f.check(cmd.Start())
	f.check(testbed.PollUntil(f.ctx, "Slipway has raised the size", func() bool { return sizes.countRaises() > 0 }))
	f.check(f.scaleAsUser("web", func(int32) int32 { return 4 }))
	_ = cmd.Wait() // with a PDB of maxUnavailable 0, it depends on the next surge whether the drain ends
	f.awaitNoTraces(restoreTime, map[string]int32{"web": 4})
	f.checkNoGaps()
}
