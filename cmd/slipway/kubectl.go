package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// kubectlPluginAnnotations returns annotations that make the help show the command as "kubectl slipway". It returns
// nil unless the program's file is named kubectl-slipway, as for a kubectl plugin.
func kubectlPluginAnnotations(program string) map[string]string {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	if name != "kubectl-slipway" {
		return nil
	}
	return map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl slipway"}
}
