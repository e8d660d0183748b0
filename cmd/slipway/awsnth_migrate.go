package main

import (
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/compat/awsnth"
)

func newMigrateAWSNTHCommand() *cobra.Command {
	return &cobra.Command{
		Use:                awsnth.Tool + " FLAGS...",
		Short:              "Convert the tool's flags, for slipway agent or for the queue mode of slipway manager",
		Example:            "  slipway migrate " + awsnth.Tool + " --taint-node --webhook-url=https://example.com/hook",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := awsnth.Migrate(args, cmd.ErrOrStderr())
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return printMigration(cmd.OutOrStdout(), m, err)
		},
	}
}
