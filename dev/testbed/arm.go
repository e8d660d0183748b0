package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/azure"
)

// The managed cluster that has the testbed's agent pools.
const (
	ManagedClusterName  = "demo"
	ManagedClusterGroup = "demo_rg"
)

const (
	armCAFile              = "arm-ca.pem"
	armTokenFile           = "arm-token"
	armClientID            = "00000000-0000-0000-0000-00000000000b"
	armServiceAccountToken = "the token of a pod's service account\n" // the emulator accepts any token
)

// startARM starts the emulated Azure Resource Manager and serves it over TLS.
func (t *Testbed) startARM(o azure.ARMOptions) error {
	t.newARM(o)
	server, err := t.ARM.Serve(anyFreePort)
	if err != nil {
		return err
	}
	t.armServer = server
	if err := os.WriteFile(filepath.Join(t.Dir(), armCAFile), server.CA, 0o600); err != nil {
		return fmt.Errorf("create the certificate of ARM: %w", err)
	}
	return t.writeARMToken()
}

func (t *Testbed) newARM(o azure.ARMOptions) {
	o.Subscription, o.ResourceGroup, o.Joiner = controlplane.Subscription, controlplane.ResourceGroup, nodeJoiner{t}
	t.ARM = azure.NewARM(t.Azure, o)
}

func (t *Testbed) writeARMToken() error {
	if err := os.WriteFile(filepath.Join(t.Dir(), armTokenFile), []byte(armServiceAccountToken), 0o600); err != nil {
		return fmt.Errorf("write the token for ARM: %w", err)
	}
	return nil
}

// ARMServer returns the running server of the emulated Azure Resource Manager, with its address and certificate.
func (t *Testbed) ARMServer() *azure.ARMServer { return t.armServer }

// AzureProviderConfig returns the configuration for Slipway's Azure provider that reaches the testbed's Azure. It
// authenticates with a workload identity at the emulated token service. Its groups are the agent pools that
// AddAgentPool has added.
func (t *Testbed) AzureProviderConfig() provider.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	config := provider.Config{
		Subscription: controlplane.Subscription, ResourceGroup: controlplane.ResourceGroup,
		Auth: provider.Auth{
			Method: provider.AuthWorkloadIdentity, TenantID: azure.DefaultTenant, ClientID: armClientID,
			TokenFile: filepath.Join(t.Dir(), armTokenFile),
		},
		Endpoints: &provider.Endpoints{
			ResourceManager: t.armServer.URL.String(), Authority: t.armServer.URL.String(),
			CAFile: filepath.Join(t.Dir(), armCAFile),
		},
	}
	for _, name := range t.agentPools {
		config.Groups = append(config.Groups, provider.GroupConfig{
			Name: name, ResourceGroup: ManagedClusterGroup, Cluster: ManagedClusterName, AgentPool: name,
		})
	}
	return config
}

// EmptyGroupConfig returns the group configuration for a scale set that has no machines. It states the size of the
// nodes to come: the default size of an AKSPool.
func EmptyGroupConfig(scaleSet string) provider.GroupConfig {
	return provider.GroupConfig{Name: scaleSet, ScaleSet: scaleSet, Nodes: cloud.NodeShape{Capacity: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
	}}}
}

// AddAgentPool adds an AKS pool with n machines. If maxSize is not 0, the cluster autoscaler of AKS may set a size
// from minSize to maxSize.
func (t *Testbed) AddAgentPool(ctx context.Context, pool controlplane.AKSPool, n, minSize, maxSize int) error {
	if err := t.AddPool(ctx, pool, n); err != nil {
		return err
	}
	t.mu.Lock()
	t.agentPools = append(t.agentPools, pool.Name)
	t.mu.Unlock()
	return t.ARM.AddAgentPool(azure.AgentPoolSpec{
		Cluster: ManagedClusterName, ResourceGroup: ManagedClusterGroup, Name: pool.Name, ScaleSet: pool.ScaleSetName(),
		AutoScaling: maxSize > 0, Min: minSize, Max: maxSize,
	})
}

// addScaleSet creates the scale set of a pool with n machines in the emulated Azure. It also stores the pool, which
// determines the nodes of machines that are launched later.
func (t *Testbed) addScaleSet(pool controlplane.AKSPool, n int) {
	t.mu.Lock()
	t.pools[strings.ToLower(pool.ScaleSetName())] = pool
	t.mu.Unlock()
	size := pool.Node(0).Labels["node.kubernetes.io/instance-type"]
	t.ARM.AddScaleSet(azure.ScaleSetSpec{
		Name: pool.ScaleSetName(), Size: size, Spot: pool.Spot, Zones: []string{"1", "2", "3"},
		Tags: map[string]string{"aks-managed-poolName": pool.Name},
	}, n)
}

// nodeJoiner adds a Node for a machine that the emulated Azure has created.
type nodeJoiner struct{ t *Testbed }

func (j nodeJoiner) JoinNode(ctx context.Context, vm azure.VM) error {
	j.t.mu.Lock()
	pool, ok := j.t.pools[strings.ToLower(vm.ScaleSet)]
	j.t.mu.Unlock()
	instance, err := strconv.Atoi(vm.InstanceID)
	if !ok || err != nil {
		return fmt.Errorf("machine %s belongs to no pool of the testbed", vm.Resource)
	}
	return j.t.AddNodes(ctx, pool.Node(instance))
}

// ignoreNotFound returns nil for a NotFound error. The Node of a machine may already be deleted when the machine is
// switched.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
