package azure

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Config configures a [Provider]: the Azure cloud, the credential and the groups. It is read from YAML or JSON.
type Config struct {
	// Subscription is the subscription ID. Instances of another subscription are refused.
	Subscription string `json:"subscription"`
	// ResourceGroup is the default resource group of scale sets. In AKS it is the node resource group.
	ResourceGroup string `json:"resourceGroup"`
	// Groups configures groups. A scale set in ResourceGroup needs no entry. Every agent pool needs one, so that AKS
	// deletes its instances.
	Groups []GroupConfig `json:"groups,omitempty"`

	Auth Auth `json:"auth,omitzero"`
	// Cloud is AzurePublic, AzureGovernment or AzureChina. Empty is AzurePublic.
	Cloud string `json:"cloud,omitempty"`
	// Endpoints replaces the public cloud, for a private cloud or an emulator.
	Endpoints *Endpoints `json:"endpoints,omitempty"`

	// BatchWindow is how long a deletion waits for others of its group to share a request, 0 to 1m. The default is
	// 500ms. The status of an operation is cached for as long, but at most 1s.
	BatchWindow *cloud.Duration `json:"batchWindow,omitempty"`
	// RequestTimeout limits each attempt of a request, including its body, 1s to 5m. The default is 30s.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
}

// GroupConfig names a group. It is either a scale set or an agent pool.
type GroupConfig struct {
	// Name is the value of NodeGroup spec.cloud.group.
	Name string `json:"name"`
	// ResourceGroup is the resource group of the scale set or of the managed cluster. It defaults to
	// Config.ResourceGroup for a scale set and is required for a managed cluster, which is never in the node resource
	// group.
	ResourceGroup string `json:"resourceGroup,omitempty"`
	// ScaleSet is a uniform or flexible scale set.
	ScaleSet string `json:"scaleSet,omitempty"`
	// Cluster and AgentPool name an AKS agent pool. AKS launches and deletes its instances.
	Cluster   string `json:"cluster,omitempty"`
	AgentPool string `json:"agentPool,omitempty"`
	// Nodes describes the group's Nodes, so that it can scale up from zero.
	Nodes cloud.NodeShape `json:"nodes,omitzero"`
}

// Auth selects the credential.
type Auth struct {
	// Method is default, environment, workloadIdentity or managedIdentity. Empty is default, the DefaultAzureCredential
	// of the SDK: environment variables, workload identity, managed identity, and the developer's login.
	Method string `json:"method,omitempty"`
	// TenantID and ClientID default to AZURE_TENANT_ID and AZURE_CLIENT_ID if the method uses them.
	TenantID string `json:"tenantID,omitempty"`
	ClientID string `json:"clientID,omitempty"`
	// TokenFile is the token file of the workload identity. It defaults to $AZURE_FEDERATED_TOKEN_FILE.
	TokenFile string `json:"tokenFile,omitempty"`
}

// The values of Auth.Method.
const (
	AuthDefault          = "default"
	AuthEnvironment      = "environment"
	AuthWorkloadIdentity = "workloadIdentity"
	AuthManagedIdentity  = "managedIdentity"
)

// AuthMethods returns the values of Auth.Method.
func AuthMethods() []string {
	return []string{AuthDefault, AuthEnvironment, AuthWorkloadIdentity, AuthManagedIdentity}
}

// Endpoints has the URLs of a private Azure cloud.
type Endpoints struct {
	// ResourceManager is the URL of ARM, such as https://management.azure.com. Only it receives requests with the
	// credential.
	ResourceManager string `json:"resourceManager"`
	// Audience is the audience of the tokens. Empty is ResourceManager.
	Audience string `json:"audience,omitempty"`
	// Authority is the URL of the token service, such as https://login.microsoftonline.com.
	Authority string `json:"authority"`
	// CAFile has the certificate authorities for both URLs, in PEM. Empty means the system's.
	CAFile string `json:"caFile,omitempty"`
}

const (
	defaultBatchWindow    = 500 * time.Millisecond
	defaultRequestTimeout = 30 * time.Second

	minRequestTimeout = time.Second
	maxRequestTimeout = 5 * time.Minute
	maxBatchWindow    = time.Minute
)

var (
	guidPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	// resourceGroupPattern is Azure's rule for resource groups: letters, digits and _ . - ( ), but no dot at the end.
	resourceGroupPattern = regexp.MustCompile(`^[\pL\pN_.()-]{0,89}[\pL\pN_()-]$`)
	resourceNamePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	agentPoolPattern     = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
)

// Validate returns all errors, each with field, value and allowed values.
func (c *Config) Validate() error {
	var v configErrors
	v.check(guidPattern.MatchString(c.Subscription), "subscription", c.Subscription, "a subscription ID, a GUID")
	v.check(resourceGroupPattern.MatchString(c.ResourceGroup), "resourceGroup", c.ResourceGroup, "the name of a resource group")
	v.check(c.Cloud == "" || slices.Contains(publicCloudNames(), c.Cloud), "cloud", c.Cloud, "one of "+strings.Join(publicCloudNames(), ", "))
	v.check(c.Cloud == "" || c.Endpoints == nil, "cloud", c.Cloud, "nothing if endpoints is set")
	if w := c.batchWindow(); w < 0 || w > maxBatchWindow {
		v.add("batchWindow", w, "0s to "+maxBatchWindow.String())
	}
	if t := c.requestTimeout(); t < minRequestTimeout || t > maxRequestTimeout {
		v.add("requestTimeout", t, minRequestTimeout.String()+" to "+maxRequestTimeout.String())
	}
	c.Auth.validate(&v)
	if c.Endpoints != nil {
		c.Endpoints.validate(&v)
	}
	c.validateGroups(&v)
	return errors.Join(v...)
}

func (c *Config) batchWindow() time.Duration {
	if c.BatchWindow == nil {
		return defaultBatchWindow
	}
	return time.Duration(*c.BatchWindow)
}

func (c *Config) requestTimeout() time.Duration {
	if c.RequestTimeout == 0 {
		return defaultRequestTimeout
	}
	return time.Duration(c.RequestTimeout)
}

func (a *Auth) validate(v *configErrors) {
	v.check(a.Method == "" || slices.Contains(AuthMethods(), a.Method), "auth.method", a.Method, "one of "+strings.Join(AuthMethods(), ", "))
	v.check(a.TokenFile == "" || a.Method == AuthWorkloadIdentity, "auth.tokenFile", a.TokenFile,
		"nothing, unless auth.method is "+AuthWorkloadIdentity)
	v.check(a.ClientID == "" || a.Method == AuthWorkloadIdentity || a.Method == AuthManagedIdentity, "auth.clientID", a.ClientID,
		"nothing, unless auth.method is "+AuthWorkloadIdentity+" or "+AuthManagedIdentity)
}

func (e *Endpoints) validate(v *configErrors) {
	for field, value := range map[string]string{
		"endpoints.resourceManager": e.ResourceManager, "endpoints.authority": e.Authority,
	} {
		u, err := url.Parse(value)
		v.check(err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "",
			field, value, "an https URL without query, such as https://management.azure.com: tokens are sent there")
	}
}

func (c *Config) validateGroups(v *configErrors) {
	names := map[string]bool{}
	for i, g := range c.Groups {
		field := fmt.Sprintf("groups[%d].", i)
		key := strings.ToLower(g.Name)
		v.check(resourceNamePattern.MatchString(g.Name), field+"name", g.Name, "a name of letters, digits, . _ and -")
		v.check(!names[key], field+"name", g.Name, "a name that no other group has")
		names[key] = true
		v.check(g.Nodes.Cost >= 0, field+"nodes.cost", fmt.Sprint(g.Nodes.Cost), "0 or more")
		for _, name := range cloud.NegativeResources(g.Nodes.Reserved) {
			v.check(false, field+"nodes.reserved."+name, "less than 0", "0 or more")
		}
		v.check(g.ResourceGroup == "" || resourceGroupPattern.MatchString(g.ResourceGroup), field+"resourceGroup", g.ResourceGroup,
			"the name of a resource group")
		if g.ScaleSet != "" {
			v.check(resourceNamePattern.MatchString(g.ScaleSet), field+"scaleSet", g.ScaleSet, "the name of a scale set")
			v.check(g.Cluster == "" && g.AgentPool == "", field+"scaleSet", g.ScaleSet,
				"either a scale set, or a cluster and an agent pool")
			continue
		}
		v.check(g.Cluster != "" || g.AgentPool != "", field+"scaleSet", g.ScaleSet, "a scale set, or else a cluster and an agent pool")
		v.check(resourceNamePattern.MatchString(g.Cluster), field+"cluster", g.Cluster, "the name of a managed cluster")
		v.check(agentPoolPattern.MatchString(g.AgentPool), field+"agentPool", g.AgentPool,
			"the name of an agent pool: up to 12 small letters and digits")
		v.check(g.ResourceGroup != "", field+"resourceGroup", g.ResourceGroup, "the managed cluster's own resource group")
	}
}

// configErrors collects configuration errors.
type configErrors []error

func (v *configErrors) check(ok bool, field, value, want string) {
	if !ok {
		v.add(field, fmt.Sprintf("%q", value), want)
	}
}

func (v *configErrors) add(field string, value any, want string) {
	*v = append(*v, fmt.Errorf("azure %s: %v: want %s", field, value, want))
}
