// Package matching decides which machine of a pool is which Node, and which machines go so that the pool comes to a size. It asks
// neither a cloud nor the API server.
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

// Pairing says which machine is which node.
type Pairing struct {
	// Members are the machines that have not ended, in the order of the pool.
	Members []Member
	// Unclear says what contradicts itself. As long as anything does, no machine is taken away.
	Unclear []string
}

// Member is a machine, and its node if it has one.
type Member struct {
	Machine *api.Machine
	Node    *corev1.Node
	// By is how they were paired.
	By pairedBy
	// ProviderID is what the retirement of the node has for its machine: the node's own or, where it has none, the machine's.
	ProviderID string
	// Unconfirmed is, for a machine with a node, why its cloud could not confirm that it is the node's, so that a retirement would
	// be refused; empty when it may.
	Unconfirmed string
	// OtherName is, for a machine with a node, what is to be warned of since neither of its names is the node's; empty when one is.
	OtherName string
	// Doubt is, for a machine without a node, why one of the nodes may be it nevertheless; empty when none can.
	Doubt string
}

type pairedBy string

const (
	byProviderID pairedBy = "provider ID"
	byExternalID pairedBy = "external ID"
	byAddress    pairedBy = "address"
	byName       pairedBy = "name"
)

// Find gives the member of that machine ID; nil when there is none.
func (p *Pairing) Find(id string) *Member {
	for i := range p.Members {
		if p.Members[i].Machine.ID == id {
			return &p.Members[i]
		}
	}
	return nil
}

// FindRetirements finds the machines of retirements: by the node, and where that is gone by the provider ID.
func FindRetirements(members []Member, retirements []v1alpha1.NodeRetirement, ids Identities) map[string]*v1alpha1.NodeRetirement {
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

// HasEnded reports a machine that is gone, or on its way, or has never been.
func HasEnded(m *api.Machine, ids Identities) bool {
	return m.State.Over() && (m.State != api.Rejected || !ids.KeepsRejected())
}

// matcher is one run of pairing.
type matcher struct {
	ids       Identities
	machines  []*machineFacts
	nodes     []*nodeFacts
	byAddress map[netip.Addr][]*machineFacts
	unclear   []string
}

type machineFacts struct {
	*api.Machine
	identity  string // empty when it has none
	addresses []netip.Addr
	node      *nodeFacts
	by        pairedBy

	name, computerName string
}

// named reports that one of a machine's names is a node's.
func (m *machineFacts) named(node string) bool {
	return strings.EqualFold(m.name, node) || strings.EqualFold(m.computerName, node)
}

type nodeFacts struct {
	*corev1.Node
	identity  string // empty when its provider ID is, or cannot be read
	addresses []netip.Addr
	machine   *machineFacts
}

// Pair pairs machines with nodes: by provider ID, and where one of the two has none by address and then by name. What
// fits in more than one way is not paired, and said to be unclear.
func Pair(machines []api.Machine, nodes []*corev1.Node, ids Identities) Pairing {
	m := newMatcher(machines, nodes, ids)
	m.pairByIdentity()
	m.contradictions()
	m.pairByFallback(byAddress, func(machine *machineFacts, node *nodeFacts) bool { return meet(machine.addresses, node.addresses) })
	m.pairByFallback(byName, func(machine *machineFacts, node *nodeFacts) bool { return machine.named(node.Name) })
	return m.pairing()
}

func newMatcher(machines []api.Machine, nodes []*corev1.Node, ids Identities) *matcher {
	m := &matcher{ids: ids, byAddress: map[netip.Addr][]*machineFacts{}}
	for i := range machines {
		machine := &machines[i]
		if machine.State == api.Terminated || machine.State == api.Rejected && !ids.KeepsRejected() {
			continue
		}
		f := &machineFacts{Machine: machine, addresses: addresses(slices.Concat(machine.PrivateIPs, machine.PublicIPs))}
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
		f.addresses = addresses(texts)
		m.nodes = append(m.nodes, f)
	}
	slices.SortFunc(m.nodes, func(a, b *nodeFacts) int { return cmp.Compare(a.Name, b.Name) })
	return m
}

// addresses reads those that tell machines apart.
func addresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err == nil && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			all = append(all, a.Unmap())
		}
	}
	return all
}

func meet(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(one netip.Addr) bool { return slices.Contains(b, one) })
}

func (m *matcher) say(format string, a ...any) {
	m.unclear = append(m.unclear, fmt.Sprintf(format, a...))
}

func (m *matcher) join(machine *machineFacts, node *nodeFacts, by pairedBy) {
	machine.node, node.machine, machine.by = node, machine, by
}

// pairByIdentity pairs those that say of themselves that they are one.
func (m *matcher) pairByIdentity() {
	byIdentity := map[string]*machineFacts{}
	for _, machine := range m.machines {
		if other := byIdentity[machine.identity]; machine.identity != "" && other != nil {
			m.say("the pool lists %s and %s, which are one machine (%s)", other.ID, machine.ID, machine.identity)
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
			machine = cmp.Or(byID[node.Spec.ProviderID], byID[withoutScheme(node.Spec.ProviderID)])
		}
		if machine == nil && node.identity == "" {
			machine, by = byID[node.Spec.DoNotUseExternalID], byExternalID
		}
		switch {
		case machine == nil:
		case machine.node != nil:
			m.say("the nodes %s and %s both say that they are machine %s", machine.node.Name, node.Name, machine.ID)
		default:
			m.join(machine, node, by)
		}
	}
}

// withoutScheme is a provider ID without the prefix of its cloud, such as hcloud://.
func withoutScheme(providerID string) string {
	_, rest, _ := strings.Cut(providerID, "://")
	return strings.TrimLeft(rest, "/")
}

// contradictions finds nodes that say they are one machine, and have the address of another.
func (m *matcher) contradictions() {
	for _, node := range m.nodes {
		for _, a := range node.addresses {
			for _, machine := range m.byAddress[a] {
				if node.machine != nil && node.machine != machine {
					m.say("node %s says that it is machine %s, and has the address %s of machine %s", node.Name, node.machine.ID, a, machine.ID)
				}
				if node.machine == nil && node.identity != "" && machine.identity != "" && machine.node == nil {
					m.say("node %s says that it is %s, and has the address %s of machine %s (%s)", node.Name, node.identity, a, machine.ID,
						machine.identity)
				}
			}
		}
	}
}

// pairByFallback pairs what is left, where one of the two does not say which machine it is.
func (m *matcher) pairByFallback(by pairedBy, fits func(*machineFacts, *nodeFacts) bool) {
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
			m.say("by %s machine %s is node %s or node %s", by, machine.ID, found[0].Name, found[1].Name)
		case len(of[found[0]]) > 1:
			m.say("by %s node %s is machine %s or machine %s", by, found[0].Name, of[found[0]][0].ID, of[found[0]][1].ID)
		default:
			m.join(machine, found[0], by)
		}
	}
}

func (m *matcher) pairing() Pairing {
	slices.Sort(m.unclear)
	out := Pairing{Unclear: slices.Compact(m.unclear)}
	for _, machine := range m.machines {
		member := Member{Machine: machine.Machine}
		if machine.node != nil {
			member.Node, member.By = machine.node.Node, machine.by
			member.ProviderID, member.Unconfirmed = cmp.Or(member.Node.Spec.ProviderID, machine.identity), unconfirmed(machine)
			if !machine.named(member.Node.Name) {
				member.OtherName = machine.otherName()
			}
		} else {
			member.Doubt = m.doubt(machine)
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// unconfirmed says why the cloud could not confirm that a machine is the node's that it is paired with.
func unconfirmed(machine *machineFacts) string {
	node := machine.node
	switch {
	case node.Spec.ProviderID == "" && machine.identity == "":
		return "neither the node nor its machine " + machine.ID + " says by which provider ID a cloud knows it"
	case node.Spec.ProviderID != "" && machine.identity == "":
		return fmt.Sprintf("the node's provider ID is %.200q, by which its machine %s is not known, so that its cloud cannot confirm it",
			node.Spec.ProviderID, machine.ID)
	case node.Spec.ProviderID != "" && machine.identity != node.identity:
		return fmt.Sprintf("the node's provider ID is %.200q, and that of its machine %s is %s, so that its cloud cannot confirm it",
			node.Spec.ProviderID, machine.ID, machine.identity)
	case node.Spec.ProviderID == "" && !machine.named(node.Name): // an ID that both have is enough
		return machine.otherName() + ", so that its cloud cannot confirm it"
	}
	return ""
}

func (m *machineFacts) otherName() string {
	return fmt.Sprintf("its machine %s has the name %q and the computer name %q, neither of which is the node's name", m.ID, m.name, m.computerName)
}

// doubt says why a machine without a node may be one of the nodes nevertheless. A node is another machine only by what its
// provider ID says: its address may be of a network that the pool does not list (I7).
func (m *matcher) doubt(machine *machineFacts) string {
	unmet := machine.State == api.Requested && machine.identity == ""
	for _, node := range m.nodes {
		switch {
		case node.machine != nil:
		case unmet && !younger(node, machine):
		case unmet: // its cloud may have met it since it was observed
			return fmt.Sprintf("node %s, which has come since it was asked for, may be it", node.Name)
		case machine.identity != "" && node.identity != "":
		case machine.identity != "" && m.ids.Elsewhere(machine.identity, node.Spec.ProviderID):
		case node.Spec.ProviderID == "":
			return fmt.Sprintf("node %s, which has no provider ID, may be it", node.Name)
		case node.identity == "":
			return fmt.Sprintf("node %s, whose provider ID %.200q does not say which machine it is, may be it", node.Name, node.Spec.ProviderID)
		default:
			return fmt.Sprintf("node %s, which says that it is %s, may be it", node.Name, node.identity)
		}
	}
	return ""
}

// clockSkew is by how much the clocks of a pool's server and of the API server are taken to differ at the most.
const clockSkew = time.Minute

// younger reports that a node may have come after a machine was asked for. When that was may be unknown.
func younger(node *nodeFacts, machine *machineFacts) bool {
	return machine.RequestTime == nil || node.CreationTimestamp.After(machine.RequestTime.Add(-clockSkew))
}
