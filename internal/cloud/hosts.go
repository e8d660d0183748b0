package cloud

import (
	"fmt"
	"strings"
)

// Host is what a Node says of the machine that it is on.
type Host struct {
	// Name is the Node's.
	Name string
	// ProviderID and SystemUUID are those of its spec and of its status.nodeInfo; empty when it does not say.
	ProviderID, SystemUUID string
}

// Hosts finds the Nodes of machines. It may be used concurrently.
type Hosts struct {
	byID, byUUID, byName map[string]string
	unanswered           error
}

// NewHosts makes the Hosts of some Nodes, whose provider IDs are spelt as [Provider.Normalize] does. An ID that is another
// cloud's speaks for no machine.
func NewHosts(normalize func(providerID string) (string, error), nodes []Host) *Hosts {
	h := &Hosts{byID: map[string]string{}, byUUID: map[string]string{}, byName: map[string]string{}}
	for _, n := range nodes {
		h.byName[firstLabel(n.Name)] = n.Name
		if n.SystemUUID != "" {
			h.byUUID[strings.ToLower(n.SystemUUID)] = n.Name
		}
		if n.ProviderID == "" {
			continue
		}
		switch id, err := normalize(n.ProviderID); {
		case err == nil:
			h.byID[id] = n.Name
		case IsUnanswered(err):
			h.unanswered = fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return h
}

// Of gives the name of a Node of which anything says that it is on a machine: its provider ID, its system's UUID at the end
// of the machine's, or its name, which may have another domain than the machine's or none. It is empty when nothing does.
// More than one may be meant: that a machine has a Node is a reason to keep it, and none to take it for that Node's (I4).
//
// An [*UnansweredError] says that the machine may have a Node for all that is known.
func (h *Hosts) Of(m Instance) (string, error) {
	if node, ok := h.byID[m.ProviderID]; ok {
		return node, nil
	}
	if node, ok := h.byUUID[strings.ToLower(m.ProviderID[strings.LastIndexByte(m.ProviderID, '/')+1:])]; ok {
		return node, nil
	}
	for _, name := range []string{m.ComputerName, m.Name} {
		if node, ok := h.byName[firstLabel(name)]; ok && name != "" {
			return node, nil
		}
	}
	return "", h.unanswered
}

// firstLabel is a host name without its domain. Clouds and kubelets do not agree on the domain, nor on the case.
func firstLabel(name string) string {
	label, _, _ := strings.Cut(strings.ToLower(name), ".")
	return label
}
