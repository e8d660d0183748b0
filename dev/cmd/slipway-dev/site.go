package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/site"
)

func newSiteCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "site",
		Short: "Build a web site of docs/ for offline reading",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := site.BuildSite(".", to); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "the site is in %s\n", to)
			return err
		},
	}
	cmd.Flags().StringVar(&to, "to", "dist/site", "output `folder`")
	return cmd
}
