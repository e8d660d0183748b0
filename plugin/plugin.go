// Package plugin makes a cloud or hypervisor known to Slipway that Slipway itself does not know. A plugin is a program of
// its own, in a few lines:
//
//	func main() { plugin.Serve(open) }
//
//	func open(c plugin.Config) (plugin.Provider, error) {
//		var mine struct{ Endpoint string }
//		if err := c.Decode(&mine); err != nil {
//			return nil, err
//		}
//		return &provider{mine.Endpoint}, nil
//	}
//
// where provider has the methods of [Provider]. The program is put into Slipway's plugin directory under the name of its
// CloudType. docs/writing-a-plugin.md leads through it, examples/directory is a whole one, and the package plugintest,
// or `slipway plugin test`, checks it.
//
// The rule above all others: unknown is not gone. Slipway deletes, and forgets, what a provider says is not found. So
// [NotFoundError] is for the cloud's own word, asked with a working credential, and for nothing else: not for a timeout,
// not for a 404 of some proxy, not for an empty cache. A list that could not be read to its end is an error and never a
// shorter list.
package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/advice"
)

// Provider is one cloud: what a plugin has to be. Every call has a context that ends when Slipway does not wait for the
// answer any more. A method that takes a provider ID is given one as Normalize spells it.
type Provider = cloud.Provider

// What a provider speaks of.
type (
	// Instance is one machine as its cloud knows it.
	Instance = cloud.Instance
	// State is how far a machine's life has come.
	State = cloud.State
	// Group is a set of machines that the cloud counts.
	Group = cloud.Group
	// Template is one kind of machine that a group can have more of.
	Template = cloud.Template
	// Shape is what a Node on such a machine will be like.
	Shape = cloud.Shape
	// Order is a request for machines.
	Order = cloud.Order
	// Operation is a change that the cloud carries out in its own time. Another process of the plugin has to find it again
	// by this value.
	Operation = cloud.Operation
	// Status is what became of an operation.
	Status = cloud.Status
)

// The states of a machine.
const (
	Pending  = cloud.Pending
	Running  = cloud.Running
	Stopped  = cloud.Stopped
	Deleting = cloud.Deleting
	Failed   = cloud.Failed
	Unknown  = cloud.Unknown
)

// The errors that mean something to Slipway. They may be wrapped. Any other is one that may pass.
type (
	// NotFoundError is the cloud's own word that something does not exist; its Kind is "instance" or "group".
	NotFoundError = cloud.NotFoundError
	// ThrottledError is the cloud's wish to be left alone for a while.
	ThrottledError = cloud.ThrottledError
	// RefusedError is the cloud's no, which does not change by asking again.
	RefusedError = cloud.RefusedError
	// Refusal is the reason of a RefusedError.
	Refusal = cloud.Refusal
)

// The reasons of a RefusedError.
const (
	NoRight    = cloud.NoRight
	NoQuota    = cloud.NoQuota
	NoCapacity = cloud.NoCapacity
	AtLimit    = cloud.AtLimit
	Protected  = cloud.Protected
	Invalid    = cloud.Invalid
)

// What an analyzer answers with.
type (
	// Wish is one thing that an analyzer wants done: Grow or Retire.
	Wish = advice.Wish
	// Grow wishes for machines.
	Grow = advice.Grow
	// Retire wishes that a node leaves.
	Retire = advice.Retire
)

// ModifyEventAnalyzer is what a Provider may be too: it is shown each pod that was created or has changed, and answers
// with what it wants done. It does nothing itself; Slipway does what the limits of the group and the cluster allow.
type ModifyEventAnalyzer interface {
	ModifyEventAnalyzer(ctx context.Context, pod *corev1.Pod) ([]Wish, error)
}

// DeleteEventAnalyzer is the same for each pod that was deleted.
type DeleteEventAnalyzer interface {
	DeleteEventAnalyzer(ctx context.Context, pod *corev1.Pod) ([]Wish, error)
}

// Config is what Slipway's configuration says about the plugin.
type Config struct {
	// Name is the one that NodeGroups give the cloud in spec.cloud.provider.
	Name string
	// JSON is the plugin's own part, an object.
	JSON json.RawMessage
}

// Decode reads the plugin's own part. A field that into does not have is an error.
func (c Config) Decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(c.JSON))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// OpenFunc makes the provider. It must not need the cloud, only check the configuration: a cloud that does not answer is
// told by the calls that need it. An error refuses the configuration. Where the provider is a [ModifyEventAnalyzer], a
// [DeleteEventAnalyzer] or an io.Closer, it is used as such.
type OpenFunc func(Config) (Provider, error)
