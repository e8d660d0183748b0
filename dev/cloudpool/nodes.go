package cloudpool

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// PoolLabel is the Node label with the name of the Node's pool.
const PoolLabel = "dev.slipway.dev/cloudpool"

// ClusterNodes is a NodeManager that adds machines as nodes of a control plane.
type ClusterNodes struct {
	Cluster *controlplane.Cluster
	// Pool is the value of PoolLabel.
	Pool string
	// CPU and Memory apply to each node, see controlplane.NodeSpec.
	CPU, Memory string
}

var _ NodeManager = ClusterNodes{}

// AddNode implements NodeManager. The Node gets the machine's first private IP address, if there is one.
func (n ClusterNodes) AddNode(ctx context.Context, m Machine) error {
	spec := controlplane.NodeSpec{
		Name: m.NodeName, ProviderID: m.ProviderID, CPU: n.CPU, Memory: n.Memory, Labels: map[string]string{PoolLabel: n.Pool},
	}
	if err := n.Cluster.AddNodes(ctx, spec); err != nil {
		return err
	}
	return n.setNodeAddress(ctx, m)
}

// setNodeAddress sets the address in a node's status to the address of its machine. A real kubelet does so too, but
// an emulated kubelet uses an invented address.
func (n ClusterNodes) setNodeAddress(ctx context.Context, m Machine) error {
	if len(m.PrivateIPs) == 0 {
		return nil
	}
	if _, err := netip.ParseAddr(m.PrivateIPs[0]); err != nil {
		return fmt.Errorf("machine %s: address %q: %w", m.ID, m.PrivateIPs[0], err)
	}
	nodes := n.Cluster.Client().CoreV1().Nodes()
	for {
		node, err := nodes.Get(ctx, m.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: m.PrivateIPs[0]}, {Type: corev1.NodeHostName, Address: m.NodeName},
		}
		if _, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// PowerOffNode implements NodeManager. It returns nil if the Node does not exist.
func (n ClusterNodes) PowerOffNode(ctx context.Context, m Machine) error {
	if err := n.Cluster.PowerOff(ctx, m.NodeName); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
