// Package cloudtest has fake clouds for the tests of several packages.
package cloudtest

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// HangingProvider is a fake cloud that never responds. Its calls return when their context ends. Only Group and
// Instance are implemented.
type HangingProvider struct{ cloud.Provider }

// Name implements cloud.Provider.
func (HangingProvider) Name() string { return "hung" }

// Normalize implements cloud.Provider.
func (HangingProvider) Normalize(id string) (string, error) { return id, nil }

// Instance implements cloud.Provider.
func (HangingProvider) Instance(ctx context.Context, _ string) (cloud.Instance, error) {
	<-ctx.Done()
	return cloud.Instance{}, ctx.Err()
}

// Group implements cloud.Provider.
func (HangingProvider) Group(ctx context.Context, _ string) (cloud.Group, error) {
	<-ctx.Done()
	return cloud.Group{}, ctx.Err()
}
