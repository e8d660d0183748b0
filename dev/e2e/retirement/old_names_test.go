package retirement_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

const (
	newNames = goodGroup + `
minSize: 2
maxSize: 9
scaleUp: {enforceMinSize: false, headroom: {slots: 3, requests: {cpu: "1"}}}
scaleDown: {underutilized: {cpuBelow: 40}}`
	oldNames = goodGroup + `
minimum: 2
maximum: 9
scaleUp: {keepMinimum: false, headRoom: {slots: 3, requests: {cpu: "1"}}}
scaleDown: {underused: {cpuBelow: 40}}`
)

func TestAPIServerRefusesContradictingNames(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(groups)
	for name, tt := range map[string]struct{ spec, want string }{
		"old names":              {oldNames, ""},
		"new names":              {newNames, ""},
		"both names, same value": {goodGroup + "minSize: 2\nminimum: 2\nmaxSize: 3\nmaximum: 3", ""},
		"old default of minimum": {goodGroup + "minSize: 2\nminimum: 0", ""},
		"two values of minSize":  {goodGroup + "minSize: 2\nminimum: 3", "minimum is the old name of minSize"},
		"two values of maxSize":  {goodGroup + "maxSize: 2\nmaximum: 3", "maximum is the old name of maxSize"},
		"two values of headroom": {
			goodGroup + "maxSize: 2\nscaleUp: {headroom: {slots: 1, requests: {cpu: 1}}, headRoom: {slots: 2, requests: {cpu: 1}}}",
			"headRoom is the old name of headroom",
		},
		"equal headroom": {
			goodGroup + "maxSize: 2\nscaleUp: {headroom: {slots: 1, requests: {cpu: 1}}, headRoom: {slots: 1, requests: {cpu: 1}}}", "",
		},
		"old default of keepMinimum": {goodGroup + "maxSize: 2\nscaleUp: {enforceMinSize: false, keepMinimum: true}", ""},
		"two values of enforceMinSize": {
			goodGroup + "maxSize: 2\nscaleUp: {enforceMinSize: true, keepMinimum: false}", "keepMinimum is the old name of enforceMinSize",
		},
		"two values of underutilized": {
			goodGroup + "scaleDown: {underutilized: {cpuBelow: 1}, underused: {cpuBelow: 2}}", "underused is the old name of underutilized",
		},
		"minSize above maximum":       {goodGroup + "minSize: 3\nmaximum: 2", "minSize must not be above maxSize"},
		"minimum above maxSize":       {goodGroup + "minimum: 3\nmaxSize: 2", "minSize must not be above maxSize"},
		"scaleUp with maximum":        {goodGroup + "maximum: 2\nscaleUp: {}", ""},
		"scaleUp without either name": {goodGroup + "scaleUp: {}", "scaleUp requires maxSize"},
		"negative minimum":            {goodGroup + "minimum: -1", "spec.minimum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Create(t.Context(), parse(t, "NodeGroup", tt.spec), metav1.CreateOptions{DryRun: []string{"All"}})
			checkRefused(t, err, tt.want)
		})
	}
}

func TestStoredOldNamesGiveSameSpec(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(groups)
	var specs []v1alpha1.NodeGroupSpec
	for _, spec := range []string{newNames, oldNames} {
		stored := createGroup(t, bed, client, spec)
		var g v1alpha1.NodeGroup
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, &g); err != nil {
			t.Fatal(err)
		}
		specs = append(specs, g.Spec)
	}
	if diff := cmp.Diff(specs[0], specs[1]); diff != "" {
		t.Errorf("the spec with old names differs: %s", diff)
	}
}

func TestNodeGroupHasScaleSubresource(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(groups)
	// An old object starts with the default of the old schema.
	for name, spec := range map[string]string{"minSize": goodGroup + "minSize: 2", "no size": goodGroup, "old default": goodGroup + "minimum: 0"} {
		g := createGroup(t, bed, client, spec)
		if err := unstructured.SetNestedField(g.Object, int64(4), "status", "nodes"); err != nil {
			t.Fatal(err)
		}
		if _, err := client.UpdateStatus(t.Context(), g, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		// kubectl scale sends this request.
		scale, err := client.Patch(t.Context(), g.GetName(), types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}, "scale")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if replicas, _, _ := unstructured.NestedInt64(scale.Object, "status", "replicas"); replicas != 4 {
			t.Errorf("%s: status.replicas is %d, want 4", name, replicas)
		}
		scaled, err := client.Get(t.Context(), g.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if minSize, _, _ := unstructured.NestedInt64(scaled.Object, "spec", "minSize"); minSize != 5 {
			t.Errorf("%s: spec.minSize is %d, want 5", name, minSize)
		}
	}
	g := createGroup(t, bed, client, goodGroup+"minimum: 2")
	_, err := client.Patch(t.Context(), g.GetName(), types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}, "scale")
	checkRefused(t, err, "remove minimum")
}

func TestNodeGroupColumns(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(groups)
	g := createGroup(t, bed, client, goodGroup+"minSize: 2\nmaxSize: 9")
	g.Object["status"] = map[string]any{
		"nodes": int64(4), "retiring": int64(1),
		"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Ready", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}},
	}
	if _, err := client.UpdateStatus(t.Context(), g, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	raw, err := bed.Client().CoreV1().RESTClient().Get().AbsPath("/apis", groups.Group, groups.Version, groups.Resource, g.GetName()).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	want := []string{"Name", "Ready", "Cloud", "Group", "Min", "Max", "Nodes", "Retiring", "Age", "Reason", "Message"}
	if !slices.Equal(columns, want) {
		t.Errorf("columns %v, want %v", columns, want)
	}
	cells := table.Rows[0].Cells[1:8]
	if diff := cmp.Diff([]any{"True", "azure", "ci", 2., 9., 4., 1.}, cells); diff != "" {
		t.Error(diff)
	}
}

// TestOldReasonIsReplacedByUpdate updates a retirement as the manager does, which decodes and encodes the whole object.
func TestOldReasonIsReplacedByUpdate(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(retirements)
	o := parse(t, "NodeRetirement", "nodeName: admission-none\nreason: Underused")
	made, err := client.Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Delete(bed.Background(), made.GetName(), metav1.DeleteOptions{}) })
	var rt v1alpha1.NodeRetirement
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, &rt); err != nil {
		t.Fatal(err)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&rt)
	if err != nil {
		t.Fatal(err)
	}
	written, err := client.Update(t.Context(), &unstructured.Unstructured{Object: object}, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if reason, _, _ := unstructured.NestedString(written.Object, "spec", "reason"); reason != string(v1alpha1.Underutilized) {
		t.Errorf("spec.reason is %s", reason)
	}
}

func createGroup(t *testing.T, bed bed, client dynamic.ResourceInterface, spec string) *unstructured.Unstructured {
	t.Helper()
	g, err := client.Create(t.Context(), parse(t, "NodeGroup", spec), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Delete(bed.Background(), g.GetName(), metav1.DeleteOptions{}) })
	return g
}
