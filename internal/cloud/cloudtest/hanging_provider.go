// Package cloudtest has fake clouds for the tests of several packages.
package cloudtest

import (
	"context"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Hung is a cloud that does not respond until the call's context ends. It supports only Group and Instance.
type Hung struct{ cloud.Provider }

// Name implements cloud.Provider.
func (Hung) Name() string { return "hung" }

// Normalize implements cloud.Provider.
func (Hung) Normalize(id string) (string, error) { return id, nil }

// Instance implements cloud.Provider.
func (Hung) Instance(ctx context.Context, _ string) (cloud.Instance, error) {
	<-ctx.Done()
	return cloud.Instance{}, ctx.Err()
}

// Group implements cloud.Provider.
func (Hung) Group(ctx context.Context, _ string) (cloud.Group, error) {
	<-ctx.Done()
	return cloud.Group{}, ctx.Err()
}
