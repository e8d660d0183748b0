package cloudpool

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/renamed"
)

// Config is everything that `slipway cloudpool` can be told. Of the options of its parts it has what is configured; Run adds the rest.
type Config struct {
	Kubeconfig  string
	CloudConfig string
	// Pools are the pools of cloudpool servers to stand in front of; NodeGroups those to serve natively.
	Pools, NodeGroups []string
	// NativeRefresh is how old what is read of a NodeGroup may be.
	NativeRefresh time.Duration

	httpserver.ListenOptions
	httpserver.ServerOptions
	controller.UpdaterOptions

	Insecure            bool
	TokenAudiences      []string
	MetricsListen       string
	Profiling           bool
	LogLevel, LogFormat string
}

// DefaultTokenAudience is the audience of clients' tokens. A token for it is of no use at the API server, to which whoever
// reads it here could show any other.
const DefaultTokenAudience = "slipway-cloudpool"

// refusable are the actions that --refuse takes.
var refusable = []string{"attach", "config", "detach", "start", "stop"}

// AddFlags registers the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname()
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file; without one the pod's own ServiceAccount is used")
	fs.StringVar(&c.CloudConfig, "cloud-config", "", "file that says which clouds there are, by provider; the manager's own")
	fs.StringSliceVar(&c.Pools, "pool", nil, "pools of the file's cloudpool servers to stand in front of; without any and without --native, all")
	fs.StringSliceVar(&c.NodeGroups, "native", nil, "NodeGroups to serve as pools, whatever their cloud")
	fs.DurationVar(&c.NativeRefresh, "native-refresh", 5*time.Second, "how old what is read of a NodeGroup may be, up to 5m; updates read anew")
	fs.StringVar(&c.Address, "listen", "127.0.0.1:8080", "address of the API")
	fs.BoolVar(&c.Insecure, "insecure", false, "serve beyond the loopback interface without TLS, or without knowing clients")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", "", "certificate to serve with, in PEM; read again when it changes")
	fs.StringVar(&c.TLSKeyFile, "tls-private-key-file", "", "its key")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", "", "authorities, in PEM, one of which has to have signed the certificate of every client that shows one")
	fs.BoolVar(&c.Authorize, "authorize", false, "ask the API server who a client is (TokenReview) and whether it may (SubjectAccessReview: get "+
		"or update nodegroups/scale of the pool's name)")
	fs.StringSliceVar(&c.TokenAudiences, "token-audience", []string{DefaultTokenAudience}, "with --authorize: audiences, one of which a client's "+
		"token has to be for; empty is the API server's own")
	fs.DurationVar(&c.ReadTimeout, "read-timeout", time.Minute, "how long a client may take to send a request, 1s to 1h")
	fs.DurationVar(&c.BackendTimeout, "backend-timeout", httpserver.DefaultBackendTimeout, "how long a request that is passed on may take, 1s to 1h")
	fs.Int64Var(&c.MaxBody, "max-body", httpserver.DefaultMaxBody, "largest body of a request that is passed on, in bytes, 1024 to 1073741824")
	fs.BoolVar(&c.StrictCompat, "strict-compat", false, "answer every failure as kubeaware-cloudpool-proxy did: with 500, and 200 where some "+
		"machines went; and let clients wait for each other's updates")
	fs.BoolVar(&c.KeepCredentials, "pass-credentials", false, "pass the clients' own credentials on to the pools' servers")
	fs.StringSliceVar(&c.Refuse, "refuse", nil, "actions not to pass on: "+strings.Join(refusable, ", "))
	fs.StringVar((*string)(&c.Policy), "policy", string(planner.Policies()[0]), "which nodes go first")
	fs.IntVar(&c.AtOnce, "max-concurrent-removals", 1, "highest number of machines of a pool that are removed at the same time, 1 to 100; NodeGroups also have disruption budgets")
	renamed.Flag(fs, "at-once", "max-concurrent-removals")
	fs.BoolVar(&c.RemoveLastWorker, "remove-last-worker", false, "remove also the last node of the cluster that is Ready and takes pods")
	fs.StringVar(&c.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the Leases and PoolUpdates (default $POD_NAMESPACE)")
	fs.StringVar(&c.Holder, "identity", host, "unique name of this replica")
	renamed.Flag(fs, "holder", "identity")
	fs.StringToStringVar(&c.Labels, "retirement-labels", nil, "labels of the NodeRetirements that are made, and of the "+
		"NodeGroups that count, as key=value; what a manager's --selector wants")
	fs.DurationVar(&c.Pace.Registration, "registration-grace", 15*time.Minute, "how long a machine that runs may take to register its node, up to 24h")
	fs.DurationVar(&c.Pace.Poll, "poll-interval", 2*time.Second, "time between two looks at an update, 100ms to 1m; what happens to NodeRetirements is heard of at once")
	fs.DurationVar(&c.Pace.Trouble, "failure-timeout", time.Minute, "how long the server or the cloud of a pool may fail, or no manager act on a retirement, before the client gets an error, up to 1h")
	renamed.Flag(fs, "trouble-patience", "failure-timeout")
	fs.DurationVar(&c.Pace.Settle, "settle-time", time.Minute, "how long an update that has removed machines waits until others can go, up to 1h")
	fs.DurationVar(&c.Pace.Admission, "admission-wait", 5*time.Minute, "how long a NodeRetirement may take to begin, as for its NodeGroup's budget, before another node is tried, up to 24h")
	fs.StringVar(&c.MetricsListen, "metrics-listen", ":9820", "address of /metrics, /healthz and /readyz; empty is none")
	fs.BoolVar(&c.Profiling, "profiling", false, "serve /debug/pprof/ there, to requests from the loopback interface")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "json", "json or text")
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for flag, d := range map[string]struct{ is, least, most time.Duration }{
		"read-timeout": {c.ReadTimeout, time.Second, time.Hour}, "backend-timeout": {c.BackendTimeout, time.Second, time.Hour},
		"registration-grace": {c.Pace.Registration, time.Millisecond, 24 * time.Hour}, "poll-interval": {c.Pace.Poll, 100 * time.Millisecond, time.Minute},
		"failure-timeout": {c.Pace.Trouble, time.Millisecond, time.Hour}, "admission-wait": {c.Pace.Admission, time.Millisecond, 24 * time.Hour},
		"native-refresh": {c.NativeRefresh, 0, 5 * time.Minute},
		"settle-time":    {c.Pace.Settle, time.Millisecond, time.Hour},
	} {
		if d.is < d.least || d.is > d.most {
			fail("--%s: %s: want %s to %s", flag, d.is, d.least, d.most)
		}
	}
	if c.MaxBody < 1024 || c.MaxBody > 1<<30 {
		fail("--max-body: %d: want 1024 to 1073741824", c.MaxBody)
	}
	if c.AtOnce < 1 || c.AtOnce > 100 {
		fail("--max-concurrent-removals: %d: want 1 to 100", c.AtOnce)
	}
	for _, name := range c.Refuse {
		if !slices.Contains(refusable, name) {
			fail("--refuse: %q: want some of %s", name, strings.Join(refusable, ", "))
		}
	}
	if _, err := planner.ParsePolicy(string(c.Policy)); err != nil {
		fail("--policy: %w", err)
	}
	if c.Namespace == "" {
		fail("--namespace: is empty: want where the Leases and PoolUpdates are kept")
	}
	if c.Holder == "" {
		fail("--identity: is empty: want a name that no other replica has")
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		fail("--tls-cert-file and --tls-private-key-file belong together")
	}
	if slices.Contains(c.TokenAudiences, "") {
		fail("--token-audience: %q: one is empty: want names such as %s", strings.Join(c.TokenAudiences, ","), DefaultTokenAudience)
	}
	if c.ClientCAFile != "" && c.TLSCertFile == "" {
		fail("--client-ca-file: clients show certificates over TLS alone: want --tls-cert-file too")
	}
	errs = append(errs, c.validateListen())
	return errors.Join(errs...)
}

// validateListen wants strangers to be kept out of what is served beyond this machine.
func (c *Config) validateListen() error {
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return fmt.Errorf("--listen: %q: want host:port: %w", c.Address, err)
	}
	if c.Insecure || httpserver.IsLoopback(host) {
		return nil
	}
	switch {
	case c.TLSCertFile == "":
		return fmt.Errorf("--listen: %q: is not on the loopback interface: want --tls-cert-file, or --insecure", c.Address)
	case c.ClientCAFile == "" && !c.Authorize:
		return fmt.Errorf("--listen: %q: is not on the loopback interface, and nobody is asked who he is: want --client-ca-file or --authorize, or --insecure",
			c.Address)
	}
	return nil
}
