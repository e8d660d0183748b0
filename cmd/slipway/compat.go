package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/compat"
	"github.com/slipway-dev/slipway/internal/compat/aksnth"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/mechanic"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/notice/request"
	"github.com/slipway-dev/slipway/internal/observe"
)

// exitUsage is the exit code for invalid flags. Go's flag package uses the same code.
const exitUsage = 2

func newAKSNTHCommand() *cobra.Command {
	return &cobra.Command{
		Use:   aksnth.Tool + " [flags of " + aksnth.Tool + "]",
		Short: "Drop-in replacement for " + aksnth.Tool + ": same flags, variables, file, taints, events and metrics",
		// cobra does not parse the flags: they may have one or two dashes.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := aksnth.ParseOptions(args, os.Getenv, cmd.ErrOrStderr())
			if ends, err := endsAfterParsing(cmd, err, err == nil && o.ShowVersion, start.Version()); ends {
				if _, usage := errors.AsType[*exitError](err); err != nil && !usage {
					aksnth.SendStartFailure(o, err, start.Version())
				}
				return err
			}
			return runAKSNTH(cmd.Context(), o, cmd.ErrOrStderr())
		},
	}
}

// endsAfterParsing reports whether a drop-in command ends once its flags are parsed, with err as the result of parsing. It
// ends with the returned error, which is nil for the help and the version. It prints the version.
func endsAfterParsing(cmd *cobra.Command, err error, showVersion bool, version string) (ends bool, _ error) {
	_, usage := errors.AsType[*compat.UsageError](err)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return true, nil
	case usage:
		return true, &exitError{exitUsage, err}
	case err != nil:
		return true, err
	case showVersion:
		fmt.Fprintln(cmd.OutOrStdout(), version)
		return true, nil
	}
	return false, nil
}

func runAKSNTH(ctx context.Context, o *aksnth.Options, stderr io.Writer) (err error) {
	var sentry *aksnth.Sentry
	if o.SentryDSN != "" {
		if sentry, err = aksnth.NewSentry(o.SentryDSN, o.Node, start.Version()); err != nil { //nolint:contextcheck // messages after the end of ctx are sent too
			return err
		}
		defer sentry.Close()
		defer func() { sentry.SendFailure(err) }()
	}
	private, err := observe.NewLoopbackOrTokenCheck(o.WebTokenFile)
	if err != nil {
		return fmt.Errorf("-web.token-file: %w", err)
	}
	o.WarnAboutTemplates()
	c := o.ToAgentConfig()
	if err := logWarnings(aksnth.Tool, o.Warnings, c, stderr); err != nil {
		return err
	}
	drainRequests := request.NewSource(aksnth.ManualDrainType)
	var metrics *aksnth.Metrics
	x := start.AgentOptions{
		WrapLogHandler:  sentry.WrapHandler,
		RegisterMetrics: func(r *observe.Registry) { metrics = aksnth.NewMetrics(r, o.Node) },
		EventFormatter: func(occasion agent.EventTrigger) ([]agent.FormattedEvent, bool) {
			metrics.CountNoticesAndFailures(occasion)
			return aksnth.FormatEvent(occasion)
		},
		WrapTransport: func(to string, next http.RoundTripper) http.RoundTripper {
			return newLazyTransport(func() http.RoundTripper {
				switch to {
				case start.APIServer:
					return metrics.WrapAPIServerTransport(next)
				case start.Metadata:
					return metrics.WrapMetadata(next)
				}
				return metrics.WrapWebhookTransport(next, o.TelegramHost())
			})
		},
		// The tool drained the node even if a message template failed.
		WarnOfTemplates: true,

		PollObserver:        failureObserver(func(err error, class poll.Class) { metrics.CountFetchFailure(err, class) }),
		OnResourceName:      func(resource string) { metrics.SetResource(resource) },
		Sources:             []agent.Source{drainRequests},
		Conditions:          map[string]agent.Action{request.NoticeID: agent.Drain},
		AuthorizeProfiles:   private,
		ConnectWithClientGo: connectWithClientGo,
		NewRoutes: func(in start.AgentAccess) map[string]http.Handler {
			return aksnth.NewRoutes(aksnth.AgentAccess{
				CheckLive: in.CheckLive, AuthorizeDrain: private, CancelDrain: drainRequests.CancelDrain, Metrics: in.Metrics,
				Drain: func(ctx context.Context) error {
					drainRequests.RequestDrain()
					return in.AwaitDrained(ctx, request.SourceName, request.NoticeID)
				},
			})
		},
	}
	return start.RunAgentWithOptions(ctx, c, x, stderr)
}

func newMechanicCommand() *cobra.Command {
	var path, kubeconfig, endpoint, listen string
	var dryRun, acknowledge bool
	cmd := &cobra.Command{
		Use:   mechanic.Tool,
		Short: "Drop-in replacement for mechanic: same file, variables, label and events",
		Long: "Mechanic reads mechanic's configuration file, with all spellings of its keys, and environment variables with the\n" +
			"prefix MECHANIC_. At the start it ignores what it cannot read and logs a warning. It applies a changed file within ten\n" +
			"seconds. An invalid change has no effect.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			toAgentConfig := func(c *mechanic.Config) config.Agent {
				a := c.ToAgentConfig()
				a.Kubeconfig, a.Listen, a.DryRun, a.Acknowledge = kubeconfig, listen, dryRun, acknowledge
				if endpoint != "" {
					a.Endpoint = endpoint
				}
				return a
			}
			stderr := cmd.ErrOrStderr()
			return runWithReload(cmd.Context(), path, stderr, toAgentConfig, func(ctx context.Context, c mechanic.Config, a config.Agent) error {
				if err := logWarnings(mechanic.Tool, c.Warnings, a, stderr); err != nil {
					return err
				}
				x := start.AgentOptions{
					EventFormatter: mechanic.NewEventFormatter(c.NodeName), ConnectWithClientGo: connectWithClientGo, LabelOwnCordon: true,
					ConditionsNeedMetadata: c.BypassNodeProblemDetector, // in that mode the tool asked the metadata service first
				}
				return start.RunAgentWithOptions(ctx, a, x, stderr)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&path, "config", mechanic.DefaultFile, "mechanic's configuration file")
	fs.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; if empty, the pod's ServiceAccount is used")
	fs.StringVar(&endpoint, "endpoint", "", "URL of Azure's Scheduled Events service")
	fs.StringVar(&listen, "listen", ":9818", "address of /metrics, /healthz and /readyz; if empty, not served")
	fs.BoolVar(&dryRun, "dry-run", false, "log the actions without carrying them out")
	fs.BoolVar(&acknowledge, "acknowledge", true, "acknowledge an event to Azure once all its instances are drained, so that it starts early")
	return cmd
}

// connectWithClientGo returns a client of the API server. It uses client-go, which supports credentials from another
// program.
func connectWithClientGo(kubeconfig, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*kubeapi.Client, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.UserAgent = userAgent
	if wrap != nil {
		c.Wrap(wrap)
	}
	return newKubeAPIClient(c)
}

// reloadInterval is how often mechanic's configuration file is checked for changes.
const reloadInterval = 10 * time.Second

// runWithReload runs the agent with the configuration in a file, and restarts it when the file changes. The agent
// stores its state on its Node, so the restarted agent continues.
func runWithReload(ctx context.Context, path string, stderr io.Writer, toAgentConfig func(*mechanic.Config) config.Agent,
	run func(context.Context, mechanic.Config, config.Agent) error,
) error {
	f := mechanicFile{path: path, toAgentConfig: toAgentConfig, lastHash: hashFile(path)}
	c, err := f.loadAndValidate(mechanic.LoadWithWarnings)
	if err != nil {
		return err
	}
	for {
		runContext, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(runContext, *c, toAgentConfig(c)) }()
		next, err := f.awaitChange(ctx, stderr, ended)
		stop()
		if next == nil {
			return err
		}
		if err := <-ended; err != nil {
			return err
		}
		c = next
	}
}

// mechanicFile is mechanic's configuration file, with the hash of its content at the last check.
type mechanicFile struct {
	path          string
	toAgentConfig func(*mechanic.Config) config.Agent
	lastHash      [sha256.Size]byte
}

// loadAndValidate loads the file. It returns an error for a configuration that the agent would refuse. Otherwise the
// running agent would be stopped for an invalid configuration.
func (f *mechanicFile) loadAndValidate(loadAndValidate func(path string, environ []string) (mechanic.Config, error)) (*mechanic.Config, error) {
	c, err := loadAndValidate(f.path, os.Environ())
	if err != nil {
		return nil, err
	}
	a := f.toAgentConfig(&c)
	return &c, a.Validate()
}

// reload loads the file after a change. A missing file is an error here, although it selects the defaults at the start.
func (f *mechanicFile) reload() (*mechanic.Config, error) {
	if _, err := os.Stat(f.path); err != nil {
		return nil, err
	}
	return f.loadAndValidate(mechanic.Load)
}

// awaitChange waits for a change of the file and returns the new configuration. It logs an invalid configuration and
// continues to wait. If run has ended, it returns nil and run's error.
func (f *mechanicFile) awaitChange(ctx context.Context, stderr io.Writer, ended <-chan error) (*mechanic.Config, error) {
	ticker := time.NewTicker(reloadInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return nil, err
		case <-ticker.C:
		}
		now := hashFile(f.path)
		if now == f.lastHash || ctx.Err() != nil {
			continue
		}
		f.lastHash = now
		c, err := f.reload()
		if err != nil {
			log, logErr := observe.NewLogger(stderr, "json", "info")
			if logErr == nil {
				log.Error("the changed configuration is invalid; keeping the previous one", "err", err)
			}
			continue
		}
		return c, nil
	}
}

// hashFile returns the hash of a file's content. A missing file has the same hash as an empty file.
func hashFile(path string) [sha256.Size]byte {
	raw, err := os.ReadFile(path)
	if err != nil {
		return sha256.Sum256(nil)
	}
	return sha256.Sum256(raw)
}

// logWarnings logs warnings in the agent's log format.
func logWarnings(tool string, warnings []string, c config.Agent, stderr io.Writer) error {
	log, err := observe.NewLogger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn(w, "inputOf", tool)
	}
	return nil
}

// failureObserver is an poll.Observer that ignores successful reads.
type failureObserver func(error, poll.Class)

func (failureObserver) FetchSucceeded(string, time.Duration) {}

func (f failureObserver) FetchFailed(_ string, err error, class poll.Class) { f(err, class) }

// newLazyTransport returns a transport that calls newTransport for each request. The metrics that the inner transport
// needs exist only after the start.
func newLazyTransport(newTransport func() http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) { return newTransport().RoundTrip(r) })
}

func newMigrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate TOOL",
		Short: "Convert the configuration of a replaced tool",
		Long: "Migrate prints a configuration file for slipway agent or slipway manager. Comments in it list differences to the tool\n" +
			"that may matter, and settings without an equivalent.",
	}
	return addSubcommands(cmd,
		&cobra.Command{
			Use:                aksnth.Tool + " FLAGS... | --config FILE",
			Short:              "Convert the tool's flags, including its file",
			Example:            "  slipway migrate " + aksnth.Tool + " -taint.node -webhook.url=https://example.com/hook",
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				m, err := aksnth.Migrate(args, cmd.ErrOrStderr())
				if errors.Is(err, flag.ErrHelp) {
					return nil
				}
				return printMigration(cmd.OutOrStdout(), m, err)
			},
		},
		newMigrateAWSNTHCommand(),
		&cobra.Command{
			Use:     mechanic.Tool + " FILE",
			Short:   "Convert mechanic.yaml; - reads it from standard input",
			Example: "  kubectl -n mechanic get configmap mechanic -o jsonpath='{.data.mechanic\\.yaml}' | slipway migrate mechanic -",
			Args:    cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				raw, err := readInput(cmd.InOrStdin(), args[0])
				if err != nil {
					return err
				}
				m, err := mechanic.Migrate(raw)
				if err != nil {
					err = fmt.Errorf("%s: %w", args[0], err)
				}
				return printMigration(cmd.OutOrStdout(), m, err)
			},
		},
		newMigrateVMSSPodWatcherCommand(),
		newMigrateOpenStackAutoscalerCommand(),
		&cobra.Command{
			Use:   kubeaware.Tool + " FILE",
			Short: "Convert config.json to a --cloud-config file; - reads it from standard input",
			Args:  cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				raw, err := readInput(cmd.InOrStdin(), args[0])
				if err != nil {
					return err
				}
				file, err := kubeaware.Migrate(raw)
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				_, err = cmd.OutOrStdout().Write(file)
				return err
			},
		},
	)
}

// maxInputBytes limits the size of standard input in bytes.
const maxInputBytes = 1 << 20

func readInput(stdin io.Reader, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(stdin, maxInputBytes))
	}
	return os.ReadFile(path)
}

func printMigration(out io.Writer, m compat.Migration, err error) error {
	if err != nil {
		return err
	}
	file, err := m.ToFile()
	if err != nil {
		return err
	}
	_, err = out.Write(file)
	return err
}
