// Command slipway takes Kubernetes nodes into and out of service without dropping work. A copy of it with the name
// kubectl-slipway is a kubectl plugin.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
)

func main() {
	ctx, stop := start.NewSignalContext()
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, formatError(err))
	os.Exit(toExitCode(err))
}

// addSubcommands adds commands to a parent that has no action of its own. It makes an unknown subcommand an error.
// Otherwise cobra would print the help to standard output and exit with 0.
func addSubcommands(parent *cobra.Command, children ...*cobra.Command) *cobra.Command {
	parent.AddCommand(children...)
	parent.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, child := range children {
			known = append(known, child.Name())
		}
		return fmt.Errorf("%s: %q: want %s", cmd.CommandPath(), args[0], strings.Join(known, " or "))
	}
	parent.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return parent
}

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slipway",
		Short: "Takes Kubernetes nodes into and out of service without dropping work",
		Long: "Slipway detects that a node is going away, evicts its pods safely and in time, and restores the node if its instance\n" +
			"survives. It retires nodes with their instances, and launches instances for unschedulable pods.",
		Version:       start.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   kubectlPluginAnnotations(os.Args[0]),
	}
	cmd.AddCommand(newAgentCommand(), newManagerCommand(), newDrainCommand(), newRetireCommand(), newStatusCommand(), newTopCommand(), newPlanCommand(),
		newWhyCommand(), newReportCommand(), newDoctorCommand(), newSnapshotCommand(), newNotifyCommand(), newSimulateCommand(), newAKSNTHCommand(), newMechanicCommand(),
		newVMSSPodWatcherCommand(), newOpenStackAutoscalerCommand(), newMigrateCommand(), newPluginCommand(), newCloudpoolCommand(), newKubeawareCommand(),
		newManCommand())
	return cmd
}
