package azure

import (
	"context"
	"time"
)

// Machines switches the machines of events on and off. A resource is an Azure resource name, such as
// "aks-spot-12345678-vmss_3". Both methods are idempotent and may be called concurrently. They return when the
// machine is switched. After an error the machine is unchanged.
type Machines interface {
	// PowerOff switches the machine off without warning.
	PowerOff(ctx context.Context, resource string) error
	PowerOn(ctx context.Context, resource string) error
}

// NodePower switches machines on and off by the names of their Kubernetes nodes. A control plane with emulated
// machines implements it. NodeMap.NewMachines converts it to Machines.
type NodePower interface {
	PowerOff(ctx context.Context, node string) error
	PowerOn(ctx context.Context, node string) error
}

// PowerChange is one call to Machines and its result.
type PowerChange struct {
	Resource string `json:"resource"`
	On       bool   `json:"on"`
	// At is the time when the call returned and the change was in effect.
	At time.Time `json:"at"`
	// Error is the reason why the machine did not change, or empty.
	Error string `json:"error,omitempty"`
}
