package start

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/agent"
	awsid "github.com/slipway-dev/slipway/internal/cloud/aws/providerid"
	azureid "github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
	gcpid "github.com/slipway-dev/slipway/internal/cloud/gcp/providerid"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/azure"
	"github.com/slipway-dev/slipway/internal/notice/external"
	"github.com/slipway-dev/slipway/internal/notice/gcp"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

// cloudSource reads the notices of a cloud, and is the metadata source of package condition.
type cloudSource interface {
	agent.Source
	RequestPoll()
}

// cloudNotices is what the agent needs of its cloud.
type cloudNotices struct {
	source cloudSource
	// approver is nil if the cloud accepts no approvals.
	approver agent.Approver
	endpoint string
	// others are further sources of the cloud. Each agent.Approver among them approves its own notices.
	others []agent.Source
}

// cloudParts is what a cloud's source is built from.
type cloudParts struct {
	config   config.Agent
	resource string
	api      *kubeapi.Client
	wrap     func(http.RoundTripper) http.RoundTripper
	observer poll.Observer
	log      *slog.Logger
}

// cloudSupport is one cloud that the agent can read notices of.
type cloudSupport struct {
	cloud  string // the value of --cloud
	scheme string // of a node's spec.providerID
	// instanceName returns the instance's name in the cloud's notices from a Node's spec.providerID.
	instanceName func(providerID string) (string, error)
	open         func(cloudParts) (cloudNotices, error)
}

// supportedClouds returns every cloud with notices that the agent can read.
func supportedClouds() []cloudSupport {
	return []cloudSupport{
		{config.CloudAzure, "azure", azureid.ScheduledEventName, openAzure},
		{config.CloudAWS, "aws", awsid.InstanceID, openAWS},
		{config.CloudGCP, "gce", gcpid.VMName, openGCP},
	}
}

func cloudSupportOf(cloud string) (cloudSupport, error) {
	for _, s := range supportedClouds() {
		if s.cloud == cloud {
			return s, nil
		}
	}
	return cloudSupport{}, fmt.Errorf("--cloud: %q: this agent cannot read its notices", cloud)
}

// findCloudByScheme returns the cloud with this scheme of provider IDs, in any letter case. It returns "" for an unknown
// scheme.
func findCloudByScheme(scheme string) string {
	for _, s := range supportedClouds() {
		if strings.EqualFold(s.scheme, scheme) {
			return s.cloud
		}
	}
	return ""
}

func openAzure(p cloudParts) (cloudNotices, error) {
	client, err := azure.NewClient(azure.Options{
		Endpoint: p.config.Endpoint, Timeout: p.config.RequestTimeout, FirstTimeout: p.config.FirstRequestTimeout, Wrap: p.wrap,
	})
	if err != nil {
		return cloudNotices{}, fmt.Errorf("--endpoint: %w", err)
	}
	source, err := azure.NewSource(azure.SourceOptions{
		Fetcher: client, Resource: p.resource, Interval: p.config.PollInterval, ClockAhead: client.ClockAhead,
		Observer: p.observer, Log: p.log,
	})
	return cloudNotices{source: source, approver: client, endpoint: client.Endpoint()}, err
}

func openAWS(p cloudParts) (cloudNotices, error) {
	c := p.config
	metadata, err := aws.NewClient(aws.ClientOptions{Endpoint: c.Endpoint, Timeout: c.RequestTimeout, Wrap: p.wrap, Log: p.log})
	if err != nil {
		return cloudNotices{}, fmt.Errorf("--endpoint: %w", err)
	}
	var hook *aws.Hook
	if c.Acknowledge && !c.DryRun && agent.Action(c.OnTerminate) != agent.Ignore && agent.Action(c.OnTerminate) != agent.Cordon {
		hook = aws.NewHook(aws.HookOptions{
			Instance: p.resource, Group: c.ASG.Name, Hook: c.ASG.Hook, Endpoint: c.ASG.Endpoint, Metadata: metadata, Log: p.log,
		})
	}
	source, err := aws.NewSource(aws.SourceOptions{
		Client: metadata, Instance: p.resource, Interval: c.PollInterval, Observer: p.observer, Log: p.log, Hook: hook, HookTimeout: c.ASG.HookTimeout,
		Leads: poll.Leads{Retirement: c.RetirementLead, Maintenance: c.MaintenanceLead},
	})
	return cloudNotices{source: source, approver: source, endpoint: metadata.Endpoint()}, err
}

// openGCP opens the keys of the metadata server, and what GKE writes on the Node.
func openGCP(p cloudParts) (cloudNotices, error) {
	c := p.config
	leads := poll.Leads{Retirement: c.RetirementLead, Maintenance: c.MaintenanceLead}
	keys, err := gcp.NewSources(gcp.Options{
		Endpoint: c.Endpoint, Resource: p.resource, Interval: c.PollInterval, Timeout: c.RequestTimeout, Leads: leads,
		Wrap: p.wrap, Observer: p.observer, Log: p.log,
	})
	if err != nil {
		return cloudNotices{}, fmt.Errorf("--endpoint: %w", err)
	}
	node := gcp.NodeSourceOptions{Resource: p.resource, Leads: leads, Log: p.log}
	if !c.DryRun {
		node.API = p.api
	}
	gke, err := gcp.NewNodeSource(node)
	if err != nil {
		return cloudNotices{}, err
	}
	cloud := cloudNotices{source: keys[0], endpoint: cmp.Or(c.Endpoint, gcp.DefaultEndpoint), others: []agent.Source{gke}}
	for _, key := range keys[1:] {
		cloud.others = append(cloud.others, key)
	}
	return cloud, nil
}

// openExternalSources opens the sources of --notice-source.
func openExternalSources(p cloudParts) ([]agent.Source, error) {
	var all []agent.Source
	for _, name := range slices.Sorted(maps.Keys(p.config.NoticeSources)) {
		source, err := external.NewSource(external.Options{
			Name: name, Location: p.config.NoticeSources[name], Resource: p.resource,
			Leads: poll.Leads{Retirement: p.config.RetirementLead, Maintenance: p.config.MaintenanceLead},
			Wrap:  p.wrap, Observer: p.observer, Log: p.log,
		})
		if err != nil {
			return nil, fmt.Errorf("--notice-source: %w", err)
		}
		all = append(all, source)
	}
	return all, nil
}

// checkEndpoint validates --endpoint before the node is read, if the cloud is known by then.
func checkEndpoint(c config.Agent) error {
	var err error
	switch {
	case c.Cloud == config.CloudAzure, isAutoCloud(c) && c.ResourceName != "":
		_, err = azure.NewClient(azure.Options{Endpoint: c.Endpoint, Timeout: c.RequestTimeout, FirstTimeout: c.FirstRequestTimeout})
	case c.Cloud == config.CloudAWS:
		_, err = aws.NewClient(aws.ClientOptions{Endpoint: c.Endpoint, Timeout: c.RequestTimeout})
	}
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	return nil
}

// noMetadata is the metadata source of an agent with --cloud=none. It never answers, so it confirms no hints.
type noMetadata struct{}

// LastRead returns the zero time: never.
func (noMetadata) LastRead() time.Time { return time.Time{} }

// RequestPoll does nothing.
func (noMetadata) RequestPoll() {}
