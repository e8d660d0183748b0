// Package matching pairs the machines of a pool with Nodes, and chooses the machines to remove so that the pool reaches a
// size. It does not contact a cloud or the API server.
package matching

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// Pairing says which machine belongs to which node.
type Pairing struct {
	// Members are the machines that have not ended, in pool order.
	Members []Member
	// Unclear are contradictions. If there are any, no machine is removed.
	Unclear []string
}

// Member is a machine of the pool with its node, if it has a node.
type Member struct {
	Machine *api.Machine
	Node    *corev1.Node
	// PairedBy is the method that paired them.
	PairedBy pairingMethod
	// ProviderID is the provider ID for the node's retirement: the node's or, if it has none, the machine's.
	ProviderID string
	// Unconfirmed is the reason why the cloud could not confirm that the machine is the node's, so that a retirement would be
	// refused. It is empty for a machine without a node.
	Unconfirmed string
	// OtherName is a warning that neither of the machine's names is the node's name. It is empty if one is.
	OtherName string
	// Doubt is the reason why a node may belong to a machine that was not paired. It is empty if none can.
	Doubt string
}

type pairingMethod string

const (
	byProviderID pairingMethod = "provider ID"
	byExternalID pairingMethod = "external ID"
	byAddress    pairingMethod = "address"
	byName       pairingMethod = "name"
)

// FindMember returns the member with the machine ID, or nil.
func (p *Pairing) FindMember(id string) *Member {
	for i := range p.Members {
		if p.Members[i].Machine.ID == id {
			return &p.Members[i]
		}
	}
	return nil
}

// MapRetirementsByMachine returns the retirement of each machine; the key is the machine's ID. It finds the retirement
// by the machine's node, or by the machine's identity if the node is gone.
func MapRetirementsByMachine(members []Member, retirements []v1alpha1.NodeRetirement, ids Identities) map[string]*v1alpha1.NodeRetirement {
	byNode, byIdentity := map[types.UID]*v1alpha1.NodeRetirement{}, map[string]*v1alpha1.NodeRetirement{}
	byName := map[string]*v1alpha1.NodeRetirement{}
	for i := range retirements {
		rt := &retirements[i]
		uid, providerID := rt.Spec.NodeUID, rt.Spec.ProviderID
		if is := rt.Status.Captured; is != nil {
			uid, providerID = is.NodeUID, is.ProviderID
		}
		if uid != "" {
			byNode[uid] = rt
		} else {
			byName[rt.Spec.NodeName] = rt
		}
		if identity, err := ids.NodeIdentity(providerID); err == nil {
			byIdentity[identity] = rt
		}
	}
	found := map[string]*v1alpha1.NodeRetirement{}
	for i := range members {
		m := &members[i]
		var rt *v1alpha1.NodeRetirement
		if identity, known := ids.Identity(m.Machine); known {
			rt = byIdentity[identity]
		}
		if m.Node != nil {
			rt = cmp.Or(byNode[m.Node.UID], byName[m.Node.Name], rt)
		}
		if rt != nil {
			found[m.Machine.ID] = rt
		}
	}
	return found
}

// HasEnded reports whether a machine no longer counts as part of the pool: it is gone, is being deleted, or was never
// created.
func HasEnded(m *api.Machine, ids Identities) bool {
	return m.State.HasLeftPool() && (m.State != api.Rejected || !ids.HasRejectedMachines())
}

// matcher is the working state of PairMachines.
type matcher struct {
	ids       Identities
	machines  []*machineFacts
	nodes     []*nodeFacts
	byAddress map[netip.Addr][]*machineFacts
	unclear   []string
}

type machineFacts struct {
	*api.Machine
	identity  string // empty if the machine has none
	addresses []netip.Addr
	node      *nodeFacts
	method    pairingMethod

	name, computerName string
}

// hasName reports whether the name or the computer name of the machine is the node's name, ignoring letter case.
func (m *machineFacts) hasName(node string) bool {
	return strings.EqualFold(m.name, node) || strings.EqualFold(m.computerName, node)
}

type nodeFacts struct {
	*corev1.Node
	identity  string // empty if the provider ID is empty or unreadable
	addresses []netip.Addr
	machine   *machineFacts
}

// PairMachines pairs machines with nodes by their provider IDs. If the machine or the node has none, it compares
// addresses, and then names. If several pairs are possible, it pairs none of them and reports this in Unclear.
func PairMachines(machines []api.Machine, nodes []*corev1.Node, ids Identities) Pairing {
	m := newMatcher(machines, nodes, ids)
	m.pairByIdentity()
	m.recordContradictions()
	m.pairUniqueMatches(byAddress, func(machine *machineFacts, node *nodeFacts) bool {
		return shareAddress(machine.addresses, node.addresses)
	})
	m.pairUniqueMatches(byName, func(machine *machineFacts, node *nodeFacts) bool { return machine.hasName(node.Name) })
	return m.toPairing()
}

func newMatcher(machines []api.Machine, nodes []*corev1.Node, ids Identities) *matcher {
	m := &matcher{ids: ids, byAddress: map[netip.Addr][]*machineFacts{}}
	for i := range machines {
		machine := &machines[i]
		if machine.State == api.Terminated || machine.State == api.Rejected && !ids.HasRejectedMachines() {
			continue
		}
		f := &machineFacts{Machine: machine, addresses: parseIdentifyingAddresses(slices.Concat(machine.PrivateIPs, machine.PublicIPs))}
		f.identity, _ = ids.Identity(machine)
		f.name, f.computerName = ids.Names(machine)
		for _, a := range f.addresses {
			m.byAddress[a] = append(m.byAddress[a], f)
		}
		m.machines = append(m.machines, f)
	}
	for _, node := range nodes {
		f := &nodeFacts{Node: node}
		if id, err := ids.NodeIdentity(node.Spec.ProviderID); err == nil {
			f.identity = id
		}
		var texts []string
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
				texts = append(texts, a.Address)
			}
		}
		f.addresses = parseIdentifyingAddresses(texts)
		m.nodes = append(m.nodes, f)
	}
	slices.SortFunc(m.nodes, func(a, b *nodeFacts) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// parseIdentifyingAddresses returns the addresses that can identify a machine.
func parseIdentifyingAddresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err == nil && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			all = append(all, a.Unmap())
		}
	}
	return all
}

func shareAddress(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(one netip.Addr) bool { return slices.Contains(b, one) })
}

func (m *matcher) addUnclear(format string, a ...any) {
	m.unclear = append(m.unclear, fmt.Sprintf(format, a...))
}

func (m *matcher) pairUp(machine *machineFacts, node *nodeFacts, by pairingMethod) {
	machine.node, node.machine, machine.method = node, machine, by
}

// pairByIdentity pairs each node with the machine that the node's provider ID or external ID names.
func (m *matcher) pairByIdentity() {
	byIdentity := map[string]*machineFacts{}
	for _, machine := range m.machines {
		if other := byIdentity[machine.identity]; machine.identity != "" && other != nil {
			m.addUnclear("the pool lists %s and %s, which are the same machine (%s)", other.ID, machine.ID, machine.identity)
			continue
		}
		byIdentity[machine.identity] = machine
	}
	byID := map[string]*machineFacts{}
	for _, machine := range m.machines {
		byID[machine.ID] = machine
	}
	for _, node := range m.nodes {
		machine, by := byIdentity[node.identity], byProviderID
		if node.identity == "" {
			machine = cmp.Or(byID[node.Spec.ProviderID], byID[trimScheme(node.Spec.ProviderID)])
		}
		if machine == nil && node.identity == "" {
			machine, by = byID[node.Spec.DoNotUseExternalID], byExternalID
		}
		switch {
		case machine == nil:
		case machine.node != nil:
			m.addUnclear("nodes %s and %s both claim to be machine %s", machine.node.Name, node.Name, machine.ID)
		default:
			m.pairUp(machine, node, by)
		}
	}
}

// trimScheme removes the prefix that names the cloud, for example hcloud://, from a provider ID.
func trimScheme(providerID string) string {
	_, rest, _ := strings.Cut(providerID, "://")
	return strings.TrimLeft(rest, "/")
}

// recordContradictions reports each node that has the provider ID of one machine and the address of another.
func (m *matcher) recordContradictions() {
	for _, node := range m.nodes {
		for _, a := range node.addresses {
			for _, machine := range m.byAddress[a] {
				if node.machine != nil && node.machine != machine {
					m.addUnclear("node %s claims to be machine %s but has the address %s of machine %s", node.Name, node.machine.ID, a, machine.ID)
				}
				if node.machine == nil && node.identity != "" && machine.identity != "" && machine.node == nil {
					m.addUnclear("node %s claims to be %s but has the address %s of machine %s (%s)", node.Name, node.identity, a, machine.ID,
						machine.identity)
				}
			}
		}
	}
}

// pairUniqueMatches pairs machines and nodes that have no partner yet, if fits is true for them. At least one of the
// two must have no identity. If a machine or node has several matches, it reports this in unclear and does not pair
// them.
func (m *matcher) pairUniqueMatches(by pairingMethod, fits func(*machineFacts, *nodeFacts) bool) {
	matches := map[*machineFacts][]*nodeFacts{}
	of := map[*nodeFacts][]*machineFacts{}
	for _, machine := range m.machines {
		for _, node := range m.nodes {
			if machine.node == nil && node.machine == nil && (machine.identity == "" || node.identity == "") && fits(machine, node) {
				matches[machine] = append(matches[machine], node)
				of[node] = append(of[node], machine)
			}
		}
	}
	for _, machine := range m.machines {
		found := matches[machine]
		switch {
		case len(found) == 0:
		case len(found) > 1:
			m.addUnclear("by %s, machine %s is node %s or node %s", by, machine.ID, found[0].Name, found[1].Name)
		case len(of[found[0]]) > 1:
			m.addUnclear("by %s, node %s is machine %s or machine %s", by, found[0].Name, of[found[0]][0].ID, of[found[0]][1].ID)
		default:
			m.pairUp(machine, found[0], by)
		}
	}
}

func (m *matcher) toPairing() Pairing {
	slices.Sort(m.unclear)
	out := Pairing{Unclear: slices.Compact(m.unclear)}
	for _, machine := range m.machines {
		member := Member{Machine: machine.Machine}
		if machine.node != nil {
			member.Node, member.PairedBy = machine.node.Node, machine.method
			member.ProviderID, member.Unconfirmed = cmp.Or(member.Node.Spec.ProviderID, machine.identity), explainUnconfirmed(machine)
			if !machine.hasName(member.Node.Name) {
				member.OtherName = machine.describeOtherName()
			}
		} else {
			member.Doubt = m.explainPossibleNode(machine)
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// explainUnconfirmed returns why the cloud could not confirm that the machine belongs to its node. It returns "" if the
// cloud can confirm it.
func explainUnconfirmed(machine *machineFacts) string {
	node := machine.node
	switch {
	case node.Spec.ProviderID == "" && machine.identity == "":
		return "neither the node nor its machine " + machine.ID + " has a provider ID that a cloud knows"
	case node.Spec.ProviderID != "" && machine.identity == "":
		return fmt.Sprintf("the node's provider ID %.200q does not identify its machine %s, so its cloud cannot confirm the machine",
			node.Spec.ProviderID, machine.ID)
	case node.Spec.ProviderID != "" && machine.identity != node.identity:
		return fmt.Sprintf("the node's provider ID is %.200q, but its machine %s has %s, so its cloud cannot confirm the machine",
			node.Spec.ProviderID, machine.ID, machine.identity)
	case node.Spec.ProviderID == "" && !machine.hasName(node.Name): // a common ID is enough
		return machine.describeOtherName() + ", so its cloud cannot confirm the machine"
	}
	return ""
}

func (m *machineFacts) describeOtherName() string {
	return fmt.Sprintf("its machine %s has the name %q and the computer name %q: neither is the node's name", m.ID, m.name, m.computerName)
}

// explainPossibleNode returns why an unpaired node may belong to this machine, which has no node. It returns "" if no
// node can. Only a provider ID proves that a node belongs to another machine. A different address does not, because the
// node may use a network that the pool does not list (invariant I7: unknown is not gone).
func (m *matcher) explainPossibleNode(machine *machineFacts) string {
	onlyRequested := machine.State == api.Requested && machine.identity == ""
	for _, node := range m.nodes {
		switch {
		case node.machine != nil:
		case onlyRequested && !mayBeCreatedAfter(node, machine):
		case onlyRequested: // the cloud may have launched it since the observation
			return fmt.Sprintf("node %s, which was created after the request for it, may belong to it", node.Name)
		case machine.identity != "" && node.identity != "":
		case machine.identity != "" && m.ids.IsOfOtherCloud(machine.identity, node.Spec.ProviderID):
		case node.Spec.ProviderID == "":
			return fmt.Sprintf("node %s, which has no provider ID, may belong to it", node.Name)
		case node.identity == "":
			return fmt.Sprintf("node %s, which has the provider ID %.200q of no known cloud, may belong to it", node.Name, node.Spec.ProviderID)
		default:
			return fmt.Sprintf("node %s, which claims to be %s, may belong to it", node.Name, node.identity)
		}
	}
	return ""
}

// clockSkew is the largest difference that is assumed between the clocks of a pool's server and of the API server.
const clockSkew = time.Minute

// mayBeCreatedAfter reports whether the node may have been created after the machine was requested. It returns true if
// the time of the request is unknown.
func mayBeCreatedAfter(node *nodeFacts, machine *machineFacts) bool {
	return machine.RequestTime == nil || node.CreationTimestamp.After(machine.RequestTime.Add(-clockSkew))
}
