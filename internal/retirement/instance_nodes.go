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

// isNoNode makes sure that no Node is on the machine (I4). One of another name may be: the kubelet has registered under the
// name of its host and the retirement names the machine's, or it was told to take another name while the retirement waited.
func (p *passage) isNoNode(ctx context.Context, m cloud.Instance) error {
	all, err := p.c.nodes.Read(ctx)
	if err != nil {
		return fmt.Errorf("whether machine %s is a Node: %w", m.ProviderID, err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(h cloud.Host) bool { return p.isNamesake(h, m) })
	switch node, err := p.nodeOn(m, all); {
	case err != nil:
		return err
	case node == p.rt.Spec.NodeName: // it has just come, and the next look at it decides
		return wait(p.c.o.Pace.Cloud, "there is a Node %s again", node)
	case node != "":
		return end(NodeReplaced, "the machine %s is the Node %s, and stays: that one has to be retired by a NodeRetirement of its own",
			m.ProviderID, node)
	}
	return nil
}

// isNoOtherNode makes sure that no other Node than the retirement's is on the machine: it would be kept in the end, and the node
// have been drained for nothing. For that the caches are good enough.
func (p *passage) isNoOtherNode(ctx context.Context, m cloud.Instance) error {
	var nodes corev1.NodeList
	if err := p.c.o.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	var others []cloud.Host
	for i := range nodes.Items {
		if n := &nodes.Items[i]; n.Name != p.rt.Spec.NodeName {
			others = append(others, instances.HostOf(n))
		}
	}
	node, err := p.nodeOn(m, others)
	if err != nil || node == "" {
		return err
	}
	return end(NotConfirmed, "the machine %s is the Node %s as well: delete the one of the two Nodes that is left of an earlier time",
		m.ProviderID, node)
}

// nodeOn gives the name of the one of some Nodes that is on a machine, or empty.
func (p *passage) nodeOn(m cloud.Instance, all []cloud.Host) (string, error) {
	hosts := slices.DeleteFunc(slices.Clone(all), func(h cloud.Host) bool { return isElsewhere(h, m, p.cloud.Normalize) })
	node, err := cloud.NewHosts(p.cloud.Normalize, hosts).Of(m)
	if err != nil {
		return "", fmt.Errorf("whether machine %s is a Node: %w", m.ProviderID, err)
	}
	return node, nil
}

// isElsewhere reports a Node that is on another machine, and has no more in common with this one than how its name begins, as
// hosts of several domains have: it says by its provider ID that it is on another one of the cloud, or says nothing that the cloud
// understands and is of another domain. An ID that is no ID of the cloud may be made of the host's name by its distribution, as
// k3s:// is, and says nothing of where it runs.
func isElsewhere(h cloud.Host, m cloud.Instance, normalize func(providerID string) (string, error)) bool {
	if isItsUUID(h, m) || strings.EqualFold(h.Name, m.Name) || strings.EqualFold(h.Name, m.ComputerName) {
		return false
	}
	if h.ProviderID != "" {
		switch id, err := normalize(h.ProviderID); {
		case err == nil:
			return id != m.ProviderID
		case cloud.IsUnanswered(err):
			return false
		}
	}
	return !mayBe(h.Name, m.Name) && !mayBe(h.Name, m.ComputerName)
}

// isNamesake reports the Node of a new machine that has come under the name of the deleted one, where the cloud keeps a machine for
// a while after its deletion.
func (p *passage) isNamesake(h cloud.Host, m cloud.Instance) bool {
	if p.replacement == nil || h.Name != p.rt.Spec.NodeName || isItsUUID(h, m) {
		return false
	}
	id, err := p.cloud.Normalize(h.ProviderID)
	return h.ProviderID != "" && err == nil && id != m.ProviderID
}

// isItsUUID reports a Node whose system's UUID is the machine's.
func isItsUUID(h cloud.Host, m cloud.Instance) bool {
	return h.SystemUUID != "" && strings.HasSuffix(strings.ToLower(m.ProviderID), "/"+strings.ToLower(h.SystemUUID))
}

// mayBe reports whether two names that differ may be one host's: one of them is the other without its domain.
func mayBe(a, b string) bool {
	a, domainOfA, _ := strings.Cut(strings.ToLower(a), ".")
	b, domainOfB, _ := strings.Cut(strings.ToLower(b), ".")
	return a == b && (domainOfA == "" || domainOfB == "")
}
