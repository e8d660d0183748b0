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

// agentFile is where the agent's configuration is mounted in its pod.
const agentFile = "/etc/slipway/agent.yaml"

func notifyCommand() *cobra.Command {
	return commands(&cobra.Command{
		Use:   "notify",
		Short: "Try out the notifications that an agent sends",
	}, notifyTestCommand())
}

// notifyTest is what `slipway notify test` was told.
type notifyTest struct {
	file, receiver, moment string
}

func notifyTestCommand() *cobra.Command {
	var t notifyTest
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Send a sample to the receivers of an agent's configuration",
		Long: "Test sends what an agent would send when a Spot machine is taken away, marked as a test (.Test is true), to every\n" +
			"receiver or to one. Receivers that are not told of the moment otherwise get it too. It succeeds when all took it.",
		Example: `  slipway notify test --config agent.yaml
  slipway notify test --config agent.yaml --receiver slack --moment drained`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&t.file, "config", agentFile, "the agent's configuration file")
	cmd.Flags().StringVar(&t.receiver, "receiver", "", "the receiver to send to (default: all)")
	cmd.Flags().StringVar(&t.moment, "moment", string(notify.Detected), "the moment to send: "+list(notify.Moments()))
	return cmd
}

func (t *notifyTest) run(ctx context.Context, out, errOut io.Writer) error {
	moment := notify.Moment(t.moment)
	if !slices.Contains(notify.Moments(), moment) {
		return fmt.Errorf("--moment: %q: want %s", t.moment, list(notify.Moments()))
	}
	receivers, err := t.receivers(moment)
	if err != nil {
		return err
	}
	log, err := observe.Logger(errOut, "text", "info")
	if err != nil {
		return err
	}
	n, err := notify.New(receivers, notify.Options{Log: log, UserAgent: "slipway/" + start.Version()})
	if err != nil {
		return err
	}
	if err := n.Send(ctx, notify.Sample(moment, time.Now())); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: sent to %s\n", moment, strings.Join(receiverNames(receivers), ", "))
	return nil
}

// receivers are those that are asked for. Their templates are checked with the moment too, even if they are not told of it.
func (t *notifyTest) receivers(moment notify.Moment) ([]notify.Receiver, error) {
	all, err := config.Receivers(t.file)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--config: %s: has no notifications: want a list of receivers (docs/notifications.md)", t.file)
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

// list is words for people.
func list[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return strings.Join(words, ", ")
}
