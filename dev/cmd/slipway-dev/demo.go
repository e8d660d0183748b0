package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/demo"
)

// keepVariable is the name of an environment variable. If it is 1, the cluster keeps running after the demo.
const keepVariable = "KEEP"

// cloudVariable is the name of the environment variable that selects the cloud of the demo.
const cloudVariable = "CLOUD"

func newDemoCommand() *cobra.Command {
	var dir, version string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show on a real control plane what Slipway does, and check each step",
		Long: "Show on a real control plane what Slipway does, and check each step.\n\n" +
			"With " + keepVariable + "=1 in the environment everything keeps running, as after `slipway-dev up`.\n" +
			"With " + cloudVariable + "=" + demo.EmulatedAWS + " or " + demo.EmulatedGoogle + " the same story is told on an emulated AWS or Google Cloud.\n" +
			"With " + cloudVariable + "=" + demo.RealOpenStack + " the last step uses a real OpenStack, which is installed and started\n" +
			"from Debian 12's packages; the installation requires root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{Out: cmd.OutOrStdout(), Version: version, Cloud: os.Getenv(cloudVariable)}
			if keep := os.Getenv(keepVariable); keep != "" && keep != "0" {
				if err := checkNotRunning(dir); err != nil {
					return err
				}
				program, err := os.Executable()
				if err != nil {
					return fmt.Errorf("finding this program, which must run the emulator: %w", err)
				}
				o.Keep, o.Dir, o.Program = true, dir, program
			}
			return demo.RunDemo(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", defaultDir, "directory of the control plane, if it keeps running")
	addVersionFlag(cmd, &version)
	return cmd
}
