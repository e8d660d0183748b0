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

// Config says which Azure a [Provider] speaks to, as whom, and what its groups are. It is read from YAML or JSON.
type Config struct {
	// Subscription is the ID of the subscription that the machines are in. A machine of another one is refused.
	Subscription string `json:"subscription"`
	// ResourceGroup is where scale sets are looked for whose group does not say; in AKS, the node resource group.
	ResourceGroup string `json:"resourceGroup"`
	// Groups name the groups that are more than a scale set of that name in ResourceGroup. Agent pools have to be listed:
	// it is how a machine's deletion is known to be AKS's to carry out.
	Groups []GroupConfig `json:"groups,omitempty"`

	Auth Auth `json:"auth,omitzero"`
	// Cloud is AzurePublic, AzureGovernment or AzureChina; empty is AzurePublic.
	Cloud string `json:"cloud,omitempty"`
	// Endpoints take the place of Cloud's, for a private cloud or an emulator.
	Endpoints *Endpoints `json:"endpoints,omitempty"`

	// BatchWindow is how long a deletion waits for others of its group, so that they are one request. The status of an operation
	// serves others for as long, 1s at the most. 0 to 1m; the default is 500ms.
	BatchWindow *cloud.Duration `json:"batchWindow,omitempty"`
	// RequestTimeout limits each try of a request, to its last byte. 1s to 5m; the default is 30s.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
}

// GroupConfig is a group under a name of the user's choice. It is either a scale set or an agent pool.
type GroupConfig struct {
	// Name is what NodeGroups call it in spec.cloud.group.
	Name string `json:"name"`
	// ResourceGroup is that of the scale set, or of the managed cluster. A scale set's is Config.ResourceGroup when
	// empty; a managed cluster is never in the resource group of its nodes, and has to name its own.
	ResourceGroup string `json:"resourceGroup,omitempty"`
	// ScaleSet is a scale set, uniform or flexible.
	ScaleSet string `json:"scaleSet,omitempty"`
	// Cluster and AgentPool are an AKS agent pool: AKS deletes its machines and makes them, and keeps count.
	Cluster   string `json:"cluster,omitempty"`
	AgentPool string `json:"agentPool,omitempty"`
	// Nodes declares what the group's Nodes will be like, so that it can grow from none.
	Nodes cloud.Shape `json:"nodes,omitzero"`
}

// Auth says how the credential is found.
type Auth struct {
	// Method is one of Methods; empty is "default", the chain that the Azure SDK calls so: environment variables,
	// workload identity, managed identity, and the developer's own sign-in.
	Method string `json:"method,omitempty"`
	// TenantID and ClientID are taken from AZURE_TENANT_ID and AZURE_CLIENT_ID when empty, where the method wants them.
	TenantID string `json:"tenantID,omitempty"`
	ClientID string `json:"clientID,omitempty"`
	// TokenFile is the workload identity's; empty is $AZURE_FEDERATED_TOKEN_FILE.
	TokenFile string `json:"tokenFile,omitempty"`
}

// The ways to find a credential.
const (
	AuthDefault          = "default"
	AuthEnvironment      = "environment"
	AuthWorkloadIdentity = "workloadIdentity"
	AuthManagedIdentity  = "managedIdentity"
)

// Methods lists the ways to find a credential.
func Methods() []string {
	return []string{AuthDefault, AuthEnvironment, AuthWorkloadIdentity, AuthManagedIdentity}
}

// Endpoints are the addresses of an Azure that is none of the public ones.
type Endpoints struct {
	// ResourceManager is the URL of ARM, such as https://management.azure.com. All requests with the credential go
	// there, and nowhere else.
	ResourceManager string `json:"resourceManager"`
	// Audience is whom tokens are for; empty is ResourceManager.
	Audience string `json:"audience,omitempty"`
	// Authority is the URL of the token service, such as https://login.microsoftonline.com.
	Authority string `json:"authority"`
	// CAFile holds the certificates, in PEM, that both are trusted by; empty is the system's.
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
	guid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	// resourceGroupName is Azure's rule for them: letters, digits, and _ . - ( ), no dot at the end.
	resourceGroupName = regexp.MustCompile(`^[\pL\pN_.()-]{0,89}[\pL\pN_()-]$`)
	resourceName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	agentPoolName     = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
)

// Validate reports everything that is wrong, each with field, value and what is allowed.
func (c *Config) Validate() error {
	var v problems
	v.check(guid.MatchString(c.Subscription), "subscription", c.Subscription, "a subscription ID, a GUID")
	v.check(resourceGroupName.MatchString(c.ResourceGroup), "resourceGroup", c.ResourceGroup, "the name of a resource group")
	v.check(c.Cloud == "" || slices.Contains(cloudNames(), c.Cloud), "cloud", c.Cloud, "one of "+strings.Join(cloudNames(), ", "))
	v.check(c.Cloud == "" || c.Endpoints == nil, "cloud", c.Cloud, "nothing beside endpoints")
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

func (a *Auth) validate(v *problems) {
	v.check(a.Method == "" || slices.Contains(Methods(), a.Method), "auth.method", a.Method, "one of "+strings.Join(Methods(), ", "))
	v.check(a.TokenFile == "" || a.Method == AuthWorkloadIdentity, "auth.tokenFile", a.TokenFile,
		"nothing, unless auth.method is "+AuthWorkloadIdentity)
	v.check(a.ClientID == "" || a.Method == AuthWorkloadIdentity || a.Method == AuthManagedIdentity, "auth.clientID", a.ClientID,
		"nothing, unless auth.method is "+AuthWorkloadIdentity+" or "+AuthManagedIdentity)
}

func (e *Endpoints) validate(v *problems) {
	for field, value := range map[string]string{
		"endpoints.resourceManager": e.ResourceManager, "endpoints.authority": e.Authority,
	} {
		u, err := url.Parse(value)
		v.check(err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "",
			field, value, "an https URL without query, such as https://management.azure.com: tokens are sent there")
	}
}

func (c *Config) validateGroups(v *problems) {
	names := map[string]bool{}
	for i, g := range c.Groups {
		field := fmt.Sprintf("groups[%d].", i)
		key := strings.ToLower(g.Name)
		v.check(resourceName.MatchString(g.Name), field+"name", g.Name, "a name of letters, digits, . _ and -")
		v.check(!names[key], field+"name", g.Name, "a name that no other group has")
		names[key] = true
		v.check(g.Nodes.Cost >= 0, field+"nodes.cost", fmt.Sprint(g.Nodes.Cost), "0 or more")
		for _, name := range cloud.Negative(g.Nodes.Reserved) {
			v.check(false, field+"nodes.reserved."+name, "less than 0", "0 or more")
		}
		v.check(g.ResourceGroup == "" || resourceGroupName.MatchString(g.ResourceGroup), field+"resourceGroup", g.ResourceGroup,
			"the name of a resource group")
		if g.ScaleSet != "" {
			v.check(resourceName.MatchString(g.ScaleSet), field+"scaleSet", g.ScaleSet, "the name of a scale set")
			v.check(g.Cluster == "" && g.AgentPool == "", field+"scaleSet", g.ScaleSet,
				"either a scale set, or a cluster and an agent pool")
			continue
		}
		v.check(g.Cluster != "" || g.AgentPool != "", field+"scaleSet", g.ScaleSet, "a scale set, or else a cluster and an agent pool")
		v.check(resourceName.MatchString(g.Cluster), field+"cluster", g.Cluster, "the name of a managed cluster")
		v.check(agentPoolName.MatchString(g.AgentPool), field+"agentPool", g.AgentPool,
			"the name of an agent pool: up to 12 small letters and digits")
		v.check(g.ResourceGroup != "", field+"resourceGroup", g.ResourceGroup, "the managed cluster's own resource group")
	}
}

// problems gathers what is wrong with a configuration.
type problems []error

func (v *problems) check(ok bool, field, value, want string) {
	if !ok {
		v.add(field, fmt.Sprintf("%q", value), want)
	}
}

func (v *problems) add(field string, value any, want string) {
	*v = append(*v, fmt.Errorf("azure %s: %v: want %s", field, value, want))
}
