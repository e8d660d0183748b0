// Package crds embeds the CustomResourceDefinitions of package v1alpha1.
package crds

import (
	"embed"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Files holds one YAML file for each definition.
//
//go:embed *.yaml
var Files embed.FS

// AllDefinitions returns the definitions, sorted by name.
func AllDefinitions() ([]*unstructured.Unstructured, error) {
	files, err := Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		raw, err := Files.ReadFile(file.Name())
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
}

// IsEstablished reports whether the API server serves the definition.
func IsEstablished(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// GenerationAnnotation is the annotation with the schema generation of a definition: a number that is raised with each
// change. A marker of the type in package v1alpha1 sets it.
const GenerationAnnotation = "slipway.dev/schema-generation"

// Generation returns the schema generation in the annotations of a definition. It is 0, lower than all others, if the
// annotation is missing or is not a number.
func Generation(annotations map[string]string) uint64 {
	generation, err := strconv.ParseUint(annotations[GenerationAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}
