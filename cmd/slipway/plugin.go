package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/plugin/plugintest"
)

func pluginCommand() *cobra.Command {
	return commands(&cobra.Command{
		Use:   "plugin",
		Short: "Try out plugins, by which Slipway knows other clouds",
	}, pluginTestCommand())
}

func pluginTestCommand() *cobra.Command {
	var o plugintest.Options
	var config string
	cmd := &cobra.Command{
		Use:   "test PATH",
		Short: "Check that a plugin keeps what Slipway expects of a cloud",
		Long: `Test starts a plugin as the manager does and runs the suite of tests that Slipway's own providers have to pass, as far
as a real cloud allows it. Without --change it only looks. With --change it deletes machines of the group and has others
made: GIVE IT A GROUP THAT IS THERE FOR THE TESTS.`,
		Example: "  slipway plugin test ./bin/libvirt --config libvirt.yaml --group workers",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Path = args[0]
			if config != "" {
				raw, err := os.ReadFile(config)
				if err == nil {
					o.Config, err = yaml.YAMLToJSONStrict(raw)
				}
				if err != nil {
					return fmt.Errorf("--config: %w", err)
				}
			}
			if err := o.Validate(); err != nil {
				return err
			}
			go func() { // the tests have the process to themselves
				<-cmd.Context().Done()
				os.Exit(130) // the plugins end with it
			}()
			plugintest.Main(o)
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&config, "config", "", "file with the plugin's own configuration, YAML or JSON")
	fs.StringVar(&o.Group, "group", "", "a group with machines that run: one at the least, and six for --change")
	fs.StringVar(&o.Missing, "missing", "", "provider ID of a machine that never was (default: made of another's)")
	fs.StringVar(&o.Foreign, "foreign", "", "provider ID of a machine of another account or host, which the plugin has to refuse")
	fs.BoolVar(&o.Change, "change", false, "delete machines of the group and have others made")
	fs.DurationVar(&o.Timeout, "call-timeout", 30*time.Second, "bound on each call of the plugin, 1s to 10m")
	return cmd
}
