// Command slipway-dev is for developers of Slipway. It starts and stops a real Kubernetes control plane on this machine,
// with emulated nodes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "slipway-dev",
		Short:         "A real Kubernetes control plane for the development of Slipway",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newBuildCommand(), newDemoCommand(), newBenchCommand(), newUpCommand(), newDownCommand(), newAzureCommand(), newForwardCommand(), newCacheCommand(), newRecordCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "slipway-dev:", err)
		return 1
	}
	return 0
}

// defaultDir is the control plane's default directory, relative to the root of the repository.
const defaultDir = ".dev"

func addDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", defaultDir, "directory of the control plane")
}

func addVersionFlag(cmd *cobra.Command, version *string) {
	cmd.Flags().StringVar(version, "kubernetes", "", fmt.Sprintf("Kubernetes version, one of %s (default %s, or the newest)",
		strings.Join(controlplane.Versions(), ", "), "$"+controlplane.VersionVariable))
}

func newBuildCommand() *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Compile the control plane into the cache (about four minutes on two cores the first time)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resolved, err := controlplane.ResolveVersion(version)
			if err != nil {
				return err
			}
			binaries, err := controlplane.BuildBinaries(cmd.Context(), resolved, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, path := range []string{binaries.Etcd, binaries.Kubernetes, binaries.Kwok} {
				fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
	addVersionFlag(cmd, &version)
	return cmd
}
