package azure

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	azcloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/authorization/armauthorization/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// What a request may take beyond its tries' time limit.
const (
	// maxAnswer is the most that is read of one answer, in bytes: a page of a list of machines with their instance views
	// takes a tenth of it.
	maxAnswer = 32 << 20
	// retries and retryDelay are for what goes wrong in passing. Whatever takes longer is for the caller to decide on,
	// as is any wait that Azure asks for.
	retries       = 2
	retryDelay    = 250 * time.Millisecond
	maxRetryDelay = 2 * time.Second

	moduleName    = "github.com/slipway-dev/slipway/internal/cloud/azure"
	moduleVersion = "v1.0.0"
)

// clients are the SDK's clients, and the pipeline below them for what they have no method for.
type clients struct {
	arm           *arm.Client
	sets          *armcompute.VirtualMachineScaleSetsClient
	instances     *armcompute.VirtualMachineScaleSetVMsClient
	vms           *armcompute.VirtualMachinesClient
	pools         *armcontainerservice.AgentPoolsClient
	machines      *armcontainerservice.MachinesClient
	permissions   *armauthorization.PermissionsClient
	armHost       string
	requestBudget time.Duration // the longest that a call with its retries may take
}

func newClients(c *Config, o Options) (*clients, error) {
	azure, err := c.azure()
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(o.Transport)
	if err != nil {
		return nil, err
	}
	credential := o.Credential
	if credential == nil {
		if credential, err = c.Auth.credential(azure, transport, c.Endpoints != nil); err != nil {
			return nil, fmt.Errorf("azure credential: %w", err)
		}
	}
	endpoint, err := url.Parse(azure.Services[azcloud.ResourceManager].Endpoint)
	if err != nil {
		return nil, fmt.Errorf("azure resource manager: %w", err)
	}
	options := &arm.ClientOptions{
		ClientOptions: policy.ClientOptions{
			Cloud: azure, Transport: transport, Telemetry: policy.TelemetryOptions{ApplicationID: "slipway"},
			Retry: policy.RetryOptions{
				MaxRetries: retries, RetryDelay: retryDelay, MaxRetryDelay: maxRetryDelay, TryTimeout: c.requestTimeout(),
				ShouldRetry: worthRetrying,
			},
			PerCallPolicies: []policy.Policy{onlyTo{endpoint}},
		},
		// Registering resource providers needs a right on the subscription, and a cluster has them registered.
		DisableRPRegistration: true,
	}
	all := &clients{armHost: endpoint.Host, requestBudget: (retries + 1) * (c.requestTimeout() + maxRetryDelay)}
	if all.arm, err = arm.NewClient(moduleName, moduleVersion, credential, options); err != nil {
		return nil, err
	}
	compute, err := armcompute.NewClientFactory(c.Subscription, credential, options)
	if err != nil {
		return nil, err
	}
	aks, err := armcontainerservice.NewClientFactory(c.Subscription, credential, options)
	if err != nil {
		return nil, err
	}
	tidy := *options
	tidy.PerCallPolicies = append([]policy.Policy{tidyPath{}}, options.PerCallPolicies...)
	if all.permissions, err = armauthorization.NewPermissionsClient(c.Subscription, credential, &tidy); err != nil {
		return nil, err
	}
	all.sets, all.instances = compute.NewVirtualMachineScaleSetsClient(), compute.NewVirtualMachineScaleSetVMsClient()
	all.vms = compute.NewVirtualMachinesClient()
	all.pools, all.machines = aks.NewAgentPoolsClient(), aks.NewMachinesClient()
	return all, nil
}

// clouds are Azure's own.
func clouds() map[string]azcloud.Configuration {
	return map[string]azcloud.Configuration{
		"AzurePublic": azcloud.AzurePublic, "AzureGovernment": azcloud.AzureGovernment, "AzureChina": azcloud.AzureChina,
	}
}

func cloudNames() []string { return []string{"AzurePublic", "AzureGovernment", "AzureChina"} }

// azure gives the endpoints that the configuration means.
func (c *Config) azure() (azcloud.Configuration, error) {
	if e := c.Endpoints; e != nil {
		audience := e.Audience
		if audience == "" {
			audience = e.ResourceManager
		}
		return azcloud.Configuration{
			ActiveDirectoryAuthorityHost: e.Authority,
			Services: map[azcloud.ServiceName]azcloud.ServiceConfiguration{
				azcloud.ResourceManager: {Endpoint: e.ResourceManager, Audience: audience},
			},
		}, nil
	}
	name := c.Cloud
	if name == "" {
		name = "AzurePublic"
	}
	azure, ok := clouds()[name]
	if !ok {
		return azure, fmt.Errorf("azure cloud: %q: want one of %s", name, strings.Join(cloudNames(), ", "))
	}
	return azure, nil
}

// credential gives the credential that the method names. It does not ask for a token yet.
func (a *Auth) credential(azure azcloud.Configuration, transport policy.Transporter, private bool) (azcore.TokenCredential, error) {
	options := azcore.ClientOptions{Cloud: azure, Transport: transport, Retry: policy.RetryOptions{
		MaxRetries: retries, RetryDelay: retryDelay, MaxRetryDelay: maxRetryDelay,
	}}
	switch a.Method {
	case AuthEnvironment:
		return azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{
			ClientOptions: options, DisableInstanceDiscovery: private,
		})
	case AuthWorkloadIdentity:
		return azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
			ClientOptions: options, DisableInstanceDiscovery: private,
			ClientID: a.ClientID, TenantID: a.TenantID, TokenFilePath: a.TokenFile,
		})
	case AuthManagedIdentity:
		managed := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
		if a.ClientID != "" {
			managed.ID = azidentity.ClientID(a.ClientID)
		}
		return azidentity.NewManagedIdentityCredential(managed)
	}
	return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: options, DisableInstanceDiscovery: private, TenantID: a.TenantID,
	})
}

// transport is the client below all of the SDK's. It follows no redirect: ARM sends none, and a token must not go
// where somebody else points to. The given one, if any, takes the place of one over the network.
func (c *Config) transport(given http.RoundTripper) (policy.Transporter, error) {
	if given == nil {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.Endpoints != nil {
			var err error
			if config.RootCAs, err = cloud.CertPool(c.Endpoints.CAFile); err != nil {
				return nil, fmt.Errorf("azure endpoints.%w", err)
			}
		}
		given = cloud.NewTransport(config, 20)
	}
	return &http.Client{Transport: cloud.LimitAnswers(given, maxAnswer), CheckRedirect: useLastResponse}, nil
}

func useLastResponse(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// onlyTo refuses requests to any host but ARM's. Azure's answers say where to ask next, and so does an operation that
// was written down: neither may carry the credential elsewhere.
type onlyTo struct{ endpoint *url.URL }

func (o onlyTo) Do(r *policy.Request) (*http.Response, error) {
	if u := r.Raw().URL; !sameServer(u, o.endpoint) {
		return nil, &elsewhereError{host: u.Host, want: o.endpoint.Host}
	}
	return r.Next()
}

// sameServer reports that two addresses are of one server, however its name is spelt: ARM's own answers say
// management.azure.com:443 where they say where the next page of a list of machines is
// (https://github.com/Azure/azure-sdk-for-java/issues/36506).
func sameServer(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

// portOf is the port of an address, also where it is left out because its scheme implies it.
func portOf(u *url.URL) string {
	port := u.Port()
	switch {
	case port == "" && u.Scheme == "https":
		return "443"
	case port == "" && u.Scheme == "http":
		return "80"
	}
	return port
}

// elsewhereError is a request that would have taken the credential to another host.
type elsewhereError struct{ host, want string }

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("an address at %q is refused: the credential is for %s alone", e.host, e.want)
}

// NonRetriable marks the error for the SDK as one that trying again does not help.
func (e *elsewhereError) NonRetriable() {}

// worthRetrying is the SDK's own judgement without 429, which the caller is told of.
func worthRetrying(response *http.Response, err error) bool {
	if err != nil {
		return !cloud.IsTooLarge(err)
	}
	return slices.Contains([]int{
		http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout,
	}, response.StatusCode)
}
