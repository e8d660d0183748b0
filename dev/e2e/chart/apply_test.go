package chart_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/slipway-dev/slipway/dev/testbed"
)

// bed is a testbed with the test that runs on it.
type bed struct {
	*testbed.Testbed
	t   *testing.T
	ctx context.Context
}

func newBed(t *testing.T) bed {
	t.Helper()
	return newBedOn(t, testbed.StartShared(t))
}

func newBedOn(t *testing.T, on *testbed.Testbed) bed {
	t.Helper()
	ctx := testbed.TestContext(t)
	return bed{on, t, ctx}
}

func (b bed) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// createRestrictedNamespace creates a namespace with Pod Security's strictest level. Source:
// https://kubernetes.io/docs/concepts/security/pod-security-standards/
func (b bed) createRestrictedNamespace(name string) {
	b.t.Helper()
	_, err := b.Client().CoreV1().Namespaces().Create(b.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	b.check(err)
}

// needsPrometheusOperator reports whether an object needs a type that no API server has by default.
func needsPrometheusOperator(o *unstructured.Unstructured) bool {
	return strings.HasPrefix(o.GetAPIVersion(), "monitoring.coreos.com/")
}

// apply applies objects as kubectl apply --server-side --force-conflicts does. It returns the results.
func (b bed) apply(all []*unstructured.Unstructured) []*unstructured.Unstructured {
	b.t.Helper()
	client, err := dynamic.NewForConfig(b.RESTConfig())
	b.check(err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(b.Client().Discovery()))
	var became []*unstructured.Unstructured
	for _, o := range all {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		b.check(err)
		is, err := client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Apply(b.ctx, o.GetName(), o,
			metav1.ApplyOptions{FieldManager: "e2e", Force: true})
		if err != nil {
			b.t.Fatalf("%s %s: %v", kind.Kind, o.GetName(), err)
		}
		became = append(became, is)
	}
	return became
}

// podOf returns the pod that a controller makes from an object's template. It returns nil if the object has no
// template.
func podOf(t *testing.T, o *unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	template, found, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return nil
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(template, pod, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	pod.Name, pod.Namespace = o.GetName(), o.GetNamespace()
	return pod
}

// TestRenderedObjectsApplyWithRestrictedPods applies each stored manifest twice, in a namespace of its own. The
// second time changes nothing. Then it creates the pods as a dry run. For pods on the host network, the level is
// privileged, because Pod Security refuses them below that level.
func TestRenderedObjectsApplyWithRestrictedPods(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			in := strings.ReplaceAll(s.name(), "/", "-")
			in = strings.Replace(in, handlerChart, "handler", 1)
			b.createRestrictedNamespace(in)
			var all []*unstructured.Unstructured
			for _, o := range objects(t, manifest(t, s.chart, release(in, in), s.values(t))) {
				if !needsPrometheusOperator(o) {
					all = append(all, o)
				}
			}
			first := b.apply(all)
			for i, again := range b.apply(all) {
				if was := first[i]; again.GetGeneration() != was.GetGeneration() {
					t.Errorf("%s %s: the second apply changed the generation to %d from %d", again.GetKind(), again.GetName(),
						again.GetGeneration(), was.GetGeneration())
				}
			}
			pods := 0
			for _, o := range first {
				pod := podOf(t, o)
				if pod == nil {
					continue
				}
				pods++
				_, err := b.Client().CoreV1().Pods(in).Create(b.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				switch {
				case !pod.Spec.HostNetwork && err != nil:
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				case pod.Spec.HostNetwork && (err == nil || !strings.Contains(err.Error(), "host namespaces (hostNetwork=true)")):
					t.Errorf("%s %s uses the host network, and the API server returned: %v", o.GetKind(), o.GetName(), err)
				case pod.Spec.HostNetwork:
					b.checkPrivilegedPod(pod)
				}
			}
			if pods == 0 {
				t.Error("no pods")
			}
		})
	}
}

// checkPrivilegedPod creates a pod as a dry run, where Pod Security allows everything.
func (b bed) checkPrivilegedPod(pod *corev1.Pod) {
	b.t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace, pod.Spec.ServiceAccountName = metav1.NamespaceSystem, "default"
	_, err := b.Client().CoreV1().Pods(pod.Namespace).Create(b.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		b.t.Errorf("pod of %s with privilege: %v", pod.Name, err)
	}
}

// runsPlugins lists the containers with a program that starts cloud plugins.
var runsPlugins = map[string]bool{"manager": true, "cloudpool": true}

// TestPluginHostsHaveWritableTmp checks for a writable /tmp. A plugin and its parent program talk through
// a socket below /tmp, and the root file system is read-only.
func TestPluginHostsHaveWritableTmp(t *testing.T) {
	t.Parallel()
	from := map[string][]*unstructured.Unstructured{}
	for _, s := range sets(t) {
		from[s.name()] = objects(t, s.manifest(t))
	}
	for _, dir := range []string{"manager", "overlays/full", "cloudpool"} {
		from["deploy/"+dir] = kustomize(t, dir)
	}
	looked := 0
	for name, all := range from {
		for _, o := range all {
			pod := podOf(t, o)
			if pod == nil || !runsPlugins[pod.Spec.Containers[0].Name] {
				continue
			}
			looked++
			if !hasWritableDir(pod, tmp) {
				t.Errorf("%s: %s %s: %s is not writable", name, o.GetKind(), o.GetName(), tmp)
			}
		}
	}
	if looked < 5 {
		t.Errorf("%d pods run plugins", looked)
	}
}

// hasWritableDir reports whether a pod's container has a writable emptyDir at a path.
func hasWritableDir(pod *corev1.Pod, path string) bool {
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if mount.MountPath != path || mount.ReadOnly {
			continue
		}
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name && v.EmptyDir != nil })
	}
	return false
}

func TestSelectorsAreUniqueInARelease(t *testing.T) {
	t.Parallel()
	for _, s := range sets(t) {
		seen := map[string]string{}
		for _, o := range objects(t, s.manifest(t)) {
			selector, found, err := unstructured.NestedMap(o.Object, "spec", "selector", "matchLabels")
			if err != nil {
				t.Fatal(err)
			}
			if !found || podOf(t, o) == nil {
				continue
			}
			raw, err := json.Marshal(selector)
			if err != nil {
				t.Fatal(err)
			}
			if other := seen[string(raw)]; other != "" {
				t.Errorf("%s: %s and %s both select %s", s.name(), other, o.GetName(), raw)
			}
			seen[string(raw)] = o.GetName()
		}
	}
}
