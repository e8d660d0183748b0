// Package startqueue runs the AWS queue mode. It is apart from package start, so that slipway-agent does not link the AWS
// SDK.
package startqueue

import (
	"context"
	"errors"
	"io"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// RunQueue runs the queue mode alone until ctx ends: one agent for each node with a notice in the queue. c has the
// policy, the taint, the labels and the notifications of all agents; its NodeName is empty. It returns the error of a
// failed start.
func RunQueue(ctx context.Context, c config.Agent, q queue.Config, x start.AgentOptions, stderr io.Writer) error {
	return errors.New("not implemented")
}
