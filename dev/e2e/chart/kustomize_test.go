package chart_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/compat/mechanic"
)

// kustomizerLock serializes the runs of kustomize. Its library keeps the schema of Kubernetes in package variables. A
// concurrent run reads them while the first run still fills them.
var kustomizerLock sync.Mutex

// kustomize returns the objects that kubectl apply -k applies.
func kustomize(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	return runKustomize(t, filesys.MakeFsOnDisk(), filepath.Join(root(t), "deploy", dir))
}

func runKustomize(t *testing.T, files filesys.FileSystem, dir string) []*unstructured.Unstructured {
	t.Helper()
	kustomizerLock.Lock()
	defer kustomizerLock.Unlock()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, string(text))
}

func kinds(all []*unstructured.Unstructured) map[string]int {
	count := map[string]int{}
	for _, o := range all {
		count[o.GetKind()]++
	}
	return count
}

// agentObjects counts the objects that every overlay has.
var agentObjects = map[string]int{
	"Namespace": 1, "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "Role": 1, "RoleBinding": 1, "ConfigMap": 1, "DaemonSet": 1,
	"ValidatingAdmissionPolicy": 7, "ValidatingAdmissionPolicyBinding": 7, "PriorityLevelConfiguration": 2, "FlowSchema": 2,
}

func TestOverlaysHaveExpectedObjects(t *testing.T) {
	t.Parallel()
	full := map[string]int{}
	for kind, n := range agentObjects {
		full[kind] = n
	}
	for kind, n := range map[string]int{
		"ServiceAccount": 1, "ClusterRole": 6, "ClusterRoleBinding": 2, "Role": 1, "RoleBinding": 1, "Deployment": 1, "Service": 1,
		"PodDisruptionBudget": 1, "ValidatingAdmissionPolicy": 4, "ValidatingAdmissionPolicyBinding": 4,
	} {
		full[kind] += n
	}
	for overlay, want := range map[string]map[string]int{"agent-only": agentObjects, "mechanic": agentObjects, "full": full} {
		if d := cmp.Diff(want, kinds(kustomize(t, filepath.Join("overlays", overlay)))); d != "" {
			t.Errorf("%s: -want +has:\n%s", overlay, d)
		}
	}
}

// TestSurgeComponentsMatchTheChart adds the components to the overlay with all parts. The result must have the rights of the
// chart, and the argument that turns surges on.
func TestSurgeComponentsMatchTheChart(t *testing.T) {
	t.Parallel()
	all := kustomizeText(t, `{resources: [../full], components: [../../agent/surge, ../../manager/surge]}`)
	checkHasRights(t, all, withSurge)
	set := find[appsv1.DaemonSet](t, all, "DaemonSet", "slipway-agent")
	if args := set.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--surge=annotated") {
		t.Errorf("arguments %v, want --surge=annotated", args)
	}
}

func TestQueueComponentMatchesTheChart(t *testing.T) {
	t.Parallel()
	checkHasRights(t, kustomizeText(t, `{resources: [../full], components: [../../manager/queue]}`), withQueue)
}

// checkHasRights checks that objects have the same rights as the chart with these values.
func checkHasRights(t *testing.T, all []*unstructured.Unstructured, values string) {
	t.Helper()
	has := map[string]*unstructured.Unstructured{}
	for _, o := range all {
		has[o.GetKind()+" "+o.GetName()] = o
	}
	ids, documents := renderPermissions(t, values)
	for i, document := range documents {
		for _, want := range objects(t, document) {
			got := has[ids[i]]
			if got == nil {
				t.Errorf("the overlay lacks %s", ids[i])
				continue
			}
			for _, key := range []string{"rules", "spec", "subjects", "roleRef"} {
				if d := cmp.Diff(want.Object[key], got.Object[key]); d != "" {
					t.Errorf("%s: %s: -chart +overlay:\n%s", ids[i], key, d)
				}
			}
		}
	}
}

// kustomizeText returns the objects of a kustomization in a folder beside the overlays.
func kustomizeText(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	files := filesys.MakeFsInMemory()
	deploy := filepath.Join(root(t), "deploy")
	if err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return files.WriteFile(strings.TrimPrefix(path, deploy), raw)
	}); err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFile("/overlays/test/kustomization.yaml", []byte(text)); err != nil {
		t.Fatal(err)
	}
	return runKustomize(t, files, "/overlays/test")
}

// TestKustomizationsApplyWithRestrictedPods applies the kustomizations in sequence, because they share their
// names. First come those without a Pod Security level for the namespace. Then come the overlays, with level
// createRestrictedNamespace. The testbed already has the agent's other objects, in the same form.
func TestKustomizationsApplyWithRestrictedPods(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, k := range []struct {
		dir  string
		pods int
	}{
		{"agent", 1},
		{"manager", 1},
		{"viewer", 0},
		{"overlays/agent-only", 1},
		{"overlays/full", 2},
		{"overlays/mechanic", 1},
		{"cloudpool", 1}, // in addition to an overlay
		{"monitoring", 0},
	} {
		all := kustomize(t, k.dir)
		slices.SortStableFunc(all, func(x, y *unstructured.Unstructured) int {
			return strings.Compare(namespaceFirst(x), namespaceFirst(y))
		})
		pods := 0
		for _, o := range b.apply(all) {
			pod := podOf(t, o)
			if pod == nil {
				continue
			}
			pods++
			if _, err := b.Client().CoreV1().Pods(pod.Namespace).Create(b.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Errorf("%s: %s %s: %v", k.dir, o.GetKind(), o.GetName(), err)
			}
		}
		if pods != k.pods {
			t.Errorf("%s: %d kinds of pods, want %d", k.dir, pods, k.pods)
		}
	}
	in, err := b.Client().CoreV1().Namespaces().Get(b.ctx, namespace, metav1.GetOptions{})
	b.check(err)
	if level := in.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("the namespace has the Pod Security level %q, want restricted", level)
	}
}

// namespaceFirst sorts namespaces first, as kubectl does.
func namespaceFirst(o *unstructured.Unstructured) string {
	if o.GetKind() == "Namespace" {
		return "0"
	}
	return "1"
}

// TestOverlaySubjectsAreExistingAccounts checks that every reference to the agent's account names the existing
// account.
func TestOverlaySubjectsAreExistingAccounts(t *testing.T) {
	t.Parallel()
	for _, overlay := range []string{"agent-only", "mechanic", "full"} {
		all := kustomize(t, filepath.Join("overlays", overlay))
		accounts := map[string]bool{}
		for _, o := range all {
			if o.GetKind() == "ServiceAccount" {
				accounts[o.GetNamespace()+"/"+o.GetName()] = true
			}
		}
		for _, o := range all {
			subjects, _, err := unstructured.NestedSlice(o.Object, "subjects")
			if err != nil {
				t.Fatal(err)
			}
			if o.GetKind() == "FlowSchema" {
				subjects = flowSubjects(t, o)
			}
			for _, s := range subjects {
				s, _ := s.(map[string]any)
				if s["kind"] != "ServiceAccount" {
					continue
				}
				if nested, ok := s["serviceAccount"].(map[string]any); ok {
					s = nested
				}
				namespace, _ := s["namespace"].(string)
				name, _ := s["name"].(string)
				if !accounts[namespace+"/"+name] {
					t.Errorf("%s: %s %s names the missing ServiceAccount %s/%s", overlay, o.GetKind(), o.GetName(), namespace, name)
				}
			}
		}
	}
}

func flowSubjects(t *testing.T, o *unstructured.Unstructured) []any {
	t.Helper()
	rules, _, err := unstructured.NestedSlice(o.Object, "spec", "rules")
	if err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, r := range rules {
		r, _ := r.(map[string]any)
		subjects, _ := r["subjects"].([]any)
		all = append(all, subjects...)
	}
	if len(all) == 0 {
		t.Errorf("FlowSchema %s has no subjects", o.GetName())
	}
	return all
}

func TestMechanicOverlayHasMechanicDefaults(t *testing.T) {
	t.Parallel()
	all := kustomize(t, "overlays/mechanic")
	set := find[appsv1.DaemonSet](t, all, "DaemonSet", "slipway-agent")
	volumes := set.Spec.Template.Spec.Volumes
	if len(volumes) != 1 || volumes[0].ConfigMap == nil {
		t.Fatalf("volumes %v, want one of a ConfigMap", volumes)
	}
	file := find[corev1.ConfigMap](t, all, "ConfigMap", volumes[0].ConfigMap.Name).Data["mechanic.yaml"]
	got, err := mechanic.Parse([]byte(file), []string{"MECHANIC_NODE_NAME=node"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := mechanic.Parse(nil, []string{"MECHANIC_NODE_NAME=node"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-default +overlay:\n%s", d)
	}
}
