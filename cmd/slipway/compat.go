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
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/request"
	"github.com/slipway-dev/slipway/internal/observe"
)

// exitUsage is how Go's flag package exits after flags that cannot be read.
const exitUsage = 2

func aksnthCommand() *cobra.Command {
	return &cobra.Command{
		Use:   aksnth.Tool + " [flags of " + aksnth.Tool + "]",
		Short: "Stand in for " + aksnth.Tool + ": its flags, variables and file in, its taints, events and metrics out",
		// The flags are not cobra's: they have one dash or two.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := aksnth.Parse(args, os.Getenv, cmd.ErrOrStderr())
			_, usage := errors.AsType[*compat.UsageError](err)
			switch {
			case errors.Is(err, flag.ErrHelp):
				return nil
			case usage:
				return &exitError{exitUsage, err}
			case err != nil:
				aksnth.TellFailure(o, err, start.Version())
				return err
			case o.ShowVersion:
				fmt.Fprintln(cmd.OutOrStdout(), start.Version())
				return nil
			}
			return runAKSNTH(cmd.Context(), o, cmd.ErrOrStderr())
		},
	}
}

func runAKSNTH(ctx context.Context, o *aksnth.Options, stderr io.Writer) (err error) {
	var sentry *aksnth.Sentry
	if o.SentryDSN != "" {
		if sentry, err = aksnth.NewSentry(o.SentryDSN, o.Node, start.Version()); err != nil { //nolint:contextcheck // what is said at the end of ctx is sent too
			return err
		}
		defer sentry.Close()
		defer func() { sentry.Failed(err) }()
	}
	private, err := observe.Private(o.WebTokenFile)
	if err != nil {
		return fmt.Errorf("-web.token-file: %w", err)
	}
	o.CheckTemplates()
	c := o.Config()
	if err := warnOf(aksnth.Tool, o.Warnings, c, stderr); err != nil {
		return err
	}
	asked := request.New(aksnth.DrainAs)
	var metrics *aksnth.Metrics
	x := start.Extras{
		Log:     sentry.Handler,
		Metrics: func(r *observe.Registry) { metrics = aksnth.NewMetrics(r, o.Node) },
		Voice: func(occasion agent.Occasion) (agent.Words, bool) {
			metrics.Hear(occasion)
			return aksnth.Voice(occasion)
		},
		Wrap: func(to string, next http.RoundTripper) http.RoundTripper {
			return later(func() http.RoundTripper {
				switch to {
				case start.APIServer:
					return metrics.APIServer(next)
				case start.Metadata:
					return metrics.Metadata(next)
				}
				return metrics.Webhook(next, o.TelegramHost())
			})
		},
		// The tool lost such messages, and drained all the same.
		WarnOfTemplates: true,

		Polls:      failures(func(err error, class azure.Class) { metrics.FetchFailed(err, class) }),
		Known:      func(resource string) { metrics.Known(resource) },
		Sources:    []agent.Source{asked},
		Conditions: map[string]agent.Action{request.ID: agent.Drain},
		Private:    private,
		Connect:    connectAsClientGo,
		Routes: func(in start.Inside) map[string]http.Handler {
			return aksnth.Routes(aksnth.Inside{
				Live: in.Live, Private: private, Release: asked.Withdraw, Metrics: in.Metrics,
				Drain: func(ctx context.Context) error {
					asked.Ask()
					return in.Await(ctx, request.Name, request.ID)
				},
			})
		},
	}
	return start.AgentWith(ctx, c, x, stderr)
}

func mechanicCommand() *cobra.Command {
	var path, kubeconfig, endpoint, listen string
	var dryRun, acknowledge bool
	cmd := &cobra.Command{
		Use:   mechanic.Tool,
		Short: "Stand in for mechanic: its file and variables in, its label and events out",
		Long: "Mechanic reads the configuration file of mechanic, under all spellings of its keys, and the variables that begin\n" +
			"with MECHANIC_. At the start it warns of what it cannot read there, and passes that over. A change of the file counts within\n" +
			"ten seconds; one that is refused changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asAgent := func(c *mechanic.Config) config.Agent {
				a := c.Config()
				a.Kubeconfig, a.Listen, a.DryRun, a.Acknowledge = kubeconfig, listen, dryRun, acknowledge
				if endpoint != "" {
					a.Endpoint = endpoint
				}
				return a
			}
			stderr := cmd.ErrOrStderr()
			return reloading(cmd.Context(), path, stderr, asAgent, func(ctx context.Context, c mechanic.Config, a config.Agent) error {
				if err := warnOf(mechanic.Tool, c.Warnings, a, stderr); err != nil {
					return err
				}
				x := start.Extras{
					Voice: mechanic.Voice(c.NodeName), Connect: connectAsClientGo, LabelOwnCordon: true,
					ConditionsNeedMetadata: c.BypassNodeProblemDetector, // as in that mode the tool asked it first
				}
				return start.AgentWith(ctx, a, x, stderr)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&path, "config", mechanic.DefaultFile, "mechanic's configuration file")
	fs.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file; without one the pod's own ServiceAccount is used")
	fs.StringVar(&endpoint, "endpoint", "", "URL of Azure's Scheduled Events")
	fs.StringVar(&listen, "listen", ":9818", "address of /metrics, /healthz and /readyz; empty is none")
	fs.BoolVar(&dryRun, "dry-run", false, "say what would be done, change nothing")
	fs.BoolVar(&acknowledge, "acknowledge", true, "tell Azure that an event may begin once its machines are drained")
	return cmd
}

// connectAsClientGo reaches the API server with a kubeconfig whose credentials come from another program.
func connectAsClientGo(kubeconfig, userAgent string, wrap func(http.RoundTripper) http.RoundTripper) (*kubeapi.Client, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.UserAgent = userAgent
	if wrap != nil {
		c.Wrap(wrap)
	}
	return smallClient(c)
}

// reloadEvery is how often mechanic's file is looked at.
const reloadEvery = 10 * time.Second

// reloading runs with the configuration of a file and begins anew when that changes. What an agent was about is on its
// node, so that the next one goes on with it.
func reloading(ctx context.Context, path string, stderr io.Writer, asAgent func(*mechanic.Config) config.Agent,
	run func(context.Context, mechanic.Config, config.Agent) error,
) error {
	f := mechanicFile{path: path, asAgent: asAgent, seen: fingerprint(path)}
	c, err := f.read(mechanic.LoadAtStart)
	if err != nil {
		return err
	}
	for {
		work, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(work, *c, asAgent(c)) }()
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

// mechanicFile is mechanic's file as it was last seen.
type mechanicFile struct {
	path    string
	asAgent func(*mechanic.Config) config.Agent
	seen    [sha256.Size]byte
}

// read reads the file, and refuses what the agent would refuse: by then the one before it would have ended.
func (f *mechanicFile) read(load func(path string, environ []string) (mechanic.Config, error)) (*mechanic.Config, error) {
	c, err := load(f.path, os.Environ())
	if err != nil {
		return nil, err
	}
	a := f.asAgent(&c)
	return &c, a.Validate()
}

// reload reads the file when it has changed. Only at the start does no file stand for the defaults: one that was there and
// is gone says nothing.
func (f *mechanicFile) reload() (*mechanic.Config, error) {
	if _, err := os.Stat(f.path); err != nil {
		return nil, err
	}
	return f.read(mechanic.Load)
}

// awaitChange returns the configuration of a file that has changed, or nil when what runs has ended.
func (f *mechanicFile) awaitChange(ctx context.Context, stderr io.Writer, ended <-chan error) (*mechanic.Config, error) {
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return nil, err
		case <-ticker.C:
		}
		now := fingerprint(f.path)
		if now == f.seen || ctx.Err() != nil {
			continue
		}
		f.seen = now
		c, err := f.reload()
		if err != nil {
			log, logErr := observe.Logger(stderr, "json", "info")
			if logErr == nil {
				log.Error("the changed configuration is not used: the last good one stands", "err", err)
			}
			continue
		}
		return c, nil
	}
}

// fingerprint tells contents apart; no file is as good as an empty one.
func fingerprint(path string) [sha256.Size]byte {
	raw, err := os.ReadFile(path)
	if err != nil {
		return sha256.Sum256(nil)
	}
	return sha256.Sum256(raw)
}

// warnOf logs what was passed over, as the agent will log.
func warnOf(tool string, warnings []string, c config.Agent, stderr io.Writer) error {
	log, err := observe.Logger(stderr, c.LogFormat, c.LogLevel)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn(w, "inputOf", tool)
	}
	return nil
}

// failures observes the polls that fail.
type failures func(error, azure.Class)

func (failures) FetchOK(time.Duration) {}

func (f failures) FetchFailed(err error, class azure.Class) { f(err, class) }

// later is a transport that is made when it is first needed.
func later(make func() http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) { return make().RoundTrip(r) })
}

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate TOOL",
		Short: "Print the configuration that does what another tool was told",
		Long: "Migrate prints a file for slipway agent or slipway manager. Notes in it say what is done otherwise than the tool did,\n" +
			"where somebody may have come to depend on it, and what nothing stands for any more.",
	}
	return commands(cmd,
		&cobra.Command{
			Use:                aksnth.Tool + " FLAGS... | --config FILE",
			Short:              "From the tool's flags, which may name its file",
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
		&cobra.Command{
			Use:     mechanic.Tool + " FILE",
			Short:   "From mechanic.yaml; - reads it from the standard input",
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
		migrateVMSSPodWatcher(),
		migrateOpenStackAutoscaler(),
		&cobra.Command{
			Use:   kubeaware.Tool + " FILE",
			Short: "From config.json, to a file of --cloud-config; - reads it from the standard input",
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

// mostInput is the size of the largest file that is read, in bytes.
const mostInput = 1 << 20

func readInput(stdin io.Reader, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(stdin, mostInput))
	}
	return os.ReadFile(path)
}

func printMigration(out io.Writer, m compat.Migration, err error) error {
	if err != nil {
		return err
	}
	file, err := m.File()
	if err != nil {
		return err
	}
	_, err = out.Write(file)
	return err
}
