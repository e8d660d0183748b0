package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// docsFolder is the subfolder of the release for documentation that the archives include.
const docsFolder = "docs"

// kubectlCompletion is the program that kubectl runs to complete the arguments of `kubectl slipway`.
const kubectlCompletion = "#!/bin/sh\nexec kubectl-slipway __complete \"$@\"\n"

// writeDocs runs slipway to write its man pages and shell completions.
func (r *release) writeDocs(ctx context.Context, binaries []executable) error {
	b, err := r.ensureHostBinary(ctx, cliCommand, binaries)
	if err != nil {
		return err
	}
	program, err := filepath.Abs(b.Path)
	if err != nil {
		return err
	}
	// Flag defaults may come from the environment, so it is empty. Windows needs SystemRoot to start a program.
	minimalEnv := []string{"SystemRoot=" + os.Getenv("SystemRoot")}
	man, completions := filepath.Join(r.out, docsFolder, "man"), filepath.Join(r.out, docsFolder, "completions")
	for _, dir := range []string{man, completions} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // public
			return err
		}
	}
	if _, err := runCommandWith(ctx, minimalEnv, man, program, "man", ".", "--date="+r.source.Time.Format("2006-01-02")); err != nil {
		return err
	}
	for shell, file := range map[string]string{
		"bash": "slipway.bash", "zsh": "_slipway", "fish": "slipway.fish", "powershell": "slipway.ps1",
	} {
		script, err := runCommandWith(ctx, minimalEnv, completions, program, "completion", shell)
		if err != nil {
			return err
		}
		if script == "" {
			return fmt.Errorf("slipway completion %s printed nothing", shell)
		}
		if err := os.WriteFile(filepath.Join(completions, file), []byte(script+"\n"), 0o644); err != nil { //nolint:gosec // public
			return err
		}
	}
	return os.WriteFile(filepath.Join(completions, "kubectl_complete-slipway"), []byte(kubectlCompletion), 0o755) //nolint:gosec // a program
}
