package azure

import (
	"context"
	"time"
)

// Machines carries out what an event does to the machines it names. A resource is a machine's Azure resource name,
// such as "aks-spot-12345678-vmss_3". Both calls are idempotent, are made for several machines at once, and return when
// the change is in effect; an error means that it is not.
type Machines interface {
	// PowerOff takes the machine down without warning to what runs on it.
	PowerOff(ctx context.Context, resource string) error
	// PowerOn brings it back.
	PowerOn(ctx context.Context, resource string) error
}

// NodePower is Machines in terms of Kubernetes node names, as a control plane without machines offers it.
// Nodes.Machines makes Machines of it.
type NodePower interface {
	PowerOff(ctx context.Context, node string) error
	PowerOn(ctx context.Context, node string) error
}

// PowerChange is one call to Machines and what came of it.
type PowerChange struct {
	Resource string `json:"resource"`
	On       bool   `json:"on"`
	// At is when the call returned, from when on the change is in effect.
	At time.Time `json:"at"`
	// Error is why the machine stayed as it was, or empty.
	Error string `json:"error,omitempty"`
}
