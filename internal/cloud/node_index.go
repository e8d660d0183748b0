package cloud

import (
	"fmt"
	"strings"
)

// NodeIdentity holds the fields of a Node that show which instance runs the Node.
type NodeIdentity struct {
	// Name is the name of the Node.
	Name string
	// ProviderID is the Node's spec.providerID, SystemUUID its status.nodeInfo.systemUUID. Either may be empty.
	ProviderID, SystemUUID string
}

// NodeIndex finds the Node of an instance. It is safe for concurrent use.
type NodeIndex struct {
	byID, byUUID, byName map[string]string
	unavailable          error
}

// NewNodeIndex returns an index of nodes. It converts their provider IDs with normalize, which is [Provider.Normalize].
// A Node with a provider ID of another cloud can be found only by system UUID or by name.
func NewNodeIndex(normalize func(providerID string) (string, error), nodes []NodeIdentity) *NodeIndex {
	x := &NodeIndex{byID: map[string]string{}, byUUID: map[string]string{}, byName: map[string]string{}}
	for _, n := range nodes {
		x.byName[firstLabel(n.Name)] = n.Name
		if n.SystemUUID != "" {
			x.byUUID[strings.ToLower(n.SystemUUID)] = n.Name
		}
		if n.ProviderID == "" {
			continue
		}
		switch id, err := normalize(n.ProviderID); {
		case err == nil:
			x.byID[id] = n.Name
		case IsProviderUnavailable(err):
			x.unavailable = fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return x
}

// FindNode returns the name of a Node that matches an instance, or "" if no Node matches. It compares the provider ID,
// then the system UUID, then the host name without domain. More than one Node can match. So a match is a reason to keep
// the instance, but no proof that the instance runs this Node (I4).
//
// A [*ProviderUnavailableError] means that it is unknown whether the instance has a Node.
func (x *NodeIndex) FindNode(i Instance) (string, error) {
	if node, ok := x.byID[i.ProviderID]; ok {
		return node, nil
	}
	if node, ok := x.byUUID[strings.ToLower(i.ProviderID[strings.LastIndexByte(i.ProviderID, '/')+1:])]; ok {
		return node, nil
	}
	for _, name := range []string{i.ComputerName, i.Name} {
		if node, ok := x.byName[firstLabel(name)]; ok && name != "" {
			return node, nil
		}
	}
	return "", x.unavailable
}

// firstLabel returns a host name in lower case and without its domain. Clouds and kubelets report the same host with
// different letter case and domains.
func firstLabel(name string) string {
	label, _, _ := strings.Cut(strings.ToLower(name), ".")
	return label
}
