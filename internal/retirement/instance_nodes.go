package retirement

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/instances"
)

// checkNoNodeOnInstance returns an error if a Node of any name runs on the instance (invariant I4). The kubelet may
// have registered a Node with the host's name or with a new name.
func (p *retirementScope) checkNoNodeOnInstance(ctx context.Context, m cloud.Instance) error {
	all, err := p.controller.nodes.Read(ctx)
	if err != nil {
		return fmt.Errorf("finding the Node of the instance %s: %w", m.ProviderID, err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(h cloud.NodeIdentity) bool { return p.isNewNodeOfSameName(h, m) })
	switch node, err := p.findNodeOnInstance(m, all); {
	case err != nil:
		return err
	case node == p.rt.Spec.NodeName: // it has just registered: the next reconcile decides
		return newWait(p.controller.options.Intervals.CloudPoll, "there is a Node %s again", node)
	case node != "":
		return newEnd(NodeReplaced, "the instance %s belongs to the Node %s and is kept: retire that Node with its own NodeRetirement",
			m.ProviderID, node)
	}
	return nil
}

// checkNoOtherNodeOnInstance returns an error if another Node than the retirement's runs on the instance. Without this
// check, the node would be drained, although the instance could not be deleted afterwards. Cached Nodes are recent
// enough for this check.
func (p *retirementScope) checkNoOtherNodeOnInstance(ctx context.Context, m cloud.Instance) error {
	var nodes corev1.NodeList
	if err := p.controller.options.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	var others []cloud.NodeIdentity
	for i := range nodes.Items {
		if n := &nodes.Items[i]; n.Name != p.rt.Spec.NodeName {
			others = append(others, instances.NodeIdentityOf(n))
		}
	}
	node, err := p.findNodeOnInstance(m, others)
	if err != nil || node == "" {
		return err
	}
	return newEnd(NotConfirmed, "the instance %s also belongs to the Node %s: delete the outdated one of the two Nodes",
		m.ProviderID, node)
}

// findNodeOnInstance returns the name of the Node that runs on the instance, or "".
func (p *retirementScope) findNodeOnInstance(m cloud.Instance, all []cloud.NodeIdentity) (string, error) {
	hosts := slices.DeleteFunc(slices.Clone(all), func(h cloud.NodeIdentity) bool { return isOnOtherInstance(h, m, p.provider.Normalize) })
	node, err := cloud.NewNodeIndex(p.provider.Normalize, hosts).FindNode(m)
	if err != nil {
		return "", fmt.Errorf("finding the Node of the instance %s: %w", m.ProviderID, err)
	}
	return node, nil
}

// isOnOtherInstance reports whether the Node runs on another instance than m, although the names of the Node and of m
// may begin alike. It does if the Node's provider ID names another instance of the cloud. It also does if the cloud
// does not recognize the provider ID and the domains in the names differ. Some distributions derive the provider ID
// from the name of the host, such as k3s://. Such a provider ID proves nothing.
func isOnOtherInstance(h cloud.NodeIdentity, m cloud.Instance, normalize func(providerID string) (string, error)) bool {
	if hasSystemUUID(h, m) || strings.EqualFold(h.Name, m.Name) || strings.EqualFold(h.Name, m.ComputerName) {
		return false
	}
	if h.ProviderID != "" {
		switch id, err := normalize(h.ProviderID); {
		case err == nil:
			return id != m.ProviderID
		case cloud.IsProviderUnavailable(err):
			return false
		}
	}
	return !mayBeSameHost(h.Name, m.Name) && !mayBeSameHost(h.Name, m.ComputerName)
}

// isNewNodeOfSameName reports whether the Node has the name of the deleted Node and belongs to a new instance. Some
// clouds still list an instance for a while after its deletion.
func (p *retirementScope) isNewNodeOfSameName(h cloud.NodeIdentity, m cloud.Instance) bool {
	if p.sameNamedNode == nil || h.Name != p.rt.Spec.NodeName || hasSystemUUID(h, m) {
		return false
	}
	providerID := cloud.ProviderIDOfNode(p.provider, h)
	id, err := p.provider.Normalize(providerID)
	return providerID != "" && err == nil && id != m.ProviderID
}

// mayBelongToSameNamedNode reports whether another Node of the same name exists and is not known to run on another instance.
func (p *retirementScope) mayBelongToSameNamedNode(m cloud.Instance) bool {
	n := p.sameNamedNode
	return n != nil && !p.isNewNodeOfSameName(cloud.NodeIdentity{
		Name: n.Name, ProviderID: n.Spec.ProviderID, SystemUUID: n.Status.NodeInfo.SystemUUID,
	}, m)
}

// hasSystemUUID reports whether the Node's system UUID is the instance's.
func hasSystemUUID(h cloud.NodeIdentity, m cloud.Instance) bool {
	return h.SystemUUID != "" && strings.HasSuffix(strings.ToLower(m.ProviderID), "/"+strings.ToLower(h.SystemUUID))
}

// mayBeSameHost reports whether two names may belong to one host, because they differ only by a domain.
func mayBeSameHost(a, b string) bool {
	a, domainOfA, _ := strings.Cut(strings.ToLower(a), ".")
	b, domainOfB, _ := strings.Cut(strings.ToLower(b), ".")
	return a == b && (domainOfA == "" || domainOfB == "")
}
