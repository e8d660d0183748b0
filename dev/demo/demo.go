// Package demo tells what Slipway is for, in a minute and a half: on a real control plane, with an emulated Azure that
// announces the end of machines and the real agent on each node. It believes nothing that an agent says of itself: each
// step is checked against the API server, and against the emulator's ledger of what became of every pod.
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

// Options say where and how the story is told.
type Options struct {
	Out io.Writer
	// Version is the Kubernetes minor version, as controlplane.Options has it.
	Version string
	// Cloud is where the machines of the pods come from that come and go: EmulatedAzure or RealOpenStack.
	Cloud string
	// Keep leaves everything running in Dir, to be stopped by testbed.Down.
	Keep bool
	// Dir is where a control plane that is kept has its files. Otherwise it is temporary.
	Dir string
	// Program is slipway-dev, which runs the emulator of what is kept.
	Program string
}

const (
	// linger keeps an event listed for longer than the agents' pause between two looks, as the real service does.
	linger = 2 * time.Second
	// outage is how long a machine is away in a reboot. A real one takes a minute or more.
	outage = 4 * time.Second
	// setupTimeout bounds everything before the story; it takes seconds.
	setupTimeout = 3 * time.Minute
)

// Run tells the story. It returns an error when a step did not go as it should, which has been told then, or when the
// story could not be told.
func Run(ctx context.Context, o Options) (err error) {
	var machines crowdCloud = emulated{}
	switch o.Cloud {
	case EmulatedAzure:
	case RealOpenStack:
		started, err := startOpenStack(ctx, o.Out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, started.stop()) }()
		machines = started
	default:
		return fmt.Errorf("demo: CLOUD is %q: want %s, or nothing for the emulated cloud", o.Cloud, RealOpenStack)
	}
	begun := time.Now()
	kept := false
	defer func() {
		if o.Keep && !kept {
			err = errors.Join(err, removed(testbed.Down(o.Dir)))
		}
	}()
	t, err := testbed.Start(ctx, testbed.Options{
		Cluster: controlplane.Options{
			Version: o.Version, Dir: o.Dir, Detached: o.Keep, Progress: &compiling{to: o.Out},
		},
		Azure: azure.Options{Linger: linger, Outage: outage}, ARM: azure.ARMOptions{DeleteTime: deletion},
	})
	if err != nil {
		return err
	}
	defer func() {
		if !kept {
			err = errors.Join(err, t.Stop())
		}
	}()
	s, err := prepare(ctx, t)
	if err != nil {
		return err
	}
	s.crowd = machines
	defer func() { err = errors.Join(err, s.hook.server.Close()) }()
	s.introduce(o.Out, time.Since(begun))
	steps := s.story()
	passed := tell(ctx, o.Out, steps)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if o.Keep {
		s.stopManagers() // the Azure that they delete machines in ends with this process
		if err := t.HandOver(ctx, o.Program); err != nil {
			return err
		}
		kept = true
		s.explainKept(o.Out)
	}
	fmt.Fprintf(o.Out, "demo: %d of %d steps passed\n", passed, len(steps))
	if passed < len(steps) {
		return fmt.Errorf("demo: %d of %d steps failed", len(steps)-passed, len(steps))
	}
	return nil
}

// removed takes it that nothing was there to be removed for a success.
func removed(err error) error {
	if errors.Is(err, controlplane.ErrNotFound) {
		return nil
	}
	return err
}

// compiling says once that the control plane has to be compiled, and what that costs.
type compiling struct {
	to   io.Writer
	said bool
}

func (c *compiling) Write(p []byte) (int, error) {
	if !c.said {
		c.said = true
		fmt.Fprintln(c.to, "The control plane is compiled first, from Go modules: about 4 minutes on two cores, and only this once …")
	}
	return len(p), nil
}

func (s *stage) introduce(out io.Writer, took time.Duration) {
	fmt.Fprint(out, wrapped("", fmt.Sprintf("Kubernetes %s is up after %.1f s: its etcd, API server, controllers and scheduler "+
		"are real, the machines of its %d nodes are played. Azure, which announces what will happen to machines and deletes them, "+
		"is emulated. A real slipway-agent guards each of %d nodes; the others are a pool of two real slipway managers. Every step is checked against the API server and the emulator's ledger of "+
		"what became of each pod. The steps run side by side and are told in order; seconds count from the announcement.",
		s.Version(), took.Seconds(), len(s.agents)+ciMachines, len(s.agents))))
}

func (s *stage) explainKept(out io.Writer) {
	fmt.Fprintf(out, "Everything is left running, the agents too:\n"+
		"  export KUBECONFIG=%s\n%s"+
		"`make down` stops it all and removes %s.\n\n", s.Kubeconfig(), testbed.Announcing(s.ControlURL(), spot.Resource(3)),
		filepath.Clean(s.Dir()))
}
