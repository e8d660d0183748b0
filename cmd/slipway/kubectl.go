package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// kubectlName has the help say "kubectl slipway" where the program was started as kubectl starts its plugins, by a file
// called kubectl-slipway.
func kubectlName(program string) map[string]string {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	if name != "kubectl-slipway" {
		return nil
	}
	return map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl slipway"}
}
