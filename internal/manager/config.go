// Package manager runs the components that decide for the whole cluster which nodes are retired and which instances are
// launched. It sets up their caches, leader election, metrics and health.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/renamed"
)

// The values of --orphans.
const (
	ReportOrphans = "report"
	DeleteOrphans = "delete"
)

// The limits of --leader-election-lease-duration.
const (
	minLeaseDuration = 3 * time.Second
	maxLeaseDuration = 5 * time.Minute
)

// Config is the configuration of `slipway manager`.
type Config struct {
	Kubeconfig string

	LeaderElect                     bool
	LeaderElectionNamespace         string
	LeaseDuration                   time.Duration
	InstallCRDs                     bool
	NodeGroups, CloudConfig         string
	Selector                        string
	RetirementTTL                   time.Duration
	PollInterval, CloudPollInterval time.Duration
	GroupPollInterval               time.Duration
	ScaleUpDebounce                 time.Duration
	ScalePollInterval               time.Duration
	MaxNodes                        int
	MaxUnreadyPercentage            int
	OKUnreadyCount                  int
	Orphans                         string // ReportOrphans or DeleteOrphans
	RetryInterval                   time.Duration
	LaunchSettleTime                time.Duration
	Listen                          string
	Profiling                       bool
	LogLevel, LogFormat             string
	// InstallCRDsByDefault means that InstallCRDs is a default and not the user's choice. Without the permission, it is then
	// enough that the types are served.
	InstallCRDsByDefault bool
	// Clouds, if set, replaces the file CloudConfig.
	Clouds *Clouds
	// ResolveClouds, if set, returns the value of Clouds, however long that takes. Metrics and health are served
	// meanwhile: /readyz reports the error last passed to setReason, where nil means that there is nothing to do yet. An
	// error of ResolveClouds ends the manager.
	ResolveClouds func(ctx context.Context, setReason func(error)) (Clouds, error)
	// LeaseName, if set, is the Lease of the leader election. Use it if other managers in the namespace do other work.
	LeaseName string
	// SystemLocalStorage allows retirements to evict kube-system pods with an emptyDir, even if their NodeGroup does
	// not.
	SystemLocalStorage bool
	// Leading, if set, also runs while this manager leads. Its error ends the manager. LeadingMetrics are its metrics, which
	// Listen serves too.
	Leading        func(ctx context.Context) error
	LeadingMetrics prometheus.Gatherer
	// ExtraGroups, if set, returns NodeGroups in addition to the API server's and the file's.
	ExtraGroups func() []v1alpha1.NodeGroup

	parsedSelector labels.Selector
	namespaceFile  string // for tests
}

// AddFlags registers the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file; without one, the pod's ServiceAccount is used")
	fs.BoolVar(&c.LeaderElect, "leader-elect", true, "elect a leader, so that only one of several managers is active")
	fs.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", os.Getenv("POD_NAMESPACE"),
		"namespace of the Lease, and of the launch records of NodeGroups of a file (default $POD_NAMESPACE)")
	fs.DurationVar(&c.LeaseDuration, "leader-election-lease-duration", 15*time.Second,
		"how long other managers wait for a leader that does not renew its Lease, 3s to 5m")
	fs.BoolVar(&c.InstallCRDs, "install-crds", false, "install or upgrade Slipway's CustomResourceDefinitions at the start")
	fs.StringVar(&c.NodeGroups, "node-groups", "", "file with NodeGroups, used in addition to those of the API server; reloaded when it changes")
	fs.StringVar(&c.CloudConfig, "cloud-config", "", "file with the configuration of the clouds, by provider")
	fs.StringVar(&c.Selector, "selector", "", "handle only the NodeGroups and NodeRetirements with these labels")
	fs.DurationVar(&c.RetirementTTL, "retirement-ttl", 24*time.Hour, "how long a finished NodeRetirement is kept")
	fs.DurationVar(&c.PollInterval, "poll-interval", 10*time.Second,
		"polling period for nodes that are being retired, 100ms to 5m; changes in the API server are watched")
	fs.DurationVar(&c.CloudPollInterval, "cloud-poll-interval", 5*time.Second,
		"polling period for instances that are being deleted, 100ms to 5m, unless the cloud requests another")
	fs.DurationVar(&c.GroupPollInterval, "group-poll-interval", time.Minute,
		"polling period for NodeGroups in their clouds, 100ms to 5m")
	fs.DurationVar(&c.ScaleUpDebounce, "scale-up-debounce", time.Second,
		"how long to collect unschedulable pods before a scale-up, so that they are packed together, 10ms to 5m")
	fs.DurationVar(&c.ScalePollInterval, "scale-poll-interval", 10*time.Second,
		"polling period for provisioning instances and underutilized nodes, 100ms to 5m")
	fs.IntVar(&c.MaxNodes, "max-nodes", 0,
		"maximum number of nodes of the cluster, with provisioning instances and without the control plane; 0 is no limit")
	fs.IntVar(&c.MaxUnreadyPercentage, "max-total-unready-percentage", 45,
		"launch no instances while more than this percentage of the nodes is not Ready; 0 is no limit")
	fs.IntVar(&c.OKUnreadyCount, "ok-total-unready-count", 3, "number of nodes that may be not Ready regardless of --max-total-unready-percentage")
	fs.StringVar(&c.Orphans, "orphans", DeleteOrphans, "what to do with orphaned instances (openstack) and orphaned Nodes (azure, openstack): report them, "+
		"or delete, which deletes or retires them after 15m unless there are too many instances")
	renamed.Flag(fs, "strays", "orphans")
	fs.DurationVar(&c.RetryInterval, "retry-interval", 10*time.Second,
		"pause before a failed deletion is retried, 100ms to 5m; doubled each time up to 5m")
	fs.DurationVar(&c.LaunchSettleTime, "launch-settle-time", time.Minute,
		"how long a launch without an answer may take to change the size of its cloud group, 100ms to 5m")
	renamed.Flag(fs, "order-settle-time", "launch-settle-time")
	fs.StringVar(&c.Listen, "listen", ":9819", "address of /metrics, /healthz and /readyz; empty disables it")
	fs.BoolVar(&c.Profiling, "profiling", false, "also serve /debug/pprof/ to the loopback interface")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "json", "json or text")
}

// Validate returns every error in the configuration.
func (c *Config) Validate() error {
	var errs []error
	for flag, d := range map[string]time.Duration{
		"poll-interval": c.PollInterval, "cloud-poll-interval": c.CloudPollInterval, "retry-interval": c.RetryInterval,
		"group-poll-interval": c.GroupPollInterval, "launch-settle-time": c.LaunchSettleTime,
		"scale-poll-interval": c.ScalePollInterval,
	} {
		if d < 100*time.Millisecond || d > 5*time.Minute {
			errs = append(errs, fmt.Errorf("--%s: %s: want 100ms to 5m", flag, d))
		}
	}
	if c.LeaseDuration < minLeaseDuration || c.LeaseDuration > maxLeaseDuration {
		errs = append(errs, fmt.Errorf("--leader-election-lease-duration: %s: want %s to %s", c.LeaseDuration, minLeaseDuration, maxLeaseDuration))
	}
	if c.ScaleUpDebounce < 10*time.Millisecond || c.ScaleUpDebounce > 5*time.Minute {
		errs = append(errs, fmt.Errorf("--scale-up-debounce: %s: want 10ms to 5m", c.ScaleUpDebounce))
	}
	if c.MaxNodes < 0 {
		errs = append(errs, fmt.Errorf("--max-nodes: %d: must not be negative", c.MaxNodes))
	}
	if c.MaxUnreadyPercentage < 0 || c.MaxUnreadyPercentage > 100 {
		errs = append(errs, fmt.Errorf("--max-total-unready-percentage: %d: want 0 to 100", c.MaxUnreadyPercentage))
	}
	if c.OKUnreadyCount < 0 {
		errs = append(errs, fmt.Errorf("--ok-total-unready-count: %d: must not be negative", c.OKUnreadyCount))
	}
	if c.Orphans == "collect" { // its name before the flag was renamed
		c.Orphans = DeleteOrphans
	}
	if c.Orphans != ReportOrphans && c.Orphans != DeleteOrphans {
		errs = append(errs, fmt.Errorf("--orphans: %q: want %s or %s", c.Orphans, ReportOrphans, DeleteOrphans))
	}
	if c.RetirementTTL < 0 {
		errs = append(errs, fmt.Errorf("--retirement-ttl: %s: must not be negative", c.RetirementTTL))
	}
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			errs = append(errs, fmt.Errorf("--listen: %q: want host:port, or nothing: %w", c.Listen, err))
		}
	}
	var err error
	if c.parsedSelector, err = labels.Parse(c.Selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %q: %w", c.Selector, err))
	}
	return errors.Join(errs...)
}

// Clouds is the parsed content of a --cloud-config file.
type Clouds struct {
	Azure     *AzureCloud       `json:"azure,omitempty"`
	OpenStack *openstack.Config `json:"openstack,omitempty"`
	Cloudpool *cloudpool.Config `json:"cloudpool,omitempty"`
	PluginClouds
}

// ReadClouds reads a --cloud-config file. If path is empty, it returns no clouds.
func ReadClouds(path string) (Clouds, error) {
	var file Clouds
	if path == "" {
		return file, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return file, fmt.Errorf("--cloud-config: %w", err)
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return file, fmt.Errorf("--cloud-config: %s: %w", path, err)
	}
	return file, nil
}

// newProviders returns the providers of the file at path, or of given if path is empty. It calls openStack to create
// the OpenStack provider, because that needs bootstrap tokens for its instances.
func newProviders(
	path string, clouds *Clouds, newOpenStack func(openstack.Config) (cloud.Provider, error), log *slog.Logger,
) (map[string]cloud.Provider, error) {
	providers := map[string]cloud.Provider{}
	if path == "" && clouds == nil {
		return providers, nil
	}
	if clouds == nil {
		file, err := ReadClouds(path)
		if err != nil {
			return nil, err
		}
		clouds = &file
	}
	file, prefix := *clouds, ""
	if path != "" {
		prefix = "--cloud-config: " + path + ": "
	}
	if file.Azure != nil {
		p, err := file.Azure.newProvider(log)
		if err != nil {
			return nil, fmt.Errorf("%sazure: %w", prefix, err)
		}
		providers[p.Name()] = p
	}
	if file.OpenStack != nil {
		p, err := newOpenStack(*file.OpenStack)
		if err != nil {
			return nil, fmt.Errorf("%s%w", prefix, err)
		}
		providers[p.Name()] = p
	}
	if err := file.addCloudpoolProvider(providers, log); err != nil {
		return nil, fmt.Errorf("%scloudpool: %w", prefix, err)
	}
	if err := file.startAndAddProviders(providers, log); err != nil {
		return nil, fmt.Errorf("%s%w", prefix, err)
	}
	if len(providers) == 0 {
		return nil, fmt.Errorf("--cloud-config: %s has no cloud: want one of azure, openstack, cloudpool, plugins, externalGRPC", path)
	}
	return providers, nil
}

// NewAzureProvider returns the Azure provider of a --cloud-config file.
func NewAzureProvider(path string) (*azure.Provider, error) {
	file, err := ReadClouds(path)
	switch {
	case err != nil:
		return nil, err
	case file.Azure == nil:
		return nil, fmt.Errorf("--cloud-config: %s: azure is missing", path)
	}
	return azure.New(file.Azure.Config, azure.Options{})
}

// podNamespace returns the namespace of this process's pod. It returns "" outside a cluster.
func (c *Config) podNamespace() string {
	namespace, _ := os.ReadFile(cmp.Or(c.namespaceFile, "/var/run/secrets/kubernetes.io/serviceaccount/namespace"))
	return strings.TrimSpace(string(namespace))
}

// ownNamespace returns the namespace for the manager's own objects. It is the namespace of the Lease if that is set,
// otherwise of this pod, and default outside a cluster.
func (c *Config) ownNamespace() string {
	return cmp.Or(c.LeaderElectionNamespace, c.podNamespace(), metav1.NamespaceDefault)
}

// recordNamespace returns the namespace for the records of surges. Agents write theirs to the namespace of their pods. With records in two
// namespaces, two surges of one owner would run at once, and its size could stay raised.
func (c *Config) recordNamespace() string { return cmp.Or(c.podNamespace(), c.ownNamespace()) }
