package main

import (
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func azureCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "azure [--dir DIR] -- [flags of the emulator]",
		Short: "Serve an emulated Azure, with power over the machines of a control plane that is up",
		Long: "Serve an emulated Azure: the Scheduled Events of machines, and an API to announce them by.\n\n" +
			"With --kubeconfig among the flags of the emulator (-- --help lists them) its machines are those of the\n" +
			"cluster's nodes, and it keeps a ledger of their pods. `slipway-dev up` starts one by itself.",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := azure.Main(cmd.Context(), args, cmd.OutOrStdout(), testbed.Machines(dir))
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}
