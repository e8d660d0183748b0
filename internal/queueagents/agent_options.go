package queueagents

import (
	"context"

	"github.com/slipway-dev/slipway/internal/agent"
	"github.com/slipway-dev/slipway/internal/cloud/aws/providerid"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// SetAgentOptions sets the options that each agent of the queue mode needs. source and slots are those of Options.NewAgent.
// acknowledges is Options.Acknowledges.
func SetAgentOptions(o *agent.Options, source *queue.Source, slots agent.DrainSlots, acknowledges bool) {
	o.ForAWSQueue, o.InstanceName = true, providerid.InstanceID
	// An agent may stop because another Node has the name now, or because another process leads. It must not wait for a drain.
	o.StopTimeout = 0
	if o.DrainSlots == nil { // otherwise a Lease limits the drains of the whole cluster
		o.DrainSlots = slots
	}
	if acknowledges {
		o.Approver = source
	}
}

// NewNodeWatcher returns Options.WatchNodes for an API server.
func NewNodeWatcher(api *kubeapi.Client) func(ctx context.Context, h kubeapi.Handler[kubeapi.Node]) {
	return func(ctx context.Context, h kubeapi.Handler[kubeapi.Node]) {
		_ = kubeapi.ListAndWatch(ctx, api, kubeapi.WatchScope{Path: []string{"api", "v1", "nodes"}}, h) // it ends with ctx
	}
}
