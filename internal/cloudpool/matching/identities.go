package matching

import (
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloud/providerid"
)

// Identities reads from a pool's machines and the cluster's nodes which machine they are.
type Identities interface {
	// Identity returns a machine's identity in the one spelling that NodeIdentity uses; false for a machine that has none yet.
	Identity(m *api.Machine) (string, bool)
	// NodeIdentity returns the identity of the machine that a node's spec.providerID names. An ID that cannot be read is an error.
	NodeIdentity(providerID string) (string, error)
	// Elsewhere reports whether a provider ID is of another known cloud than an identity.
	Elsewhere(identity, providerID string) bool
	// Names returns a machine's name and computer name as its provider has them: a retirement confirms by one of them that the
	// machine is the Node's.
	Names(m *api.Machine) (name, computerName string)
	// KeepsRejected reports whether a REJECTED machine exists in its cloud and can be deleted.
	KeepsRejected() bool
}

// ServerIdentities are the identities of the machines of a cloudpool server.
type ServerIdentities struct {
	// ComputerName is where a machine's metadata has its host name; empty is where its cloud has it.
	ComputerName string
}

// Identity implements Identities.
func (ServerIdentities) Identity(m *api.Machine) (string, bool) {
	id, ok := provider.MachineID(m)
	if !ok {
		return "", false
	}
	return id.String(), true
}

// NodeIdentity is as the provider ID says it, in whichever account that is.
func (ServerIdentities) NodeIdentity(providerID string) (string, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// Elsewhere implements Identities.
func (ServerIdentities) Elsewhere(identity, providerID string) bool {
	return providerid.Elsewhere(identity, providerID)
}

// Names implements Identities.
func (s ServerIdentities) Names(m *api.Machine) (name, computerName string) {
	return provider.MachineName(m), provider.ComputerName(m, s.ComputerName)
}

// KeepsRejected implements Identities: a server knows no machine that was rejected.
func (ServerIdentities) KeepsRejected() bool { return false }
