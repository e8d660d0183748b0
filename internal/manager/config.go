// Package manager puts the parts together that decide for a whole cluster which nodes go and come, and carry it through:
// the caches that they share, leader election, metrics and health.
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

// The values of Config.Strays.
const (
	ReportStrays  = "report"
	CollectStrays = "delete"
)

// The bounds of --leader-election-lease-duration.
const (
	minLeaseDuration = 3 * time.Second
	maxLeaseDuration = 5 * time.Minute
)

// Config is everything that `slipway manager` can be told.
type Config struct {
	Kubeconfig string

	LeaderElect             bool
	LeaderElectionNamespace string
	LeaseDuration           time.Duration
	InstallCRDs             bool
	NodeGroups, CloudConfig string
	Selector                string
	RetirementTTL           time.Duration
	PollInterval, CloudPoll time.Duration
	GroupPoll               time.Duration
	ScaleUpDebounce         time.Duration
	ScalePoll               time.Duration
	MaxNodes                int
	MaxUnreadyPercentage    int
	OKUnreadyCount          int
	Strays                  string // ReportStrays or CollectStrays
	RetryInterval           time.Duration
	OrderSettle             time.Duration
	Listen                  string
	Profiling               bool
	LogLevel, LogFormat     string
	// InstallUnasked says that InstallCRDs is a default, and not what somebody has asked for: without the rights it is enough
	// that the types are served.
	InstallUnasked bool
	// Clouds, if set, takes the place of the file CloudConfig.
	Clouds *Clouds
	// FindClouds, if set, finds out what Clouds is to be, however long that takes. Metrics and health are served meanwhile:
	// /readyz gives what it has last told, which is nil while there is nothing to do yet. Its error ends the manager.
	FindClouds func(ctx context.Context, told func(error)) (Clouds, error)
	// LeaseName, if set, is the Lease that managers compete for, where others in the namespace do other work.
	LeaseName string
	// SystemLocalStorage lets retirements evict pods of kube-system with an emptyDir, also where their NodeGroup does not.
	SystemLocalStorage bool
	// Given, if set, gives NodeGroups beside those of the API server and of the file.
	Given func() []v1alpha1.NodeGroup

	parsedSelector labels.Selector
}

// AddFlags registers the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file; without one the pod's own ServiceAccount is used")
	fs.BoolVar(&c.LeaderElect, "leader-elect", true, "let one of several managers work at a time")
	fs.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", os.Getenv("POD_NAMESPACE"),
		"namespace of the Lease, and of the launch records of NodeGroups of a file (default $POD_NAMESPACE)")
	fs.DurationVar(&c.LeaseDuration, "leader-election-lease-duration", 15*time.Second,
		"how long a leader that is silent keeps the others waiting, 3s to 5m")
	fs.BoolVar(&c.InstallCRDs, "install-crds", false, "install or upgrade Slipway's CustomResourceDefinitions at the start")
	fs.StringVar(&c.NodeGroups, "node-groups", "", "file with NodeGroups, in force beside those of the API server; read again when it changes")
	fs.StringVar(&c.CloudConfig, "cloud-config", "", "file that says which clouds there are, by provider")
	fs.StringVar(&c.Selector, "selector", "", "act only on the NodeGroups and NodeRetirements with these labels")
	fs.DurationVar(&c.RetirementTTL, "retirement-ttl", 24*time.Hour, "how long the record of a retirement that is over is kept")
	fs.DurationVar(&c.PollInterval, "poll-interval", 10*time.Second,
		"time between two looks at a node that is leaving, 100ms to 5m; what the API server tells is heard of at once")
	fs.DurationVar(&c.CloudPoll, "cloud-poll-interval", 5*time.Second,
		"time between two looks at a machine that is being deleted, 100ms to 5m, unless its cloud wants another")
	fs.DurationVar(&c.GroupPoll, "group-poll-interval", time.Minute,
		"time between two looks at a NodeGroup in its cloud, 100ms to 5m")
	fs.DurationVar(&c.ScaleUpDebounce, "scale-up-debounce", time.Second,
		"how long the first pod that finds no room waits for others, so that they are packed together, 10ms to 5m")
	fs.DurationVar(&c.ScalePoll, "scale-poll-interval", 10*time.Second,
		"time between two looks at machines that are on their way and at nodes that are used little, 100ms to 5m")
	fs.IntVar(&c.MaxNodes, "max-nodes", 0,
		"how many nodes the cluster may have, those on their way included and those of its control plane not; 0 is no bound")
	fs.IntVar(&c.MaxUnreadyPercentage, "max-total-unready-percentage", 45,
		"launch no instances while more than this percentage of the nodes is not Ready; 0 is no limit")
	fs.IntVar(&c.OKUnreadyCount, "ok-total-unready-count", 3, "so many nodes may be not Ready, whatever --max-total-unready-percentage says")
	fs.StringVar(&c.Strays, "orphans", CollectStrays, "what to do with marked instances that have no Node (openstack), and Nodes that have no instance (azure, openstack): "+
		"report, or delete, which deletes them after 15m if there are not too many")
	renamed.Flag(fs, "strays", "orphans")
	fs.DurationVar(&c.RetryInterval, "retry-interval", 10*time.Second,
		"time before a deletion that failed is asked for again, 100ms to 5m; doubled each time up to 5m")
	fs.DurationVar(&c.OrderSettle, "launch-settle-time", time.Minute,
		"how long a launch whose answer was lost may take to show in the size of its group, 100ms to 5m")
	renamed.Flag(fs, "order-settle-time", "launch-settle-time")
	fs.StringVar(&c.Listen, "listen", ":9819", "address of /metrics, /healthz and /readyz; empty is none")
	fs.BoolVar(&c.Profiling, "profiling", false, "serve /debug/pprof/ too, to requests from the loopback interface")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "json", "json or text")
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var errs []error
	for flag, d := range map[string]time.Duration{
		"poll-interval": c.PollInterval, "cloud-poll-interval": c.CloudPoll, "retry-interval": c.RetryInterval,
		"group-poll-interval": c.GroupPoll, "launch-settle-time": c.OrderSettle,
		"scale-poll-interval": c.ScalePoll,
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
	if c.Strays == "collect" { // its name before the flag was renamed
		c.Strays = CollectStrays
	}
	if c.Strays != ReportStrays && c.Strays != CollectStrays {
		errs = append(errs, fmt.Errorf("--orphans: %q: want %s or %s", c.Strays, ReportStrays, CollectStrays))
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

// Clouds is the file of --cloud-config.
type Clouds struct {
	Azure     *AzureCloud       `json:"azure,omitempty"`
	OpenStack *openstack.Config `json:"openstack,omitempty"`
	Cloudpool *cloudpool.Config `json:"cloudpool,omitempty"`
	Programs
}

// ReadClouds reads a file of --cloud-config; no path is no cloud.
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

// loadClouds makes the providers that a file names, or those that are given in its place. OpenStack's is made by another
// function, as its machines have to join the cluster.
func loadClouds(
	path string, given *Clouds, openStack func(openstack.Config) (cloud.Provider, error), log *slog.Logger,
) (map[string]cloud.Provider, error) {
	providers := map[string]cloud.Provider{}
	if path == "" && given == nil {
		return providers, nil
	}
	if given == nil {
		file, err := ReadClouds(path)
		if err != nil {
			return nil, err
		}
		given = &file
	}
	file, at := *given, ""
	if path != "" {
		at = "--cloud-config: " + path + ": "
	}
	if file.Azure != nil {
		p, err := file.Azure.provider(log)
		if err != nil {
			return nil, fmt.Errorf("%sazure: %w", at, err)
		}
		providers[p.Name()] = p
	}
	if file.OpenStack != nil {
		p, err := openStack(*file.OpenStack)
		if err != nil {
			return nil, fmt.Errorf("%s%w", at, err)
		}
		providers[p.Name()] = p
	}
	if err := file.addCloudpool(providers, log); err != nil {
		return nil, fmt.Errorf("%scloudpool: %w", at, err)
	}
	if err := file.add(providers, log); err != nil {
		return nil, fmt.Errorf("%s%w", at, err)
	}
	if len(providers) == 0 {
		return nil, fmt.Errorf("--cloud-config: %s names no cloud: want one of azure, openstack, cloudpool, plugins, externalGRPC", path)
	}
	return providers, nil
}

// LoadAzure makes the provider of Azure that a file of --cloud-config names.
func LoadAzure(path string) (*azure.Provider, error) {
	file, err := ReadClouds(path)
	switch {
	case err != nil:
		return nil, err
	case file.Azure == nil:
		return nil, fmt.Errorf("--cloud-config: %s: names no azure", path)
	}
	return azure.New(file.Azure.Config, azure.Options{})
}

// namespaceFile names the namespace of the pod that this process is in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespace returns the namespace of the manager's own objects: the Lease's, or the pod's, or default outside of a cluster.
func (c *Config) namespace() string {
	pod, _ := os.ReadFile(namespaceFile)
	return cmp.Or(c.LeaderElectionNamespace, strings.TrimSpace(string(pod)), metav1.NamespaceDefault)
}
