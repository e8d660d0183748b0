// Command slipway takes Kubernetes nodes into and out of service without dropping work. A copy of it with the name
// kubectl-slipway is a kubectl plugin.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
)

func main() {
	ctx, stop := start.NewSignalContext()
	cmd := newRootCommand()
	cmd.SetArgs(completionArgs(os.Args[0], os.Args[1:]))
	err := cmd.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if !isClosedPipe(err) {
		fmt.Fprintln(cmd.ErrOrStderr(), formatError(err))
	}
	os.Exit(toExitCode(err))
}

// isClosedPipe reports whether the reader of the output has ended, such as head. The user needs no message then.
func isClosedPipe(err error) bool {
	var file *fs.PathError // the error of a connection to an API server has another type
	return errors.As(err, &file) && errors.Is(file, syscall.EPIPE)
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
	cobra.EnableCommandSorting = false // the help shows the order of newCommandGroups
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
	cmd.SetErr(textWriter{os.Stderr}) // errors quote messages from the cluster
	for i, g := range newCommandGroups() {
		id := strconv.Itoa(i)
		cmd.AddGroup(&cobra.Group{ID: id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = id
		}
		cmd.AddCommand(g.commands...)
		if g.title == operateTitle {
			cmd.SetHelpCommandGroupID(id)
			cmd.SetCompletionCommandGroupID(id)
		}
	}
	cmd.AddCommand(newManCommand())
	addCompletions(cmd)
	return cmd
}

// commandGroup is a group of commands in the help.
type commandGroup struct {
	title    string
	commands []*cobra.Command
}

const operateTitle = "Operate Slipway:"

// newCommandGroups returns the commands in the order of the help.
func newCommandGroups() []commandGroup {
	return []commandGroup{
		{"Nodes:", []*cobra.Command{newStatusCommand(), newTopCommand(), newDrainCommand(), newRetireCommand()}},
		{"Explain:", []*cobra.Command{newPlanCommand(), newWhyCommand(), newReportCommand(), newDoctorCommand(), newSnapshotCommand()}},
		{operateTitle, []*cobra.Command{
			newAgentCommand(), newManagerCommand(), newCloudpoolCommand(), newNotifyCommand(), newPluginCommand(), newSimulateCommand(),
			newVersionCommand(),
		}},
		{"Compatibility (drop-in replacements for other tools):", []*cobra.Command{
			newAKSNTHCommand(), newAWSNTHCommand(), newMechanicCommand(), newVMSSPodWatcherCommand(), newOpenStackAutoscalerCommand(), newKubeawareCommand(),
			newMigrateCommand(),
		}},
	}
}
