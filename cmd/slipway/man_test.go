package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestEveryCommandHasManualPage(t *testing.T) {
	dir := t.TempDir()
	cmd := newRootCommand()
	cmd.SetArgs([]string{"man", dir, "--date=2026-01-31"})
	must.NoError(t, cmd.ExecuteContext(t.Context()))
	pages := 0
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if !c.IsAvailableCommand() {
			return
		}
		file := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		page, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return
		}
		pages++
		if !strings.Contains(string(page), `"Jan 2026"`) || !strings.Contains(string(page), `.SH SYNOPSIS`) {
			t.Errorf("%s: no date or no synopsis:\n%.300s", file, page)
		}
		if strings.Contains(string(page), "spf13/cobra") {
			t.Errorf("%s says when it was generated", file)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if value := machineDependentDefaults[f.Name]; !f.Hidden && !strings.Contains(string(page), value) {
				t.Errorf("%s: the default of --%s is not %s", file, f.Name, value)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRootCommand())
	if pages < 10 {
		t.Errorf("%d pages were looked at", pages)
	}
}

func TestManRefusesInvalidDate(t *testing.T) {
	cmd := newRootCommand()
	cmd.SetArgs([]string{"man", t.TempDir(), "--date=31.1.2026"})
	check.ErrorContains(t, cmd.ExecuteContext(t.Context()), `--date: "31.1.2026"`)
}

func TestHelpNamesTypedCommand(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/kubectl-slipway": "kubectl slipway",
		"kubectl-slipway.exe":            "kubectl slipway",
		"/usr/local/bin/slipway":         "slipway",
	} {
		cmd := newRootCommand()
		cmd.Annotations = kubectlPluginAnnotations(program)
		if got := cmd.CommandPath(); got != want {
			t.Errorf("started as %s: %q, want %q", program, got, want)
		}
	}
}
