// Package plugin is for authors of Slipway plugins. A plugin is a program that adds support for a cloud or hypervisor:
//
//	func main() { plugin.Serve(open) }
//	func open(c plugin.Config) (plugin.Provider, error) {
//		var mine struct{ Endpoint string }
//		if err := c.Decode(&mine); err != nil {
//			return nil, err
//		}
//		return &provider{mine.Endpoint}, nil
//	}
//
// Here provider implements [Provider]. Install the program in Slipway's plugin directory under the name of its
// CloudType. docs/writing-a-plugin.md explains the steps, and examples/directory is a complete plugin. The package
// plugintest and `slipway plugin test` check a plugin.
//
// The most important rule: unknown is not gone. If a provider returns "not found", Slipway deletes and forgets the
// object. Return [NotFoundError] only if the cloud itself said so, with a valid credential. Never return it for a
// timeout, a 404 of a proxy, or an empty cache. A list that was not read to its end is an error, never a shorter list.
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

// Provider is the interface that a plugin implements for its cloud. The context of a call ends when Slipway stops
// waiting for the response. Provider IDs in arguments have the form that Normalize returns.
type Provider = cloud.Provider

// The types that the methods of Provider use.
type (
	// Instance is a virtual machine as its cloud describes it.
	Instance = cloud.Instance
	// State is the phase of an instance's life.
	State = cloud.State
	// Group is a set of instances that the cloud counts.
	Group = cloud.Group
	// Template is a kind of instance that a group can launch.
	Template = cloud.Template
	// NodeShape describes the Node of a new instance.
	NodeShape = cloud.NodeShape
	// LaunchRequest is a request for new instances.
	LaunchRequest = cloud.LaunchRequest
	// Operation is a change that the cloud carries out asynchronously. Another process of the plugin must be able to
	// follow it.
	Operation = cloud.Operation
	// OperationStatus is the progress of an operation.
	OperationStatus = cloud.OperationStatus
)

// The states of an instance.
const (
	Pending  = cloud.Pending
	Running  = cloud.Running
	Stopped  = cloud.Stopped
	Deleting = cloud.Deleting
	Failed   = cloud.Failed
	Unknown  = cloud.Unknown
)

// The errors that Slipway distinguishes. A provider may wrap them. Every other error counts as temporary.
type (
	// NotFoundError means that the cloud itself said that an object does not exist. Kind is "instance" or "group".
	NotFoundError = cloud.NotFoundError
	// ThrottledError means that the cloud asks to wait before the next request.
	ThrottledError = cloud.ThrottledError
	// RefusedError means that the cloud rejected a request. A retry does not help.
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

// The recommendations that an analyzer can return.
type (
	// Recommendation is one recommendation: Grow or Retire.
	Recommendation = advice.Recommendation
	// Grow recommends new instances.
	Grow = advice.Grow
	// Retire recommends to retire a node.
	Retire = advice.Retire
)

// ModifyEventAnalyzer is an optional interface of a Provider. Slipway calls it for each created or changed pod, and
// follows the returned recommendations. The limits of the group and the cluster still apply.
type ModifyEventAnalyzer interface {
	ModifyEventAnalyzer(ctx context.Context, pod *corev1.Pod) ([]Recommendation, error)
}

// DeleteEventAnalyzer is an optional interface of a Provider. Slipway calls it for each deleted pod, and follows the
// returned recommendations. The limits of the group and the cluster still apply.
type DeleteEventAnalyzer interface {
	DeleteEventAnalyzer(ctx context.Context, pod *corev1.Pod) ([]Recommendation, error)
}

// Config is the plugin's entry in Slipway's configuration.
type Config struct {
	// Name is the value of NodeGroup spec.cloud.provider.
	Name string
	// JSON is the plugin's own configuration, an object.
	JSON json.RawMessage
}

// Decode decodes the plugin's own configuration into a value. An unknown field is an error.
func (c Config) Decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(c.JSON))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// OpenFunc creates the provider. It validates the configuration and must not access the cloud. A cloud that does not
// respond is an error of later calls. An error of OpenFunc means that the plugin refuses the configuration. If the
// provider implements [ModifyEventAnalyzer], [DeleteEventAnalyzer] or io.Closer, Slipway uses these interfaces.
type OpenFunc func(Config) (Provider, error)
