package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/demo"
)

// keepVariable is the environment variable that has the demo leave everything running.
const keepVariable = "KEEP"

// cloudVariable is the environment variable that names the cloud of the step in which machines come and go.
const cloudVariable = "CLOUD"

func demoCommand() *cobra.Command {
	var dir, version string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Tell what Slipway's agent does, on a real control plane, each step checked",
		Long: "Tell what Slipway's agent does, on a real control plane, each step checked.\n\n" +
			"With " + keepVariable + "=1 in the environment everything is left running, as by `slipway-dev up`.\n" +
			"With " + cloudVariable + "=" + demo.RealOpenStack + " the machines of the last step are of a real OpenStack, which is installed and started\n" +
			"for that: Debian 12's packages, which take root to install.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := demo.Options{Out: cmd.OutOrStdout(), Version: version, Cloud: os.Getenv(cloudVariable)}
			if keep := os.Getenv(keepVariable); keep != "" && keep != "0" {
				if err := refuseSecond(dir); err != nil {
					return err
				}
				program, err := os.Executable()
				if err != nil {
					return fmt.Errorf("finding this program, which is to go on as the emulator: %w", err)
				}
				o.Keep, o.Dir, o.Program = true, dir, program
			}
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", defaultDir, "directory of the control plane, if it is kept")
	versionFlag(cmd, &version)
	return cmd
}
