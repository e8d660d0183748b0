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

// ownCRDs returns the CRDs of this build, sorted by name. The caller must not change them.
var ownCRDs = sync.OnceValues(crds.AllDefinitions)

// applyDefinitionsRemedy forces conflicts, because a manager with --install-crds owns the fields of the CRDs.
const applyDefinitionsRemedy = "kubectl apply --server-side --force-conflicts -f api/crds of the manager's release"

// checkCRDs compares the CRDs in the cluster with the CRDs of this build.
func checkCRDs(f *Facts) []Finding {
	wanted, err := ownCRDs()
	if err != nil {
		return []Finding{{
			Severity: Problem, Message: "the CRDs in this binary cannot be read:  " + err.Error(), Remedy: "use a released slipway",
		}}
	}
	needed := len(f.partsOfKind(Manager))+len(f.partsOfKind(Cloudpool)) > 0
	var found []Finding
	for _, want := range wanted {
		object := Object{Kind: "CustomResourceDefinition", Name: want.GetName()}
		have := f.CRDs[want.GetName()]
		if have == nil && !needed {
			continue
		}
		for _, d := range compareCRDs(have, want) {
			d.Object = object
			found = append(found, d)
		}
	}
	return found
}

func compareCRDs(have, want *unstructured.Unstructured) []Finding {
	version := v1alpha1.GroupVersion.Version
	if have == nil {
		return []Finding{{
			Severity: Problem, Message: "it is missing, and the manager does not start without it", Remedy: applyDefinitionsRemedy,
		}}
	}
	if !crds.IsEstablished(have) {
		return []Finding{{
			Severity: Problem, Message: "the API server does not serve it (condition Established is not True)",
			Remedy: "kubectl describe it: another CRD may use its names",
		}}
	}
	theirs, ours := findServedSchema(have, version), findServedSchema(want, version)
	if theirs == nil {
		return []Finding{{
			Severity: Problem, Message: "it does not serve version " + version + ", which this slipway needs", Remedy: applyDefinitionsRemedy,
		}}
	}
	mine, its := listSchemaFields(ours), listSchemaFields(theirs)
	return compareGenerations(crds.Generation(have.GetAnnotations()), crds.Generation(want.GetAnnotations()), subtractSorted(mine, its), subtractSorted(its, mine))
}

// compareGenerations returns whether the CRD in the cluster is older or newer than this build's, as findings. It
// compares the schema generations. If these are equal, as in builds from source, it compares the fields.
func compareGenerations(there, own uint64, lacks, more []string) []Finding {
	numbers := ""
	switch {
	case there == 0 && own > 0:
		numbers = fmt.Sprintf(" (it has no schema generation, this slipway's is %d)", own)
	case there != own:
		numbers = fmt.Sprintf(" (schema generation %d, this slipway's is %d)", there, own)
	}
	var found []Finding
	if there < own || there == own && len(lacks) > 0 {
		older := Finding{Severity: Warning, Remedy: applyDefinitionsRemedy, Message: "it is older than this slipway" + numbers}
		found = append(found, escalateForDroppedFields(older, lacks))
	}
	if there > own || there == own && len(more) > 0 {
		newer := Finding{
			Severity: Note, Remedy: "use the slipway of the installed release", Message: "it is newer than this slipway" + numbers,
		}
		if len(more) > 0 {
			newer.Message += ", which does not know " + abbreviateFields(more)
		}
		if there > own {
			newer = escalateForDroppedFields(newer, lacks)
		}
		found = append(found, newer)
	}
	return found
}

// escalateForDroppedFields gives a finding the severity Problem if the API server drops fields that this build writes.
func escalateForDroppedFields(f Finding, lacks []string) Finding {
	if len(lacks) > 0 {
		f.Severity = Problem
		f.Message += ": the API server drops without an error " + abbreviateFields(lacks)
	}
	return f
}

// findServedSchema returns the schema of a version that the CRD serves. It returns nil if the version is not served.
func findServedSchema(d *unstructured.Unstructured, version string) map[string]any {
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

// listSchemaFields returns the sorted paths of all fields of a schema, such as spec.cloud.group.
func listSchemaFields(schema map[string]any) []string {
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

func subtractSorted(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool {
		_, found := slices.BinarySearch(others, s)
		return found
	})
}

// abbreviateFields returns the first field names as text, and the number of the others.
func abbreviateFields(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more fields", strings.Join(names[:most], ", "), len(names)-most)
}
