// Package crds holds the CustomResourceDefinitions of package v1alpha1 as the API server takes them.
package crds

import (
	"embed"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Files are the definitions, one YAML file for each type.
//
//go:embed *.yaml
var Files embed.FS

// All returns the definitions, in the order of their names.
func All() ([]*unstructured.Unstructured, error) {
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

// IsEstablished reports whether the API server serves a definition.
func IsEstablished(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// GenerationAnnotation is the annotation of a definition with the number that is raised with each change of it. It is
// written from a marker of the type in package v1alpha1.
const GenerationAnnotation = "slipway.dev/schema-generation"

// Generation is the number among a definition's annotations. One that has none, or none that can be read, is older than
// all that have: it is 0.
func Generation(annotations map[string]string) uint64 {
	generation, err := strconv.ParseUint(annotations[GenerationAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}
