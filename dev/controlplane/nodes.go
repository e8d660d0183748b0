package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// The label that tells kwok whether a machine has power. Kwok emulates only the kubelets of nodes with
// powerLabel=powerOn. When the value changes, kwok at once stops its work on the node, the node's Lease and its
// pods.
const (
	powerLabel = "dev.slipway.dev/machine"
	powerOn    = "on"
	powerOff   = "off"
)

// poolLabel is the node label that AKS sets to the name of the node's pool.
const poolLabel = "kubernetes.azure.com/agentpool"

// NodeSpec describes a node to add. Only Name is required.
type NodeSpec struct {
	Name string
	// Pool is the value of the label kubernetes.azure.com/agentpool.
	Pool string
	// ProviderID is the value of spec.providerID, such as azure:///subscriptions/….
	ProviderID string
	// CPU and Memory are the allocatable quantities. Empty means "16" and "64Gi".
	CPU, Memory string
	// Pods is the maximum number of pods. Zero means 110, the kubelet's default.
	Pods        int
	Labels      map[string]string
	Annotations map[string]string
	Taints      []corev1.Taint
}

// AddNodes adds nodes with emulated kubelets. It waits until all of these nodes are Ready and schedulable.
func (c *Cluster) AddNodes(ctx context.Context, specs ...NodeSpec) error {
	if len(specs) == 0 {
		return nil
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentRequests)
	for _, spec := range specs {
		group.Go(func() error {
			node, err := c.newNode(spec)
			if err != nil {
				return err
			}
			if _, err := c.client.CoreV1().Nodes().Create(groupCtx, node, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("adding node %s: %w", spec.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	names := make([]string, 0, len(specs))
	for _, spec := range specs {
		names = append(names, spec.Name)
	}
	return c.awaitNodesReady(ctx, time.Time{}, names...)
}

// maxConcurrentRequests is the maximum number of concurrent requests of a function that creates many objects.
const maxConcurrentRequests = 16

// newNode returns a Node object as a real kubelet registers it.
func (c *Cluster) newNode(spec NodeSpec) (*corev1.Node, error) {
	capacity, err := spec.capacity()
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: spec.labels(), Annotations: spec.Annotations},
		Spec:       corev1.NodeSpec{ProviderID: spec.ProviderID, Taints: spec.Taints},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: nodeAddress(spec.Name)},
				{Type: corev1.NodeHostName, Address: spec.Name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v" + c.state.Version + ".0", ContainerRuntimeVersion: "kwok://0.8.0",
				OperatingSystem: "linux", Architecture: "amd64", OSImage: "Ubuntu 24.04.3 LTS",
				MachineID: spec.Name, SystemUUID: spec.Name, BootID: spec.Name, KernelVersion: "6.8.0-azure",
			},
			Conditions: nodeConditions(),
		},
	}
	return node, nil
}

func (spec NodeSpec) capacity() (corev1.ResourceList, error) {
	if spec.Pods < 0 {
		return nil, fmt.Errorf("node %s: Pods is %d, it must not be negative", spec.Name, spec.Pods)
	}
	list := corev1.ResourceList{}
	for name, value := range map[corev1.ResourceName]string{
		corev1.ResourceCPU:              orDefault(spec.CPU, "16"),
		corev1.ResourceMemory:           orDefault(spec.Memory, "64Gi"),
		corev1.ResourceEphemeralStorage: "128Gi",
		corev1.ResourcePods:             orDefault(strings.TrimPrefix(strconv.Itoa(spec.Pods), "0"), "110"),
	} {
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("node %s: %s is %q: %w", spec.Name, name, value, err)
		}
		list[name] = quantity
	}
	return list, nil
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func (spec NodeSpec) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:   spec.Name,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
		// The node lifecycle controller adds these a moment later, which would look like a change by a tool.
		"beta.kubernetes.io/os":   "linux",
		"beta.kubernetes.io/arch": "amd64",
	}
	if spec.Pool != "" {
		labels[poolLabel] = spec.Pool
	}
	maps.Copy(labels, spec.Labels)
	labels[powerLabel] = powerOn
	return labels
}

// nodeAddress returns an address in 10.128.0.0/9 for a node. The same name always gets the same address.
func nodeAddress(name string) string {
	sum := fnv.New32a()
	sum.Write([]byte(name))
	n := sum.Sum(nil)
	return netip.AddrFrom4([4]byte{10, 128 | n[1], n[2], n[3]}).String()
}

// nodeConditions returns the conditions of a healthy node. A new node starts with these conditions. Otherwise the
// node lifecycle controller would taint the node before its first heartbeat.
func nodeConditions() []corev1.NodeCondition {
	now := metav1.Now()
	var conditions []corev1.NodeCondition
	for _, condition := range []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
	} {
		condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
		conditions = append(conditions, condition)
	}
	return conditions
}

// awaitNodesReady waits until the nodes are Ready, have no not-ready taint, and have renewed their Leases after the
// time renewedAfter.
func (c *Cluster) awaitNodesReady(ctx context.Context, renewedAfter time.Time, names ...string) error {
	nodes, leases := c.client.CoreV1().Nodes(), c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	nodeReady := func(o runtime.Object) bool { return isNodeReady(o.(*corev1.Node)) }
	if err := awaitAll(ctx, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: nodes.Watch,
	}, c.client), &corev1.Node{}, names, nodeReady); err != nil {
		return fmt.Errorf("waiting for nodes to be Ready: %w", err)
	}
	leaseRenewed := func(o runtime.Object) bool {
		renewed := o.(*coordinationv1.Lease).Spec.RenewTime
		return renewed != nil && renewed.After(renewedAfter)
	}
	if err := awaitAll(ctx, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return leases.List(ctx, o)
		},
		WatchFuncWithContext: leases.Watch,
	}, c.client), &coordinationv1.Lease{}, names, leaseRenewed); err != nil {
		return fmt.Errorf("waiting for nodes to renew their Leases: %w", err)
	}
	return nil
}

// awaitAll lists and watches objects until matches has returned true for every named object.
func awaitAll(ctx context.Context, lw cache.ListerWatcher, kind runtime.Object, names []string,
	matches func(runtime.Object) bool,
) error {
	missing := sets.New(names...)
	_, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(event watch.Event) (bool, error) {
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return false, err
		}
		if event.Type != watch.Deleted && matches(event.Object) {
			missing.Delete(object.GetName())
		}
		return missing.Len() == 0, nil
	})
	if err != nil && missing.Len() > 0 {
		return fmt.Errorf("%w (missing: %v)", err, sets.List(missing))
	}
	return err
}

func isNodeReady(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// PowerOff switches off the machine of a node. The kubelet then sends no heartbeats, and all pods on the node keep
// their state, even terminating pods. The Node object stays Ready until the node lifecycle controller reacts (see
// Options.NodeMonitorGracePeriod).
func (c *Cluster) PowerOff(ctx context.Context, node string) error {
	if err := c.setPowerLabel(ctx, node, powerOff); err != nil {
		return fmt.Errorf("powering off %s: %w", node, err)
	}
	return nil
}

// IsPoweredOff reports whether the machine of a node is switched off.
func IsPoweredOff(node *corev1.Node) bool { return node.Labels[powerLabel] == powerOff }

// PowerOn switches on the machine of a node, and returns when the node is Ready again. The kubelet then continues
// with the pods bound to the node. It kills terminating pods with an expired grace period.
func (c *Cluster) PowerOn(ctx context.Context, node string) error {
	before := time.Now()
	if err := c.setPowerLabel(ctx, node, powerOn); err != nil {
		return fmt.Errorf("powering on %s: %w", node, err)
	}
	return c.awaitNodesReady(ctx, before, node)
}

func (c *Cluster) setPowerLabel(ctx context.Context, node, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{powerLabel: value}}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
