package storm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const sampleEvery = time.Second

// The consumers of processor time besides the processes of the control plane.
const (
	theAgents    = "the agents"
	theBenchmark = "this benchmark with its emulator"
)

var consumers = []string{
	controlplane.APIServer, controlplane.Etcd, controlplane.ControllerManager, controlplane.Scheduler, controlplane.Kwok,
	theAgents, theBenchmark,
}

// load measures the processor time of all processes in the measurement. The agents end with their machines. So they are
// sampled every second, and the last second of each is missing.
type load struct {
	s     *scene
	agent map[string]time.Duration // last sample by node
	begun map[string]time.Duration // initial value by consumer
	stop  context.CancelFunc
	done  chan struct{}
}

// watchLoad starts the measurement.
func (s *scene) watchLoad(ctx context.Context) *load {
	l := &load{s: s, agent: map[string]time.Duration{}, done: make(chan struct{})}
	l.look()
	l.begun = l.sum()
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.look()
			}
		}
	}()
	return l
}

// look samples the running agents.
func (l *load) look() {
	for _, node := range l.s.nodes() {
		p := l.s.Process(testbed.AgentProcess(node))
		if p == nil {
			continue
		}
		if took, err := p.CPU(); err == nil {
			l.agent[node] = took
		}
	}
}

// sum returns the total processor time by consumer.
func (l *load) sum() map[string]time.Duration {
	sum := map[string]time.Duration{}
	for _, name := range consumers {
		if p := l.s.Process(name); p != nil {
			sum[name], _ = p.CPU() // a control plane's processes live to its end
		}
	}
	sum[theBenchmark], _ = controlplane.OwnCPU()
	for _, took := range l.agent {
		sum[theAgents] += took
	}
	return sum
}

// end stops the measurement and returns the time by consumer.
func (l *load) end() map[string]time.Duration {
	l.stop()
	<-l.done
	l.look()
	taken := l.sum()
	for name, before := range l.begun {
		taken[name] -= before
	}
	return taken
}

// loadResult returns the API server's time as a result, with the others in its setup.
func loadResult(name, setup string, taken map[string]time.Duration) result.Result {
	others := make([]string, 0, len(consumers))
	for _, c := range consumers[1:] {
		others = append(others, fmt.Sprintf("%s %.1f s", c, taken[c].Seconds()))
	}
	return result.Result{
		Name: name, Value: taken[controlplane.APIServer].Seconds(), Unit: "s",
		Setup: setup + "the others: " + strings.Join(others, ", "),
	}
}
