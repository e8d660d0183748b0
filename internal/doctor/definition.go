package doctor

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// own are the definitions that this build was made with, in the order of their names. They are not changed.
var own = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
	files, err := crds.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		raw, err := crds.Files.ReadFile(file.Name())
		if err != nil {
			return nil, err
		}
		d := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(raw, &d.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		all = append(all, d)
	}
	return all, nil
})

const applyDefinitions = "kubectl apply --server-side -f api/crds, of the release that the manager is of"

// definitions compares Slipway's definitions in the cluster with those of this build.
func definitions(f *Facts) []Finding {
	wanted, err := own()
	if err != nil {
		return []Finding{{
			Severity: Problem, Message: "the definitions in this program cannot be read: " + err.Error(), Remedy: "use a released slipway",
		}}
	}
	needed := len(f.installed(Manager))+len(f.installed(Cloudpool)) > 0
	var found []Finding
	for _, want := range wanted {
		object := Object{Kind: "CustomResourceDefinition", Name: want.GetName()}
		have := f.CRDs[want.GetName()]
		if have == nil && !needed {
			continue
		}
		for _, d := range compareDefinitions(have, want) {
			d.Object = object
			found = append(found, d)
		}
	}
	return found
}

func compareDefinitions(have, want *unstructured.Unstructured) []Finding {
	version := v1alpha1.GroupVersion.Version
	if have == nil {
		return []Finding{{
			Severity: Problem, Message: "it is not there, and the manager does not begin without it", Remedy: applyDefinitions,
		}}
	}
	if !established(have) {
		return []Finding{{
			Severity: Problem, Message: "the API server does not serve it (its condition Established is not True)",
			Remedy: "kubectl describe it: another definition may have its names",
		}}
	}
	theirs, ours := schemaOf(have, version), schemaOf(want, version)
	if theirs == nil {
		return []Finding{{
			Severity: Problem, Message: "it does not serve version " + version + ", which this slipway speaks", Remedy: applyDefinitions,
		}}
	}
	var found []Finding
	mine, its := fieldsOf(ours), fieldsOf(theirs)
	if lacks := without(mine, its); len(lacks) > 0 {
		found = append(found, Finding{
			Severity: Problem, Remedy: applyDefinitions,
			Message: fmt.Sprintf("it is older than this slipway: the API server silently drops %s", few(lacks)),
		})
	}
	if more := without(its, mine); len(more) > 0 {
		found = append(found, Finding{
			Severity: Note, Remedy: "use the slipway of the release that is installed",
			Message: fmt.Sprintf("it is newer than this slipway, which does not know %s", few(more)),
		})
	}
	return found
}

func established(d *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// schemaOf is the schema of a version that is served; nil when it is not.
func schemaOf(d *unstructured.Unstructured, version string) map[string]any {
	versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
	for _, v := range versions {
		v, ok := v.(map[string]any)
		if !ok || v["name"] != version || v["served"] != true {
			continue
		}
		schema, _, _ := unstructured.NestedMap(v, "schema", "openAPIV3Schema")
		return schema
	}
	return nil
}

// fieldsOf are the paths of all fields of a schema, such as spec.cloud.group.
func fieldsOf(schema map[string]any) []string {
	var paths []string
	var walk func(at string, schema map[string]any)
	walk = func(at string, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		for name, p := range properties {
			path := strings.TrimPrefix(at+"."+name, ".")
			paths = append(paths, path)
			if p, ok := p.(map[string]any); ok {
				walk(path, p)
			}
		}
		for _, inner := range []string{"items", "additionalProperties"} {
			if p, ok := schema[inner].(map[string]any); ok {
				walk(at+"[]", p)
			}
		}
	}
	walk("", schema)
	slices.Sort(paths)
	return paths
}

func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool {
		_, found := slices.BinarySearch(others, s)
		return found
	})
}

// few names the first of many.
func few(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more fields", strings.Join(names[:most], ", "), len(names)-most)
}
