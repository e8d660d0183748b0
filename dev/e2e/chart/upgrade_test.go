package chart_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// chartCRDValues contains the values of a release that has the types as objects.
const chartCRDValues = registry + "crds: {by: chart}\n"

// crds returns the CustomResourceDefinitions of a release.
func crds(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, o := range objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), chartCRDValues)) {
		if o.GetKind() == "CustomResourceDefinition" {
			all = append(all, o)
		}
	}
	if len(all) != 3 {
		t.Fatalf("%d CRDs, want 3", len(all))
	}
	return all
}

// TestUpgradeUpdatesCRDs adds a field that the types of an old release refuse. After the upgrade, the
// types accept it and existing objects stay. An uninstall keeps the types. The test does not run in parallel, because
// other tests also use types of the chart.
func TestUpgradeUpdatesCRDs(t *testing.T) {
	b := newBed(t)
	const field = "clusterAutoscalerScaleDownDisabled"
	now := crds(t)
	for _, o := range now {
		if policy := o.GetAnnotations()["helm.sh/resource-policy"]; policy != "keep" {
			t.Errorf("%s: helm.sh/resource-policy is %q: an uninstall would delete the records of machines", o.GetName(), policy)
		}
		old := o.DeepCopy()
		removeSpecField(t, old, field)
		b.apply([]*unstructured.Unstructured{old})
	}
	groups := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(v1alpha1.GroupVersion.WithResource("nodegroups"))
	group := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeGroup", "metadata": map[string]any{"name": "old"},
		"spec": map[string]any{
			"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "none"}},
			"cloud":        map[string]any{"provider": "azure", "group": "none"},
			"minimum":      int64(0),
		},
	}}
	b.check(testbed.PollUntil(b.ctx, "the old CRDs are served", func() bool {
		_, err := groups.Create(b.ctx, group, metav1.CreateOptions{})
		return err == nil
	}))
	defer func() { b.check(groups.Delete(b.ctx, group.GetName(), metav1.DeleteOptions{})) }()
	newer := group.DeepCopy()
	b.check(unstructured.SetNestedField(newer.Object, true, "spec", field))
	apply := func() error {
		_, err := groups.Apply(b.ctx, newer.GetName(), newer, metav1.ApplyOptions{FieldManager: "e2e", Force: true})
		return err
	}
	if err := apply(); err == nil || !strings.Contains(err.Error(), field) {
		t.Fatalf("the old CRDs accept %s: %v", field, err)
	}
	b.apply(now)
	b.check(testbed.PollUntil(b.ctx, "the new CRDs are served", func() bool { return apply() == nil }))
}

// removeSpecField removes a field of the spec from every version of a type's schema.
func removeSpecField(t *testing.T, crd *unstructured.Unstructured, field string) {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok {
			unstructured.RemoveNestedField(v, "schema", "openAPIV3Schema", "properties", "spec", "properties", field)
		}
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
}
