// Package demo shows what Slipway does in about a minute. It runs a real control plane, an emulated cloud that
// announces the end of machines, and the real agent on each node. It does not trust the agents' reports. Each step is
// checked against the API server and against a ledger of all pods.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// Options configures RunDemo.
type Options struct {
	Out io.Writer
	// Version is the Kubernetes minor version, see controlplane.Options.
	Version string
	// Cloud is the cloud of all steps: EmulatedAzure, EmulatedAWS or EmulatedGoogle. RealOpenStack is EmulatedAzure with
	// OpenStack in the autoscaling step.
	Cloud string
	// SkipSpot leaves out the step with the Spot notice, which takes longest.
	SkipSpot bool
	// Keep leaves everything running in Dir. testbed.Down stops it. It needs EmulatedAzure or RealOpenStack.
	Keep bool
	// Dir is the directory of a control plane that is kept. Otherwise it is temporary.
	Dir string
	// Program is the path of slipway-dev, which runs the emulator if Keep is set.
	Program string
}

const (
	// startedAfterImpact keeps an event listed longer than the agents' polling interval, as the real service does.
	startedAfterImpact = 2 * time.Second
	// outage is the downtime of a machine in a reboot. A real reboot takes a minute or more.
	outage = 4 * time.Second
	// setupTimeout limits the setup, which takes seconds.
	setupTimeout = 3 * time.Minute
)

// RunDemo runs the demo and prints what happens. It returns an error if the setup failed, or if a step failed. It
// has already printed the error of a failed step.
func RunDemo(ctx context.Context, o Options) (err error) {
	var machines crowdCloud = emulatedCloud{}
	switch o.Cloud {
	case EmulatedAzure:
	case EmulatedAWS, EmulatedGoogle:
		if o.Keep {
			return fmt.Errorf("demo: CLOUD=%s with KEEP: this emulated cloud ends with the demo; set only one of them", o.Cloud)
		}
	case RealOpenStack:
		started, err := startOpenStack(ctx, o.Out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, started.stop()) }()
		machines = started
	default:
		return fmt.Errorf("demo: CLOUD is %q: must be %s, %s or %s, or empty for the emulated Azure", o.Cloud, RealOpenStack, EmulatedAWS, EmulatedGoogle)
	}
	begun := time.Now()
	kept := false
	defer func() {
		if o.Keep && !kept {
			err = errors.Join(err, ignoreNotFound(testbed.StopDetached(o.Dir)))
		}
	}()
	t, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{
			Version: o.Version, Dir: o.Dir, Detached: o.Keep, Progress: &compileNotice{to: o.Out},
		},
		Azure: azure.Options{StartedAfterImpact: startedAfterImpact, Outage: outage}, ARM: azure.ARMOptions{DeleteTime: deletionTime},
	})
	if err != nil {
		return err
	}
	defer func() {
		if !kept {
			err = errors.Join(err, t.Stop())
		}
	}()
	c, err := newNoticeCloud(o.Cloud, t)
	if err != nil {
		return err
	}
	defer c.close()
	s, err := prepareStage(ctx, t, c)
	if err != nil {
		return err
	}
	s.crowd = machines
	defer func() { err = errors.Join(err, s.hook.server.Close()) }()
	s.printIntroduction(o.Out, time.Since(begun))
	steps := c.steps(s)
	if o.SkipSpot {
		steps = steps[1:]
	}
	passed := runStepsInParallel(ctx, o.Out, steps)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if o.Keep {
		s.stopManagers() // the Azure of the managers ends with this process
		if err := t.DetachAzure(ctx, o.Program); err != nil {
			return err
		}
		kept = true
		s.printKeptInstructions(o.Out)
	}
	fmt.Fprintf(o.Out, "demo: %d of %d steps passed\n", passed, len(steps))
	if passed < len(steps) {
		return fmt.Errorf("demo: %d of %d steps failed", len(steps)-passed, len(steps))
	}
	return nil
}

// ignoreNotFound returns nil for controlplane.ErrNotFound, because then no control plane has to be removed. It
// returns other errors unchanged.
func ignoreNotFound(err error) error {
	if errors.Is(err, controlplane.ErrNotFound) {
		return nil
	}
	return err
}

// compileNotice is a writer that prints once that the control plane is being compiled, and how long this takes.
type compileNotice struct {
	to      io.Writer
	printed bool
}

func (c *compileNotice) Write(p []byte) (int, error) {
	if !c.printed {
		c.printed = true
		fmt.Fprintln(c.to, "Compiling the control plane from Go modules: about 4 minutes on two cores, only the first time …")
	}
	return len(p), nil
}

func (s *stage) printIntroduction(out io.Writer, took time.Duration) {
	fmt.Fprint(out, wrapText("", fmt.Sprintf("Kubernetes %s is up after %.1f s. Its etcd, API server, controllers and scheduler "+
		"are real; the machines of its nodes are emulated. %s Each step is checked against the API server and a ledger "+
		"of all pods. The steps run in parallel and are printed in order. Seconds count from the announcement.",
		s.Version(), took.Seconds(), s.cloud.describe(s))))
}

func (s *stage) printKeptInstructions(out io.Writer) {
	fmt.Fprintf(out, "Everything keeps running, also the agents:\n"+
		"  export KUBECONFIG=%s\n%s"+
		"`make down` stops everything and removes %s.\n\n", s.Kubeconfig(), testbed.NoticeInstructions(s.ControlURL(), spot.ResourceName(3)),
		filepath.Clean(s.Dir()))
}
