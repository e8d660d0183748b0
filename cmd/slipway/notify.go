package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notify"
	"github.com/slipway-dev/slipway/internal/observe"
)

// defaultAgentFile is the path of the agent's configuration file in the agent's pod.
const defaultAgentFile = "/etc/slipway/agent.yaml"

func newNotifyCommand() *cobra.Command {
	return addSubcommands(&cobra.Command{
		Use:   "notify",
		Short: "Test the notifications of an agent",
	}, newNotifyTestCommand())
}

// notifyTestFlags holds the flags of `slipway notify test`.
type notifyTestFlags struct {
	file, receiver, moment string
	output                 outputFlag
}

// sentSample is a sample notification that all its receivers have accepted.
type sentSample struct {
	Moment    notify.Moment `json:"moment"`
	Receivers []string      `json:"receivers"`
}

func newNotifyTestCommand() *cobra.Command {
	var t notifyTestFlags
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Send a sample notification to the receivers in an agent's configuration",
		Long: "Test sends the notification of a Spot eviction, marked as a test (.Test is true), to all receivers or to one. It sends\n" +
			"it even to receivers that do not subscribe to the moment. It succeeds if all receivers accept it.",
		Example: `  slipway notify test --config agent.yaml
  slipway notify test --config agent.yaml --receiver slack --moment drained`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&t.file, "config", defaultAgentFile, "configuration file of the agent")
	cmd.Flags().StringVar(&t.receiver, "receiver", "", "name of the receiver (default: all)")
	cmd.Flags().StringVar(&t.moment, "moment", string(notify.Detected), "moment of the sample: "+joinWords(notify.Moments()))
	t.output.addFlagWithoutNames(cmd.Flags())
	return cmd
}

func (t *notifyTestFlags) run(ctx context.Context, out, errOut io.Writer) error {
	if err := t.output.validateWithoutNames(); err != nil {
		return err
	}
	moment := notify.Moment(t.moment)
	if !slices.Contains(notify.Moments(), moment) {
		return fmt.Errorf("--moment: %q: want %s", t.moment, joinWords(notify.Moments()))
	}
	receivers, err := t.selectReceivers(moment)
	if err != nil {
		return err
	}
	log, err := observe.NewLogger(errOut, "text", "info")
	if err != nil {
		return err
	}
	n, err := notify.NewNotifier(receivers, notify.Options{Log: log, UserAgent: "slipway/" + start.Version()})
	if err != nil {
		return err
	}
	if err := n.SendToAllNow(ctx, notify.NewSampleMessage(moment, time.Now())); err != nil {
		return err
	}
	sent := sentSample{moment, receiverNames(receivers)}
	return t.output.printAnswer(out, sent, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "%s: sent to %s\n", sent.Moment, strings.Join(sent.Receivers, ", "))
		return err
	})
}

// selectReceivers returns the receivers to test. It sets moment as the moment of all of them, so that their templates
// are checked with this moment.
func (t *notifyTestFlags) selectReceivers(moment notify.Moment) ([]notify.Receiver, error) {
	all, err := config.ReadReceivers(t.file)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--config: %s: contains no notifications: want a list of receivers (docs/notifications.md)", t.file)
	}
	if t.receiver != "" {
		i := slices.IndexFunc(all, func(r notify.Receiver) bool { return r.Name == t.receiver })
		if i < 0 {
			return nil, fmt.Errorf("--receiver: %q: want %s", t.receiver, strings.Join(receiverNames(all), ", "))
		}
		all = all[i : i+1]
	}
	for i := range all {
		all[i].Moments = []notify.Moment{moment}
	}
	return all, nil
}

func receiverNames(receivers []notify.Receiver) []string {
	names := make([]string, len(receivers))
	for i, r := range receivers {
		names[i] = r.Name
	}
	return names
}

func joinWords[T ~string](all []T) string { return strings.Join(toStrings(all), ", ") }
