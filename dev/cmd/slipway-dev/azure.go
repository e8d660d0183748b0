package main

import (
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func newAzureCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "azure [--dir DIR] -- [flags of the emulator]",
		Short: "Serve an emulated Azure for the machines of a running control plane",
		Long: "Serve an emulated Azure: the Scheduled Events of machines, and an API to announce events.\n\n" +
			"With --kubeconfig among the flags of the emulator (-- --help lists them) its machines are the\n" +
			"cluster's nodes, and it keeps a ledger of their pods. `slipway-dev up` starts an emulator too.",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := azure.RunEmulator(cmd.Context(), args, cmd.OutOrStdout(), testbed.NewDetachedNodePower(dir))
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		},
	}
	addDirFlag(cmd, &dir)
	return cmd
}
