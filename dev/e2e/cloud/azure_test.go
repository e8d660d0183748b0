package cloud_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	emulator "github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
)

// These are the names of the resources in the tests' Azure.
const (
	setName     = "aks-spot-12345678-vmss"
	poolName    = "spot"
	clusterName = "demo"
	clusterRG   = "demo_rg"
)

// azureCloud is an emulated Azure. The real SDK calls it over TLS.
type azureCloud struct {
	*emulator.ARM
	server *emulator.ARMServer
	caFile string
	kind   kind
	window cloud.Duration // how long a deletion waits for others, to form a batch
}

// kind is the kind of group that contains the VMs.
type kind string

const (
	uniform   kind = "uniform scale set"
	flexible  kind = "flexible scale set"
	agentPool kind = "agent pool"
	singleVMs kind = "single virtual machines"
)

func kinds() []kind { return []kind{uniform, flexible, agentPool, singleVMs} }

func newAzure(t *testing.T, k kind) *azureCloud { return newAzureWithPages(t, k, 4) }

// newAzureWithPages limits each page of its lists to this many entries.
func newAzureWithPages(t *testing.T, k kind, entries int) *azureCloud {
	t.Helper()
	return newAzureWith(t, k, emulator.ARMOptions{PageSize: entries}, emulator.ScaleSetSpec{}, emulator.AgentPoolSpec{})
}

// newAzureWith takes the behavior of its scale set and agent pool from set and pool.
func newAzureWith(t *testing.T, k kind, o emulator.ARMOptions, set emulator.ScaleSetSpec, pool emulator.AgentPoolSpec) *azureCloud {
	t.Helper()
	e := emulator.New(emulator.Options{})
	t.Cleanup(e.Close)
	arm := emulator.NewARM(e, o)
	server, err := arm.Serve("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, server.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &azureCloud{ARM: arm, server: server, caFile: ca, kind: k, window: cloud.Duration(250 * time.Millisecond)}
	switch k {
	case singleVMs:
		for _, name := range []string{"vm-a", "vm-b", "vm-c", "vm-d", "vm-e", "vm-f"} {
			arm.AddVM(name)
		}
	default:
		set.Name, set.Flexible, set.Spot, set.Zones = setName, set.Flexible || k == flexible, true, []string{"1", "2", "3"}
		set.Tags = map[string]string{"aks-managed-poolName": poolName}
		arm.AddScaleSet(set, conformance.MinInstances)
	}
	if k == agentPool {
		pool.Cluster, pool.ResourceGroup, pool.Name, pool.ScaleSet = clusterName, clusterRG, poolName, setName
		if err := arm.AddAgentPool(pool); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *azureCloud) config() azure.Config {
	config := azure.Config{
		Subscription: emulator.DefaultSubscription, ResourceGroup: emulator.DefaultResourceGroup, BatchWindow: &c.window,
		RequestTimeout: cloud.Duration(time.Minute),
		Endpoints: &azure.Endpoints{
			ResourceManager: c.server.URL.String(), Authority: c.server.URL.String(), CAFile: c.caFile,
		},
	}
	if c.kind == agentPool {
		config.Groups = []azure.GroupConfig{{
			Name: poolName, ResourceGroup: clusterRG, Cluster: clusterName, AgentPool: poolName,
		}}
	}
	return config
}

type token string

func (k token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(k), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func (c *azureCloud) provider(t *testing.T, config azure.Config) *azure.Provider {
	t.Helper()
	p, err := azure.New(config, azure.Options{Credential: token(c.IssueToken())})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (c *azureCloud) Provider(t *testing.T) cloud.Provider { return c.provider(t, c.config()) }

func (c *azureCloud) Group() string {
	switch c.kind {
	case agentPool:
		return poolName
	case singleVMs:
		return ""
	}
	return setName
}

func (c *azureCloud) ProviderIDs() []string {
	var ids []string
	for _, vm := range c.VMs() {
		ids = append(ids, vm.ProviderID)
	}
	return ids
}

func (c *azureCloud) GroupSize() int { return c.Capacity(setName) }

func (c *azureCloud) MissingID() string {
	id := c.ProviderIDs()[0]
	id = id[:strings.LastIndex(id, "/")+1]
	if c.kind == uniform || c.kind == agentPool {
		return id + "777"
	}
	return id + "never-was"
}

func (c *azureCloud) ForeignID() string {
	return strings.Replace(c.ProviderIDs()[0], emulator.DefaultSubscription, "00000000-0000-0000-0000-0000000000ff", 1)
}

func (c *azureCloud) resource(id string) string {
	for _, vm := range c.VMs() {
		if strings.EqualFold(vm.ProviderID, id) {
			return vm.Resource
		}
	}
	return ""
}

func (c *azureCloud) LoseInstance(t *testing.T, id string) {
	t.Helper()
	if err := c.ARM.RemoveVM(t.Context(), c.resource(id)); err != nil {
		t.Fatal(err)
	}
}

func (c *azureCloud) AwaitGone(t *testing.T, id string) {
	t.Helper()
	if err := c.AwaitVMs(t.Context(), func([]emulator.VM) bool { return c.resource(id) == "" }); err != nil {
		t.Fatal(err)
	}
}

func (c *azureCloud) InjectFault(t *testing.T, f conformance.Fault) {
	t.Helper()
	fault := map[conformance.FaultKind][]emulator.ARMFault{
		conformance.Unavailable:       {{Kind: emulator.ARMStatus, Status: 500}},
		conformance.ConnectionReset:   {{Kind: emulator.ARMReset}},
		conformance.TruncatedResponse: {{Kind: emulator.ARMHalf}},
		conformance.ProxyPage:         {{Kind: emulator.ARMHTML}},
		conformance.ProxyNotFound:     {{Kind: emulator.ARMHTML, Status: 404}},
		conformance.PermissionDenied:  {{Kind: emulator.ARMDenied}},
		conformance.Throttled:         {{Kind: emulator.ARMThrottled, RetryAfter: f.RetryAfter}},
		conformance.ListFailsMidway:   c.failSecondPage(),
		conformance.DeletionFails:     {{Kind: emulator.ARMDeletionFails, Resource: c.resource(f.ProviderID)}},
		conformance.DeletionHangs:     {{Kind: emulator.ARMDeletionHangs, Resource: c.resource(f.ProviderID)}},
		conformance.StaleLists:        {{Kind: emulator.ARMStale}},
		conformance.QuotaExhausted: {{
			Kind: emulator.ARMStatus, Status: 409, Code: "OperationNotAllowed", Action: "*",
			Message: "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
		}},
	}[f.FaultKind]
	switch f.FaultKind {
	case conformance.ForgetsOperations:
		c.ForgetOperations()
		return
	case conformance.QuotaExhausted:
		fault[0].Action = sizeAction(c.kind)
	}
	if err := c.ARM.InjectFaults(fault...); err != nil {
		t.Fatal(err)
	}
}

// failSecondPage lets the first page of a VM list pass and fails the next.
func (c *azureCloud) failSecondPage() []emulator.ARMFault {
	action := "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read"
	switch c.kind {
	case flexible:
		action = "Microsoft.Compute/virtualMachines/read"
	case agentPool:
		action = "Microsoft.ContainerService/managedClusters/agentPools/machines/read"
	}
	return []emulator.ARMFault{
		{Kind: emulator.ARMPass, Action: action, Times: 1}, {Kind: emulator.ARMStatus, Status: 500, Action: action},
	}
}

func (c *azureCloud) ClearFaults(*testing.T) { c.ARM.ClearFaults() }

func (c *azureCloud) DeletionRequests() int {
	n := 0
	for _, r := range c.Requests() {
		if strings.HasSuffix(r.Action, "/delete/action") || strings.HasSuffix(r.Action, "/deleteMachines/action") || r.Method == http.MethodDelete {
			n++
		}
	}
	return n
}

// BatchingProvider implements conformance.Batching.
func (c *azureCloud) BatchingProvider(t *testing.T) cloud.Provider {
	t.Helper()
	if c.kind == singleVMs {
		return nil
	}
	return c.withLongBatchWindow().Provider(t)
}

// withLongBatchWindow returns the same cloud with deletions that wait longer for others.
func (c *azureCloud) withLongBatchWindow() *azureCloud {
	longer := *c
	longer.window = cloud.Duration(15 * time.Second)
	return &longer
}

func TestAzurePassesConformance(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			conformance.RunParallel(t, func(t *testing.T) conformance.Cloud { return newAzure(t, k) })
		})
	}
}

// TestAzureVariantPassesConformance uses other permitted behavior of Azure. Operations have only their
// Location, and only one change runs at a time. Azure adds one VM more than requested, and a pool keeps its own count.
func TestAzureVariantPassesConformance(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{uniform, agentPool} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			conformance.RunParallel(t, func(t *testing.T) conformance.Cloud {
				return newAzureWith(t, k, emulator.ARMOptions{PageSize: 4, OperationHeaders: emulator.LocationHeader, SerializeChanges: true},
					emulator.ScaleSetSpec{Overprovision: true}, emulator.AgentPoolSpec{SeparateCount: true})
			})
		})
	}
}

// TestI4RecreatedVMHasAnotherUniqueID recreates a VM under the same name. Its provider ID contains
// only that name.
func TestI4RecreatedVMHasAnotherUniqueID(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, k := range kinds() {
		c := newAzure(t, k)
		p := c.Provider(t)
		for _, id := range c.ProviderIDs() {
			m, err := p.Instance(t.Context(), id)
			if err != nil || m.UniqueID == "" || seen[m.UniqueID] != "" {
				t.Errorf("%s: unique ID %q, that of %q: %v", id, m.UniqueID, seen[m.UniqueID], err)
			}
			seen[m.UniqueID] = id
		}
	}
	c := newAzure(t, singleVMs)
	id := c.ProviderIDs()[0]
	before, err := c.Provider(t).Instance(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	name := c.resource(id)
	c.LoseInstance(t, id)
	c.AwaitGone(t, id)
	c.AddVM(name)
	after, err := c.Provider(t).Instance(t.Context(), id)
	if err != nil || after.ProviderID != before.ProviderID || after.UniqueID == before.UniqueID {
		t.Errorf("before %+v\nafter  %+v, %v", before, after, err)
	}
}
