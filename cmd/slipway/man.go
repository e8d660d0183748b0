package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// newManCommand returns the hidden command that writes the manual pages, which are part of each release.
func newManCommand() *cobra.Command {
	var date string
	cmd := &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the manual pages of all commands",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := time.Parse(time.DateOnly, date)
			if err != nil {
				return fmt.Errorf("--date: %q: want a date such as 2026-01-31", date)
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are public
				return err
			}
			root := cmd.Root()
			replaceMachineDefaults(root)
			root.DisableAutoGenTag = true
			source := strings.TrimSpace("slipway " + root.Version)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Manual: "Slipway", Source: source, Date: &at}, args[0])
		},
	}
	cmd.Flags().StringVar(&date, "date", time.Now().UTC().Format(time.DateOnly), "date of the pages")
	return cmd
}

// machineDependentDefaults maps the name of a flag to the default that generated pages show. The real defaults of these
// flags depend on the host, the environment or the user. For "" the flag's usage names the variable.
var machineDependentDefaults = map[string]string{
	"identity":                  "$HOSTNAME",
	"requested-by":              "$USER",
	"cache-dir":                 "$HOME/.kube/cache",
	"node-name":                 "",
	"namespace":                 "",
	"leader-election-namespace": "",
}

// replaceMachineDefaults replaces the defaults of flags that depend on the machine. So the generated pages are the same
// on every machine.
func replaceMachineDefaults(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if value, ok := machineDependentDefaults[f.Name]; ok {
			f.DefValue = value
		}
	})
	for _, sub := range cmd.Commands() {
		replaceMachineDefaults(sub)
	}
}
