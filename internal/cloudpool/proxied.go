package cloudpool

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/cloudpool/machineid"
)

// proxied is a pool that a cloudpool server keeps.
type proxied struct {
	provider *provider.Provider
	group    string
	// computerName is where a machine's metadata has its host name; empty is where its cloud has it.
	computerName string
}

var _ Backend = proxied{}

func (p proxied) Pool(ctx context.Context) (api.Pool, error) {
	c, err := p.provider.Client(ctx, p.group)
	if err != nil {
		return api.Pool{}, err
	}
	return c.Pool(ctx)
}

func (p proxied) Size(ctx context.Context) (api.Size, error) {
	c, err := p.provider.Client(ctx, p.group)
	if err != nil {
		return api.Size{}, err
	}
	return c.Size(ctx)
}

func (p proxied) SetDesiredSize(ctx context.Context, n int) error {
	return p.with(ctx, func(c *api.Client) error { return c.SetDesiredSize(ctx, n) })
}

func (p proxied) SetMembershipStatus(ctx context.Context, s api.SetMembershipStatus) error {
	return p.with(ctx, func(c *api.Client) error { return c.SetMembershipStatus(ctx, s) })
}

func (p proxied) Detach(ctx context.Context, r api.Removal) error {
	return p.with(ctx, func(c *api.Client) error { return c.Detach(ctx, r) })
}

func (p proxied) with(ctx context.Context, ask func(*api.Client) error) error {
	c, err := p.provider.Client(ctx, p.group)
	if err != nil {
		return err
	}
	return ask(c)
}

// Identity is as a machine's ID says it.
func (proxied) Identity(m *api.Machine) (string, bool) {
	id, ok := machineid.Of(m)
	if !ok {
		return "", false
	}
	return id.String(), true
}

// NodeIdentity is as the provider ID says it, in whichever account that is.
func (proxied) NodeIdentity(providerID string) (string, error) {
	id, err := machineid.Parse(providerID)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// Elsewhere implements Backend.
func (proxied) Elsewhere(identity, providerID string) bool {
	return machineid.Elsewhere(identity, providerID)
}

// Names implements Backend.
func (p proxied) Names(m *api.Machine) (name, computerName string) {
	return machineid.Name(m), machineid.ComputerName(m, p.computerName)
}

// KeepsRejected implements Backend: a server knows no machine that was rejected.
func (proxied) KeepsRejected() bool { return false }

func (p proxied) Delete(ctx context.Context, m *api.Machine) (cloud.Operation, error) {
	return p.provider.DeleteMember(ctx, p.group, m.ID)
}

func (p proxied) Provider() (cloud.Provider, string) { return p.provider, p.group }
