// Command slipway takes Kubernetes nodes into and out of service without dropping work. Installed under the name
// kubectl-slipway it is also a kubectl plugin.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
)

// exitError carries an exit code of its own; any other error exits with 1.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitCode is what the process exits with; 0 without an error.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	}
	return 1
}

func main() {
	ctx, stop := start.Signals()
	err := root().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(exitCode(err))
}

// commands puts commands under one that does nothing by itself. A word that is none of them is an error: cobra would print the
// help, as if all were well, into whatever file the output goes to.
func commands(parent *cobra.Command, children ...*cobra.Command) *cobra.Command {
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

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slipway",
		Short: "Takes Kubernetes nodes into and out of service without dropping work",
		Long: "Slipway sees a node's end coming, moves its pods off safely and in time, and gives the node back when the\n" +
			"machine lives on.",
		Version:       start.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   kubectlName(os.Args[0]),
	}
	cmd.AddCommand(agentCommand(), managerCommand(), drainCommand(), retireCommand(), statusCommand(), topCommand(), planCommand(),
		whyCommand(), doctorCommand(), snapshotCommand(), notifyCommand(), simulateCommand(), aksnthCommand(), mechanicCommand(),
		vmssPodWatcherCommand(), openstackAutoscalerCommand(), migrateCommand(), pluginCommand(), cloudpoolCommand(), kubeawareCommand(),
		manCommand())
	return cmd
}
