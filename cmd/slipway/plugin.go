package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/plugin/plugintest"
)

func newPluginCommand() *cobra.Command {
	return addSubcommands(&cobra.Command{
		Use:   "plugin",
		Short: "Test plugins for other clouds",
	}, newPluginTestCommand())
}

func newPluginTestCommand() *cobra.Command {
	var o plugintest.Options
	var config string
	cmd := &cobra.Command{
		Use:   "test PATH",
		Short: "Check that a plugin behaves as Slipway expects of a cloud",
		Long: `Test starts a plugin as the manager does and runs the test suite of Slipway's own providers, as far as a real cloud
allows it. Without --change it only reads. With --change it deletes and launches instances of the group: USE A GROUP THAT
IS RESERVED FOR TESTS.`,
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
			go func() { // plugintest does not return
				<-cmd.Context().Done()
				os.Exit(130) // plugins end with the process
			}()
			plugintest.Main(o)
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&config, "config", "", "configuration file of the plugin, YAML or JSON")
	fs.StringVar(&o.Group, "group", "", "group with at least one running instance, or six for --change")
	fs.StringVar(&o.Missing, "missing", "", "provider ID of an instance that never existed (default: derived from an existing one)")
	fs.StringVar(&o.Foreign, "foreign", "", "provider ID of an instance of another account or host, which the plugin must refuse")
	fs.BoolVar(&o.Change, "change", false, "delete and launch instances of the group")
	fs.DurationVar(&o.Timeout, "call-timeout", 30*time.Second, "timeout of each plugin call, 1s to 10m")
	return cmd
}
