package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	agentpkg "github.com/slipway-dev/slipway/internal/agent"
	source "github.com/slipway-dev/slipway/internal/notice/azure"
)

const hangingPods = 24

// measureHangingNodes counts the pods that are lost to a Spot notice although they had enough time, while all PATCH
// and GET requests for Nodes hang. The agent cannot cordon the node. So it must start the evictions after at most a
// quarter of the notice time.
func (b *agentBench) measureHangingNodes(ctx context.Context) ([]result.Result, error) {
	const namespace = "hanging"
	objects := workload.NewNamespace(namespace)
	app := func(name, stop string) workload.App {
		return workload.App{Namespace: namespace, Name: name, Replicas: hangingPods / 3, NodeSelector: podSelector(namespace), StopSeconds: stop}
	}
	if _, err := b.runWorkload(ctx, namespace, b.place(hangingMachine), hangingPods, objects, app("quick", "1").Deployment(),
		app("slow", "8").Deployment(), app("slowest", "16").Deployment()); err != nil {
		return nil, err
	}
	hangs := &hangingProxy{proxy: faultproxy.New(func(r faultproxy.Request) string { return r.Method + " " + r.Path })}
	defer hangs.close()
	if err := b.startAgentBehindProxy(ctx, hangs, hangingMachine); err != nil {
		return nil, err
	}
	hangs.on.Store(true)
	event, err := b.Azure.Announce(azure.Announcement{ //nolint:contextcheck // an event outlives its announcer
		Type: azure.Preempt, Resources: []string{b.pool.ResourceName(hangingMachine)},
	})
	if err != nil {
		return nil, err
	}
	ledger, err := b.awaitLedger(ctx, event.EventID)
	if err != nil {
		return nil, err
	}
	lost, err := countAvoidableLosses(ledger)
	if err != nil {
		return nil, err
	}
	if hangs.met.Load() == 0 || hangs.answered.Load() > 0 {
		return nil, fmt.Errorf("%d requests for Nodes hung and %d did not; all must hang", hangs.met.Load(), hangs.answered.Load())
	}
	return []result.Result{{
		Name:  "pods lost despite enough time, every PATCH and GET of Nodes hanging",
		Value: float64(lost.pods), Unit: "pods", Target: result.AtMost(0),
		Setup: b.describeSetup("Spot notice of %s on %d pods that take 1, 8 and 16 s to stop; last eviction after %.1f s, %d requests hung; "+
			"the available time is the notice without a quarter of it, the poll interval and the agent's margin of %s",
			azure.MinimumNotice(azure.Preempt), hangingPods, lost.asked.Seconds(), hangs.met.Load(), agentpkg.DefaultDeadlineMargin),
	}}, nil
}

// avoidableLosses is the result of countAvoidableLosses. It has the number of lost pods that had enough time, and
// the time from the notice to the last eviction.
type avoidableLosses struct {
	pods  int
	asked time.Duration
}

// countAvoidableLosses counts the pods of an event that had enough time to stop but did not finish. If a pod that
// existed at the notice was not evicted, it returns an error.
func countAvoidableLosses(l azure.EventLedger) (avoidableLosses, error) {
	var found avoidableLosses
	present := 0
	window := l.NotBefore.Sub(l.VisibleAt)
	from := l.VisibleAt.Add(window/4 + source.DefaultInterval)
	for _, p := range l.Pods {
		if !p.Late {
			present++
			if p.DeletionSeenAt.IsZero() {
				return found, fmt.Errorf("pod %s/%s was never evicted", p.Namespace, p.Name)
			}
			found.asked = max(found.asked, p.DeletionSeenAt.Sub(l.VisibleAt))
		}
		stops, err := strconv.ParseFloat(p.StopSeconds, 64)
		if err != nil {
			return found, fmt.Errorf("pod %s/%s: time to stop: %w", p.Namespace, p.Name, err)
		}
		begins := from
		if p.BoundAt.After(begins) {
			begins = p.BoundAt.Add(time.Second)
		}
		stoppedAt := begins.Add(time.Duration(stops * float64(time.Second)))
		if p.Outcome != azure.OutcomeFinished && stoppedAt.Before(l.NotBefore.Add(-agentpkg.DefaultDeadlineMargin)) {
			found.pods++
		}
	}
	if present != hangingPods {
		return found, fmt.Errorf("the ledger has %d pods from before the notice, want %d: %s", present, hangingPods, l.Summary(testbed.CutTolerance))
	}
	return found, nil
}

// hangingProxy is a proxy for the API server that does not answer requests for Nodes.
type hangingProxy struct {
	on            atomic.Bool
	met, answered atomic.Int64 // requests for Nodes while it is on
	proxy         *faultproxy.Proxy
	dir           string
}

func (h *hangingProxy) close() {
	_ = h.proxy.Close()
	if h.dir != "" {
		_ = os.RemoveAll(h.dir)
	}
}

// hangNodeRequests returns a fault for PATCH and GET requests of Nodes. With this fault a request hangs until the
// client gives up.
func (h *hangingProxy) hangNodeRequests(r faultproxy.Request) faultproxy.Fault {
	if !h.on.Load() || !strings.HasPrefix(r.Path, "/api/v1/nodes") {
		return faultproxy.Fault{}
	}
	if r.Method != http.MethodGet && r.Method != http.MethodPatch {
		h.answered.Add(1)
		return faultproxy.Fault{}
	}
	h.met.Add(1)
	return faultproxy.Fault{Delay: time.Hour}
}

// startAgentBehindProxy starts an agent that reaches the API server only through the given proxy.
func (b *agentBench) startAgentBehindProxy(ctx context.Context, h *hangingProxy, instance int) (err error) {
	h.proxy.SetFaults(h.hangNodeRequests)
	if h.dir, err = os.MkdirTemp("", "slipway-bench-"); err != nil {
		return err
	}
	config := rest.AnonymousClientConfig(b.RESTConfig())
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	front, err := h.proxy.Serve("api", server, transport)
	if err != nil {
		return err
	}
	credentials, err := b.WriteAgentKubeconfig(ctx, b.pool.NodeName(instance))
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(h.dir, "kubeconfig")
	if err := faultproxy.WriteKubeconfig(credentials, kubeconfig, front); err != nil {
		return err
	}
	_, err = b.StartAgent(ctx, b.pool, instance, "--kubeconfig", kubeconfig)
	return err
}
