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

// manCommand writes the manual pages. It is hidden: releases come with them written.
func manCommand() *cobra.Command {
	var date string
	cmd := &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a manual page for every command",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := time.Parse(time.DateOnly, date)
			if err != nil {
				return fmt.Errorf("--date %q: want a day, such as 2026-01-31", date)
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are for everybody to read
				return err
			}
			root := cmd.Root()
			forgetMachine(root)
			root.DisableAutoGenTag = true
			source := strings.TrimSpace("slipway " + root.Version)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Manual: "Slipway", Source: source, Date: &at}, args[0])
		},
	}
	cmd.Flags().StringVar(&date, "date", time.Now().UTC().Format(time.DateOnly), "day that the pages are of")
	return cmd
}

// ofTheMachine are the flags whose default comes from the machine that the program runs on, from its environment, or from who
// runs it, and the default that a page for everybody has. Those without one say in their usage which variable it is.
var ofTheMachine = map[string]string{
	"identity":                  "$HOSTNAME",
	"requested-by":              "$USER",
	"cache-dir":                 "$HOME/.kube/cache",
	"node-name":                 "",
	"namespace":                 "",
	"leader-election-namespace": "",
}

// forgetMachine has the pages be the same wherever they are written.
func forgetMachine(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if value, ok := ofTheMachine[f.Name]; ok {
			f.DefValue = value
		}
	})
	for _, sub := range cmd.Commands() {
		forgetMachine(sub)
	}
}
