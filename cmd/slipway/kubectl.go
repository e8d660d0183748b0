package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// kubectlPluginAnnotations returns annotations that make the help print "kubectl slipway". It returns nil unless the program runs
// as the kubectl plugin, from a file named kubectl-slipway.
func kubectlPluginAnnotations(program string) map[string]string {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	if name != "kubectl-slipway" {
		return nil
	}
	return map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl slipway"}
}
