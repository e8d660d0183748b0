package chart_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withEverything is a release whose every part has every right.
const withEverything = `
image: {registry: registry.example.com/slipway}
manager: {bootstrapTokens: true}
cloudpool: {enabled: true, nodeGroups: [workers], tls: {secretName: tls}}
`

// deployed are the objects of files below deploy/.
func deployed(t *testing.T, files ...string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, file := range files {
		raw, err := os.ReadFile(filepath.Join(root(t), "deploy", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objects(t, string(raw))...)
	}
	return all
}

// essence is an object without what a release adds to its metadata.
func essence(o *unstructured.Unstructured) map[string]any {
	o = o.DeepCopy()
	o.SetLabels(nil)
	o.SetAnnotations(nil)
	return o.Object
}

// TestTheChartGivesTheRightsThatTheManifestsGive compares each object about rights below deploy/ with the chart's: a
// release that is called slipway, in the namespace slipway, has the same under the same names.
func TestTheChartGivesTheRightsThatTheManifestsGive(t *testing.T) {
	t.Parallel()
	has := map[string]map[string]any{}
	for _, o := range objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), withEverything)) {
		has[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = essence(o)
	}
	wanted := deployed(t, "agent/rbac.yaml", "agent/admission.yaml", "agent/flowcontrol.yaml", "manager/rbac.yaml", "manager/install-crds.yaml",
		"manager/bootstrap.yaml", "cloudpool/rbac.yaml", "cloudpool/admission.yaml", "cloudpool/native.yaml", "cloudpool/authorize.yaml", "viewer/rbac.yaml", "viewer/top.yaml",
		"viewer/doctor.yaml")
	for _, want := range wanted {
		id := want.GetKind() + " " + want.GetNamespace() + "/" + want.GetName()
		if has[id] == nil {
			t.Errorf("there is no %s", id)
			continue
		}
		if d := cmp.Diff(anyNamespace(essence(want)), has[id]); d != "" {
			t.Errorf("%s: -deploy +chart:\n%s", id, d)
		}
	}
}

// accounts is what the manifests' policies say of the accounts of one name in every namespace.
var accounts = regexp.MustCompile(`\.matches\('\^system:serviceaccount:\[\^:\]\+:([a-z-]+)\$'\)`)

// anyNamespace has the manifests' policies, which are about the accounts of one name in every namespace, be about the
// release's, whose namespace is known.
func anyNamespace(o map[string]any) map[string]any {
	conditions, found, err := unstructured.NestedSlice(o, "spec", "matchConditions")
	if !found || err != nil {
		return o
	}
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok {
			expression, _ := c["expression"].(string)
			c["expression"] = accounts.ReplaceAllString(expression, " == 'system:serviceaccount:slipway:$1'")
		}
	}
	_ = unstructured.SetNestedSlice(o, conditions, "spec", "matchConditions") // it was there
	return o
}

func TestI2WithoutForcedDrainsTheAgentMayNotDeletePods(t *testing.T) {
	t.Parallel()
	for forced, want := range map[string]bool{"true": true, "false": false} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			"image: {registry: registry.example.com/slipway}\nagent: {forcedDrains: "+forced+"}"))
		role := find[rbacv1.ClusterRole](t, all, "ClusterRole", "slipway-agent")
		may := false
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					may = may || resource == "pods" && verb == "delete"
				}
			}
		}
		if may != want {
			t.Errorf("forcedDrains: %s: it may delete pods: %t", forced, may)
		}
	}
}

// TestTheChartHasTheTypesOfThisVersion: crds.by: chart installs copies.
func TestTheChartHasTheTypesOfThisVersion(t *testing.T) {
	t.Parallel()
	from, err := filepath.Glob(filepath.Join(root(t), "api", "crds", "*.yaml"))
	if err != nil || len(from) == 0 {
		t.Fatalf("%d types: %v", len(from), err)
	}
	for _, file := range from {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(root(t), "charts", slipwayChart, "files", "crds", filepath.Base(file))
		got, err := os.ReadFile(copied)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != string(got) {
			t.Errorf("%s is not %s: copy it", copied, file)
		}
	}
}

func TestBothChartsHaveOneGuard(t *testing.T) {
	t.Parallel()
	var copies []string
	for _, chart := range []string{slipwayChart, handlerChart} {
		raw, err := os.ReadFile(filepath.Join(root(t), "charts", chart, "templates", "_guard.tpl"))
		if err != nil {
			t.Fatal(err)
		}
		copies = append(copies, string(raw))
	}
	if d := cmp.Diff(copies[0], copies[1]); d != "" {
		t.Errorf("-charts/%s +charts/%s:\n%s", slipwayChart, handlerChart, d)
	}
}
