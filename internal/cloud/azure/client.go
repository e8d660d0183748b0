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

// Limits of a request besides the timeout of each attempt.
const (
	// maxResponseSize limits the size of a response in bytes. A page of instances with their instance views needs a tenth of
	// it.
	maxResponseSize = 32 << 20
	// maxRetries and retryDelay cover short failures. The caller decides about longer ones, and about every wait that
	// Azure asks for.
	maxRetries    = 2
	retryDelay    = 250 * time.Millisecond
	maxRetryDelay = 2 * time.Second

	moduleName    = "github.com/slipway-dev/slipway/internal/cloud/azure"
	moduleVersion = "v1.0.0"
)

// clients holds the SDK clients, and the pipeline for requests that they do not support.
type clients struct {
	arm             *arm.Client
	scaleSets       *armcompute.VirtualMachineScaleSetsClient
	instances       *armcompute.VirtualMachineScaleSetVMsClient
	vms             *armcompute.VirtualMachinesClient
	pools           *armcontainerservice.AgentPoolsClient
	poolMachines    *armcontainerservice.MachinesClient
	permissions     *armauthorization.PermissionsClient
	armHost         string
	maxCallDuration time.Duration // the longest duration of a call with its retries
}

func newClients(c *Config, o Options) (*clients, error) {
	azure, err := c.cloudConfiguration()
	if err != nil {
		return nil, err
	}
	transport, err := c.httpClient(o.Transport)
	if err != nil {
		return nil, err
	}
	credential := o.Credential
	if credential == nil {
		if credential, err = c.Auth.newCredential(azure, transport, c.Endpoints != nil); err != nil {
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
				MaxRetries: maxRetries, RetryDelay: retryDelay, MaxRetryDelay: maxRetryDelay, TryTimeout: c.requestTimeout(),
				ShouldRetry: shouldRetry,
			},
			PerCallPolicies: []policy.Policy{singleHostPolicy{endpoint}},
		},
		// Registering resource providers needs a permission on the subscription. A subscription with a cluster has them
		// registered.
		DisableRPRegistration: true,
	}
	all := &clients{armHost: endpoint.Host, maxCallDuration: (maxRetries + 1) * (c.requestTimeout() + maxRetryDelay)}
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
	tidy.PerCallPolicies = append([]policy.Policy{emptySegmentPolicy{}}, options.PerCallPolicies...)
	if all.permissions, err = armauthorization.NewPermissionsClient(c.Subscription, credential, &tidy); err != nil {
		return nil, err
	}
	all.scaleSets, all.instances = compute.NewVirtualMachineScaleSetsClient(), compute.NewVirtualMachineScaleSetVMsClient()
	all.vms = compute.NewVirtualMachinesClient()
	all.pools, all.poolMachines = aks.NewAgentPoolsClient(), aks.NewMachinesClient()
	return all, nil
}

// publicClouds returns the public Azure clouds by name.
func publicClouds() map[string]azcloud.Configuration {
	return map[string]azcloud.Configuration{
		"AzurePublic": azcloud.AzurePublic, "AzureGovernment": azcloud.AzureGovernment, "AzureChina": azcloud.AzureChina,
	}
}

func publicCloudNames() []string { return []string{"AzurePublic", "AzureGovernment", "AzureChina"} }

// cloudConfiguration returns the endpoints of the configured cloud.
func (c *Config) cloudConfiguration() (azcloud.Configuration, error) {
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
	azure, ok := publicClouds()[name]
	if !ok {
		return azure, fmt.Errorf("azure cloud: %q: want one of %s", name, strings.Join(publicCloudNames(), ", "))
	}
	return azure, nil
}

// newCredential returns the credential of the configured method. It requests no token.
func (a *Auth) newCredential(azure azcloud.Configuration, transport policy.Transporter, private bool) (azcore.TokenCredential, error) {
	options := azcore.ClientOptions{Cloud: azure, Transport: transport, Retry: policy.RetryOptions{
		MaxRetries: maxRetries, RetryDelay: retryDelay, MaxRetryDelay: maxRetryDelay,
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

// httpClient returns the HTTP client of the SDK. base replaces the network. The client follows no redirect: ARM sends
// none, and another host must not receive the token.
func (c *Config) httpClient(base http.RoundTripper) (policy.Transporter, error) {
	if base == nil {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.Endpoints != nil {
			var err error
			if config.RootCAs, err = cloud.LoadCertPool(c.Endpoints.CAFile); err != nil {
				return nil, fmt.Errorf("azure endpoints.%w", err)
			}
		}
		base = cloud.NewTransport(config, 20)
	}
	return &http.Client{Transport: cloud.LimitResponses(base, maxResponseSize), CheckRedirect: useLastResponse}, nil
}

func useLastResponse(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// singleHostPolicy is a policy that refuses requests to every host except ARM's. Responses and stored operations contain URLs,
// which must not lead the credential to another host.
type singleHostPolicy struct{ endpoint *url.URL }

func (o singleHostPolicy) Do(r *policy.Request) (*http.Response, error) {
	if u := r.Raw().URL; !isSameServer(u, o.endpoint) {
		return nil, &foreignHostError{host: u.Host, want: o.endpoint.Host}
	}
	return r.Next()
}

// isSameServer reports whether two URLs have the same scheme, host and port. Spelling may differ: ARM's links to the next
// page have the host management.azure.com:443 (https://github.com/Azure/azure-sdk-for-java/issues/36506).
func isSameServer(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && effectivePort(a) == effectivePort(b)
}

// effectivePort returns the port of a URL, or the default port of its scheme.
func effectivePort(u *url.URL) string {
	port := u.Port()
	switch {
	case port == "" && u.Scheme == "https":
		return "443"
	case port == "" && u.Scheme == "http":
		return "80"
	}
	return port
}

// foreignHostError is a request that would have sent the credential to another host.
type foreignHostError struct{ host, want string }

func (e *foreignHostError) Error() string {
	return fmt.Sprintf("request to %q refused: the credential is only for %s", e.host, e.want)
}

// NonRetriable tells the SDK not to retry.
func (e *foreignHostError) NonRetriable() {}

// shouldRetry is the rule of the SDK without status 429, which is returned to the caller.
func shouldRetry(response *http.Response, err error) bool {
	if err != nil {
		return !cloud.IsResponseTooLarge(err)
	}
	return slices.Contains([]int{
		http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout,
	}, response.StatusCode)
}
