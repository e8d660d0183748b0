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

// Config is the configuration of `slipway cloudpool`. The embedded options contain only the configured fields; Run sets the
// others.
type Config struct {
	Kubeconfig  string
	CloudConfig string
	// Pools are the pools of cloudpool servers that are served through this proxy. NodeGroups are served as native pools.
	Pools, NodeGroups []string
	// NativeRefresh is the maximum age of cached reads of a native pool.
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

// DefaultTokenAudience is the audience of clients' tokens. The API server accepts no token with this audience. So a
// token that leaks from the cloudpool API cannot be used at the API server.
const DefaultTokenAudience = "slipway-cloudpool"

// refusableActions are the valid values of --refuse.
var refusableActions = []string{"attach", "config", "detach", "start", "stop"}

// AddFlags registers the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname()
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file; if empty, the pod's ServiceAccount is used")
	fs.StringVar(&c.CloudConfig, "cloud-config", "", "cloud configuration file, the same as the manager's")
	fs.StringSliceVar(&c.Pools, "pool", nil, "pools of --cloud-config to serve; if neither --pool nor --native is set, all of them")
	fs.StringSliceVar(&c.NodeGroups, "native", nil, "NodeGroups to serve as pools; any cloud is supported")
	fs.DurationVar(&c.NativeRefresh, "native-refresh", 5*time.Second, "maximum age of cached reads of a --native pool, up to 5m; updates do not use the cache")
	fs.StringVar(&c.Address, "listen", "127.0.0.1:8080", "address of the API")
	fs.BoolVar(&c.Insecure, "insecure", false, "allow an address beyond the loopback interface without TLS or client authentication")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", "", "server certificate, PEM; reloaded when it changes")
	fs.StringVar(&c.TLSKeyFile, "tls-private-key-file", "", "private key of the server certificate, PEM")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", "", "CA certificates, PEM; a client certificate must be signed by one of them")
	fs.BoolVar(&c.Authorize, "authorize", false, "authenticate clients with TokenReview and authorize them with SubjectAccessReview (get "+
		"or update nodegroups/scale, with the pool's name)")
	fs.StringSliceVar(&c.TokenAudiences, "token-audience", []string{DefaultTokenAudience}, "with --authorize: accepted audiences of a client's "+
		"token; if empty, the API server's audience")
	fs.DurationVar(&c.ReadTimeout, "read-timeout", time.Minute, "timeout for reading a request from a client, 1s to 1h")
	fs.DurationVar(&c.BackendTimeout, "backend-timeout", httpserver.DefaultBackendTimeout, "timeout of a forwarded request, 1s to 1h")
	fs.Int64Var(&c.MaxBody, "max-body", httpserver.DefaultMaxBody, "maximum body size of a forwarded request in bytes, 1024 to 1073741824")
	fs.BoolVar(&c.StrictCompat, "strict-compat", false, "answer like kubeaware-cloudpool-proxy: 500 for every failure, 200 if only some "+
		"machines were removed, and queue concurrent updates instead of answering 429")
	fs.BoolVar(&c.ForwardCredentials, "pass-credentials", false, "forward the clients' credentials to the pools' servers")
	fs.StringSliceVar(&c.RefusedActions, "refuse", nil, "actions to refuse instead of forwarding: "+strings.Join(refusableActions, ", "))
	fs.StringVar((*string)(&c.Policy), "policy", string(planner.Policies()[0]), "which nodes are removed first: LeastDisruption, LeastPods, LeastLoaded or Oldest")
	fs.IntVar(&c.MaxConcurrentRemovals, "max-concurrent-removals", 1, "maximum number of machines of a pool that are removed at the same time, 1 to 100; disruption budgets of NodeGroups apply too")
	renamed.Flag(fs, "at-once", "max-concurrent-removals")
	fs.BoolVar(&c.RemoveLastWorker, "remove-last-worker", false, "allow removal of the cluster's last Ready and schedulable node")
	fs.StringVar(&c.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the Leases and PoolUpdates (default $POD_NAMESPACE)")
	fs.StringVar(&c.Holder, "identity", host, "unique name of this replica in the Lease")
	renamed.Flag(fs, "holder", "identity")
	fs.StringToStringVar(&c.Labels, "retirement-labels", nil, "labels of created NodeRetirements and of the "+
		"NodeGroups to use, as key=value; must match the manager's --selector")
	fs.DurationVar(&c.Timeouts.NodeRegistration, "registration-grace", 15*time.Minute, "time a running machine has to register its node, up to 24h")
	fs.DurationVar(&c.Timeouts.PollInterval, "poll-interval", 2*time.Second, "interval between reconciles of an update, 100ms to 1m; changes of NodeRetirements are watched")
	fs.DurationVar(&c.Timeouts.FailureTolerance, "failure-timeout", time.Minute, "time that errors of the server or cloud, or a NodeRetirement without a manager, are tolerated before the client gets an error, up to 1h")
	renamed.Flag(fs, "trouble-patience", "failure-timeout")
	fs.DurationVar(&c.Timeouts.PodSettle, "settle-time", time.Minute, "time an update that has removed machines waits for more removable machines, up to 1h")
	fs.DurationVar(&c.Timeouts.RetirementStart, "admission-wait", 5*time.Minute, "time a NodeRetirement has to start, for example when a disruption budget delays it, before another node is tried, up to 24h")
	fs.StringVar(&c.MetricsListen, "metrics-listen", ":9820", "address of /metrics, /healthz and /readyz; if empty, not served")
	fs.BoolVar(&c.Profiling, "profiling", false, "serve /debug/pprof/ on --metrics-listen to clients on the loopback interface")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "json", "json or text")
}

// Validate returns all errors of the configuration, joined.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for flag, d := range map[string]struct{ is, least, most time.Duration }{
		"read-timeout": {c.ReadTimeout, time.Second, time.Hour}, "backend-timeout": {c.BackendTimeout, time.Second, time.Hour},
		"registration-grace": {c.Timeouts.NodeRegistration, time.Millisecond, 24 * time.Hour}, "poll-interval": {c.Timeouts.PollInterval, 100 * time.Millisecond, time.Minute},
		"failure-timeout": {c.Timeouts.FailureTolerance, time.Millisecond, time.Hour}, "admission-wait": {c.Timeouts.RetirementStart, time.Millisecond, 24 * time.Hour},
		"native-refresh": {c.NativeRefresh, 0, 5 * time.Minute},
		"settle-time":    {c.Timeouts.PodSettle, time.Millisecond, time.Hour},
	} {
		if d.is < d.least || d.is > d.most {
			fail("--%s: %s: want %s to %s", flag, d.is, d.least, d.most)
		}
	}
	if c.MaxBody < 1024 || c.MaxBody > 1<<30 {
		fail("--max-body: %d: want 1024 to 1073741824", c.MaxBody)
	}
	if c.MaxConcurrentRemovals < 1 || c.MaxConcurrentRemovals > 100 {
		fail("--max-concurrent-removals: %d: want 1 to 100", c.MaxConcurrentRemovals)
	}
	for _, name := range c.RefusedActions {
		if !slices.Contains(refusableActions, name) {
			fail("--refuse: %q: want some of %s", name, strings.Join(refusableActions, ", "))
		}
	}
	if _, err := planner.ParsePolicy(string(c.Policy)); err != nil {
		fail("--policy: %w", err)
	}
	if c.Namespace == "" {
		fail("--namespace: is empty: want the namespace of the Leases and PoolUpdates")
	}
	if c.Holder == "" {
		fail("--identity: is empty: want a name that is unique among the replicas")
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		fail("--tls-cert-file and --tls-private-key-file: only one is set: want both or neither")
	}
	if slices.Contains(c.TokenAudiences, "") {
		fail("--token-audience: %q: contains an empty audience: want names such as %s", strings.Join(c.TokenAudiences, ","), DefaultTokenAudience)
	}
	if c.ClientCAFile != "" && c.TLSCertFile == "" {
		fail("--client-ca-file: client certificates require TLS: want --tls-cert-file too")
	}
	errs = append(errs, c.checkListenAddress())
	return errors.Join(errs...)
}

// checkListenAddress returns an error if the API can be reached from other hosts, but has no TLS or no client
// authentication.
func (c *Config) checkListenAddress() error {
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
		return fmt.Errorf("--listen: %q: is not on the loopback interface, and clients are not authenticated: want --client-ca-file, --authorize or --insecure",
			c.Address)
	}
	return nil
}
