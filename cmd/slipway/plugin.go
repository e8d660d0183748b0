package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	var output outputFlag
	cmd := &cobra.Command{
		Use:   "test PATH",
		Short: "Check that a plugin behaves as Slipway expects of a cloud",
		Long: `Test starts a plugin as the manager does and runs the test suite of Slipway's own providers, as far as a real cloud
allows it. Without --change it only reads. With --change it deletes and launches instances of the group: USE A GROUP THAT
IS RESERVED FOR TESTS.

Without -o json or yaml it prints the format of "go test -v".`,
		Example: "  slipway plugin test ./bin/libvirt --config libvirt.yaml --group workers",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validateWithoutNames(); err != nil {
				return err
			}
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
			if output == outputJSON || output == outputYAML {
				results, err := runPluginTests(cmd)
				if err != nil {
					return err
				}
				return errors.Join(output.printAnswer(cmd.OutOrStdout(), results, nil), results.toError())
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
	output.addFlagWithoutNames(fs)
	return cmd
}

// pluginResults are the results of the tests of a plugin.
type pluginResults struct {
	Plugin string             `json:"plugin"`
	Passed bool               `json:"passed"`
	Tests  []pluginTestResult `json:"tests"`
}

// pluginTestResult is the result of one test. The first test contains all others.
type pluginTestResult struct {
	Name    string  `json:"name"`
	Result  string  `json:"result"` // pass, fail or skip
	Seconds float64 `json:"durationSeconds"`
	// Output has the errors of a failed test, and the reason of a skipped one.
	Output string `json:"output,omitempty"`
}

func (r pluginResults) toError() error {
	if r.Passed {
		return nil
	}
	var failed []string
	for _, t := range r.Tests {
		if t.Result == "fail" {
			failed = append(failed, t.Name)
		}
	}
	return fmt.Errorf("plugin %s: failed: %s", r.Plugin, strings.Join(failed, ", "))
}

// runPluginTests runs the command again without -o in a child process, and returns the results that the child prints. The
// package testing prints them only as text and then exits.
func runPluginTests(cmd *cobra.Command) (pluginResults, error) {
	self, err := os.Executable()
	if err != nil {
		return pluginResults{}, err
	}
	args := []string{"plugin", "test"}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "output" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	path := cmd.Flags().Arg(0)
	child := exec.CommandContext(cmd.Context(), self, append(args, "--", path)...) //nolint:gosec // this program
	child.Stderr = unwrapText(cmd.ErrOrStderr())                                   // with a file, the child's children do not delay its end
	text, err := child.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || cmd.Context().Err() != nil) {
		return pluginResults{}, withInterruptCode(cmd.Context(), err)
	}
	results := pluginResults{Plugin: path, Passed: err == nil, Tests: parseTestResults(string(text))}
	if len(results.Tests) == 0 {
		return results, fmt.Errorf("plugin %s: the tests printed no result: %v", path, err)
	}
	return results, nil
}

var (
	testStart  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT|PAUSE) +(.+)$`)
	testResult = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (.+) \(([0-9.]+)s\)$`)
)

// parseTestResults returns the results in the output of "go test -v", in the order of the output. Every other line belongs to
// the test that began before it.
func parseTestResults(text string) []pluginTestResult {
	var all []pluginTestResult
	outputs := map[string]string{}
	current := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := testStart.FindStringSubmatch(line); m != nil {
			current = m[1]
		} else if m := testResult.FindStringSubmatch(line); m != nil {
			seconds, _ := strconv.ParseFloat(m[3], 64) // the expression allows only numbers
			all = append(all, pluginTestResult{Name: m[2], Result: strings.ToLower(m[1]), Seconds: seconds})
			current = ""
		} else if current != "" {
			outputs[current] += strings.TrimSpace(line) + "\n"
		}
	}
	for i := range all {
		all[i].Output = strings.TrimSpace(outputs[all[i].Name])
	}
	return all
}
