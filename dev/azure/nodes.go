package azure

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// providerID matches both forms that cloud-provider-azure writes: an instance of a uniform scale set, and a standalone
// machine or one of a flexible scale set. Like Azure it ignores letter case.
var providerID = regexp.MustCompile(`(?i)^azure:///subscriptions/[^/]+/resourceGroups/[^/]+/providers/` +
	`Microsoft\.Compute/(?:virtualMachineScaleSets/([^/]+)/)?virtualMachines/([^/]+)$`)

// ParseProviderID returns the Scheduled Events name of the machine of a spec.providerID, and its uniform scale set: <scale
// set>_<instance ID>. For other machines it returns the machine's own name and no scale set.
func ParseProviderID(id string) (resource, scaleSet string, err error) {
	m := providerID.FindStringSubmatch(id)
	if m == nil {
		return "", "", fmt.Errorf("providerID %q: want azure:///subscriptions/…/providers/Microsoft.Compute/"+
			"[virtualMachineScaleSets/…/]virtualMachines/…", id)
	}
	if m[1] == "" {
		return m[2], "", nil
	}
	return m[1] + "_" + m[2], m[1], nil
}

// NodeMap maps machines to nodes by the nodes' provider IDs. It remembers deleted nodes. Its methods may be called
// concurrently.
type NodeMap struct {
	log *slog.Logger

	mu         sync.RWMutex
	byResource map[string]string // node by resource in lower case
	scaleSets  map[string]string // name in the provider ID, by name in lower case
	spotSets   map[string]bool   // by name in lower case
}

// WatchNodes watches the nodes until ctx ends, and returns when it has seen the existing nodes.
func WatchNodes(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (*NodeMap, error) {
	n := &NodeMap{log: log, byResource: map[string]string{}, scaleSets: map[string]string{}, spotSets: map[string]bool{}}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.recordNode(obj) },
		UpdateFunc: func(_, obj any) { n.recordNode(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("watching nodes: no first list: %w", context.Cause(ctx))
	}
	return n, nil
}

func (n *NodeMap) recordNode(obj any) {
	node, ok := obj.(*corev1.Node)
	if !ok || node.Spec.ProviderID == "" {
		return // the kubelet or the cloud controller sets it later
	}
	resource, scaleSet, err := ParseProviderID(node.Spec.ProviderID)
	if err != nil {
		n.log.Warn("ignore a node that is not an Azure machine", "node", node.Name, "err", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byResource[strings.ToLower(resource)] = node.Name
	if scaleSet != "" {
		n.scaleSets[strings.ToLower(scaleSet)] = scaleSet
		n.spotSets[strings.ToLower(scaleSet)] = node.Labels["kubernetes.azure.com/scalesetpriority"] == "spot"
	}
}

// NodeOfEventResource returns the name of a machine's node. It ignores letter case.
func (n *NodeMap) NodeOfEventResource(resource string) (node string, known bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	node, ok := n.byResource[strings.ToLower(resource)]
	return node, ok
}

// ScaleSets returns the uniform scale sets of the nodes, sorted.
func (n *NodeMap) ScaleSets() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var names []string
	for _, name := range n.scaleSets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// NewMachines converts power over nodes to power over their machines.
func (n *NodeMap) NewMachines(power NodePower) Machines { return nodeMachines{n, power} }

type nodeMachines struct {
	nodes *NodeMap
	power NodePower
}

func (m nodeMachines) PowerOff(ctx context.Context, resource string) error {
	return m.withNodeOfResource(ctx, resource, m.power.PowerOff)
}

func (m nodeMachines) PowerOn(ctx context.Context, resource string) error {
	return m.withNodeOfResource(ctx, resource, m.power.PowerOn)
}

func (m nodeMachines) withNodeOfResource(ctx context.Context, resource string, do func(context.Context, string) error) error {
	node, ok := m.nodes.NodeOfEventResource(resource)
	if !ok {
		return fmt.Errorf("machine %q: no node has its providerID", resource)
	}
	if err := do(ctx, node); err != nil {
		return fmt.Errorf("machine %q, node %q: %w", resource, node, err)
	}
	return nil
}
