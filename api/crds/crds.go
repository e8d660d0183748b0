// Package crds holds the CustomResourceDefinitions of package v1alpha1 as the API server takes them.
package crds

import "embed"

// Files are the definitions, one YAML file for each type.
//
//go:embed *.yaml
var Files embed.FS
