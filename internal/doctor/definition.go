package doctor

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// own are the definitions that this build was made with, in the order of their names. They are not changed.
var own = sync.OnceValues(crds.All)

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
	if !crds.IsEstablished(have) {
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
	mine, its := fieldsOf(ours), fieldsOf(theirs)
	return compareAge(crds.Generation(have.GetAnnotations()), crds.Generation(want.GetAnnotations()), without(mine, its), without(its, mine))
}

// compareAge says which of two definitions is the newer one: by their numbers, and where those are equal, as among builds from
// source, by the fields that the cluster's lacks and those that it has more.
func compareAge(there, own uint64, lacks, more []string) []Finding {
	numbers := ""
	switch {
	case there == 0 && own > 0:
		numbers = fmt.Sprintf(" (it has no schema generation, this slipway's is %d)", own)
	case there != own:
		numbers = fmt.Sprintf(" (schema generation %d, this slipway's is %d)", there, own)
	}
	var found []Finding
	if there < own || there == own && len(lacks) > 0 {
		older := Finding{Severity: Warning, Remedy: applyDefinitions, Message: "it is older than this slipway" + numbers}
		found = append(found, dropping(older, lacks))
	}
	if there > own || there == own && len(more) > 0 {
		newer := Finding{
			Severity: Note, Remedy: "use the slipway of the release that is installed", Message: "it is newer than this slipway" + numbers,
		}
		if len(more) > 0 {
			newer.Message += ", which does not know " + few(more)
		}
		if there > own {
			newer = dropping(newer, lacks)
		}
		found = append(found, newer)
	}
	return found
}

// dropping makes a finding a problem where what this slipway writes is not kept.
func dropping(f Finding, lacks []string) Finding {
	if len(lacks) > 0 {
		f.Severity = Problem
		f.Message += ": the API server silently drops " + few(lacks)
	}
	return f
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
