package matching

import (
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
)

// Identities returns for machines and for nodes an ID in the same spelling, called identity. A machine and a node with
// the same identity belong together.
type Identities interface {
	// Identity returns a machine's identity in the same spelling as NodeIdentity, or false if the machine has none yet.
	Identity(m *api.Machine) (id string, known bool)
	// NodeIdentity returns the machine identity that a node's spec.providerID names, or an error if the ID cannot be read.
	NodeIdentity(providerID string) (string, error)
	// IsOfOtherCloud reports whether a provider ID belongs to a known cloud other than the identity's.
	IsOfOtherCloud(identity, providerID string) bool
	// Names returns a machine's name and computer name as its provider has them. A retirement uses one of them to confirm
	// that the machine is the Node's.
	Names(m *api.Machine) (name, computerName string)
	// HasRejectedMachines reports whether a REJECTED machine exists in its cloud and can be deleted.
	HasRejectedMachines() bool
}

// ServerIdentities implements Identities for the machines of a cloudpool server.
type ServerIdentities struct {
	// ComputerName is the path of the host name in a machine's metadata; empty selects the path that its cloud uses.
	ComputerName string
}

// Identity implements Identities. The result is the machine's ID in its cloud.
func (ServerIdentities) Identity(m *api.Machine) (id string, known bool) {
	parsed, known := provider.ParseMachineID(m)
	if !known {
		return "", false
	}
	return parsed.String(), true
}

// NodeIdentity implements Identities. It accepts provider IDs of any cloud account.
func (ServerIdentities) NodeIdentity(providerID string) (string, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// IsOfOtherCloud implements Identities.
func (ServerIdentities) IsOfOtherCloud(identity, providerID string) bool {
	return providerid.HasOtherScheme(identity, providerID)
}

// Names implements Identities.
func (s ServerIdentities) Names(m *api.Machine) (name, computerName string) {
	return provider.MachineName(m), provider.ComputerName(m, s.ComputerName)
}

// HasRejectedMachines implements Identities. It returns false, because on a cloudpool server a rejected machine does
// not exist.
func (ServerIdentities) HasRejectedMachines() bool { return false }
