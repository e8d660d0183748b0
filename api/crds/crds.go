// Package crds holds the CustomResourceDefinitions of package v1alpha1 as the API server takes them.
package crds

import (
	"embed"
	"strconv"
)

// Files are the definitions, one YAML file for each type.
//
//go:embed *.yaml
var Files embed.FS

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
