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

const sampleInterval = time.Second

// The consumers of processor time besides the processes of the control plane.
const (
	agentsConsumer    = "the agents"
	benchmarkConsumer = "this benchmark with its emulator"
)

var consumers = []string{
	controlplane.APIServer, controlplane.Etcd, controlplane.ControllerManager, controlplane.Scheduler, controlplane.Kwok,
	agentsConsumer, benchmarkConsumer,
}

// cpuLoad measures the processor time of all processes in the measurement. The agents end with their machines. So they are
// sampled every second, and the last second of each is missing.
type cpuLoad struct {
	s       *stormBench
	agent   map[string]time.Duration // last sample by node
	initial map[string]time.Duration // initial value by consumer
	stop    context.CancelFunc
	done    chan struct{}
}

// startCPULoad starts the measurement.
func (s *stormBench) startCPULoad(ctx context.Context) *cpuLoad {
	l := &cpuLoad{s: s, agent: map[string]time.Duration{}, done: make(chan struct{})}
	l.sampleAgentCPU()
	l.initial = l.totalCPUTimes()
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		ticker := time.NewTicker(sampleInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.sampleAgentCPU()
			}
		}
	}()
	return l
}

// sampleAgentCPU samples the running agents.
func (l *cpuLoad) sampleAgentCPU() {
	for _, node := range l.s.allNodes() {
		p := l.s.Process(testbed.AgentProcessName(node))
		if p == nil {
			continue
		}
		if took, err := p.CPUTime(); err == nil {
			l.agent[node] = took
		}
	}
}

// totalCPUTimes returns the total processor time by consumer.
func (l *cpuLoad) totalCPUTimes() map[string]time.Duration {
	sum := map[string]time.Duration{}
	for _, name := range consumers {
		if p := l.s.Process(name); p != nil {
			sum[name], _ = p.CPUTime() // a control plane's processes live to its end
		}
	}
	sum[benchmarkConsumer], _ = controlplane.OwnCPUTime()
	for _, took := range l.agent {
		sum[agentsConsumer] += took
	}
	return sum
}

// stopAndReport stops the measurement and returns the time by consumer.
func (l *cpuLoad) stopAndReport() map[string]time.Duration {
	l.stop()
	<-l.done
	l.sampleAgentCPU()
	taken := l.totalCPUTimes()
	for name, before := range l.initial {
		taken[name] -= before
	}
	return taken
}

// newLoadResult returns the API server's time as a result, with the others in its setup.
func newLoadResult(name, setup string, taken map[string]time.Duration) result.Result {
	others := make([]string, 0, len(consumers))
	for _, c := range consumers[1:] {
		others = append(others, fmt.Sprintf("%s %.1f s", c, taken[c].Seconds()))
	}
	return result.Result{
		Name: name, Value: taken[controlplane.APIServer].Seconds(), Unit: "s",
		Setup: setup + "the others: " + strings.Join(others, ", "),
	}
}
