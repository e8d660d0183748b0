package demo

import (
	"context"
	"errors"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// Recorder records a view of the cluster. It calls runStep when the view is ready, and returns when the recording is complete.
// node is the node that receives the notice.
type Recorder func(ctx context.Context, kubeconfig, node string, runStep func() error) error

// RecordSpotNotice prepares the cluster of the demo, and runs the step with a Spot notice while record records.
func RecordSpotNotice(ctx context.Context, o Options, record Recorder) (err error) {
	t, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{Version: o.Version, Progress: &compileNotice{to: o.Out}},
		Azure:   azure.Options{StartedAfterImpact: startedAfterImpact, Outage: outage}, ARM: azure.ARMOptions{DeleteTime: deletionTime},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop()) }()
	s, err := prepareStage(ctx, t, azureNotices{t})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.hook.server.Close()) }()
	return record(ctx, s.Kubeconfig(), preempted.node(), func() error {
		output := newStepOutput()
		go func() {
			for range output.lines {
			}
		}()
		defer close(output.lines)
		_, err := s.runSpotNotice(ctx, output)
		return err
	})
}
