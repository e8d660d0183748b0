package storm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// floorClient is the user agent of the bare clients. It has the prefix of the agents, for the audit log.
	floorClient = "slipway-agent/floor"
	// floorTimeout ends the measurement. What is not finished then counts as missing.
	floorTimeout = 2 * time.Minute
	// floorPause is the wait after a refusal without Retry-After.
	floorPause = time.Second
)

// bareClient is a lower bound for an agent. It knows the node and its pods in advance. It sends only one patch and one
// eviction per pod, like an agent.
type bareClient struct {
	api  *kubeapi.Client
	node string
	pods []kubeapi.Pod
}

// measureBareClients measures the time that the control plane itself needs: the same cordons and evictions over as many connections,
// with the same credentials, and nothing else.
func (s *stormBench) measureBareClients(ctx context.Context) ([]result.Result, error) {
	s.clientKind = "connections instead of agents"
	var clients []bareClient
	err := s.runSteps(ctx, benchStep{fmt.Sprintf("connecting %d bare clients", machines), func(ctx context.Context) (err error) {
		clients, err = s.connectClients(ctx)
		return err
	}}, calmStep)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	load, profile := s.startCPULoad(ctx), s.startProfile(ctx, "floor")
	err = s.runSteps(ctx, benchStep{fmt.Sprintf("%d cordons and %d evictions at once", s.noticedMachineCount(), s.podCount()), func(ctx context.Context) error {
		return runBareClients(ctx, clients)
	}})
	taken := load.stopAndReport()
	if err := errors.Join(err, profile(), s.copyAuditLog("floor")); err != nil {
		return nil, err
	}
	return s.newBareClientResults(began, taken)
}

// connectClients connects as many clients as there are agents. Clients of unaffected nodes only connect.
func (s *stormBench) connectClients(ctx context.Context) ([]bareClient, error) {
	clients := make([]bareClient, machines)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentStarts)
	for i, node := range s.allNodes() {
		group.Go(func() (err error) {
			clients[i], err = s.connectClient(ctx, node)
			return err
		})
	}
	return clients, group.Wait()
}

func (s *stormBench) connectClient(ctx context.Context, node string) (bareClient, error) {
	kubeconfig, err := s.WriteAgentKubeconfig(ctx, node)
	if err != nil {
		return bareClient{}, err
	}
	config, err := kubeapi.LoadConfig(kubeconfig)
	if err != nil {
		return bareClient{}, err
	}
	api, err := config.NewClient(floorClient)
	if err != nil {
		return bareClient{}, err
	}
	on, err := api.ListPodsOnNode(ctx, node)
	return bareClient{api, node, on}, err
}

// runBareClients lets every client send its requests. A missing response is counted, and is not an error.
func runBareClients(ctx context.Context, clients []bareClient) error {
	bounded, cancel := context.WithTimeout(ctx, floorTimeout)
	defer cancel()
	var group errgroup.Group
	for _, c := range clients {
		if len(c.pods) > 0 {
			group.Go(func() error { return c.cordonAndEvict(bounded) })
		}
	}
	_ = group.Wait()
	return ctx.Err()
}

// cordonAndEvict cordons the node, and then evicts its pods concurrently.
func (c bareClient) cordonAndEvict(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{cordon.AnnotationKey("floor"): "{}"}},
		"spec":     map[string]any{"unschedulable": true},
	})
	if err != nil {
		return err
	}
	err = retryRefused(ctx, func() error {
		_, err := c.api.PatchNode(ctx, c.node, patch)
		return err
	})
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, p := range c.pods {
		r := kubeapi.PodRemoval{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		group.Go(func() error { return retryRefused(ctx, func() error { return c.api.EvictPod(ctx, r) }) })
	}
	return group.Wait()
}

// retryRefused retries send while the API server refuses and allows a retry.
func retryRefused(ctx context.Context, send func() error) error {
	for {
		err := send()
		if err == nil || kubeapi.IsNotFound(err) {
			return nil
		}
		after := floorPause
		if s := kubeapi.ToStatusError(err); s != nil && s.Code == http.StatusTooManyRequests && s.RetryAfter > 0 {
			after = s.RetryAfter
		}
		if err := testbed.Sleep(ctx, after); err != nil {
			return err
		}
	}
}

// newBareClientResults reads the audit log. A pod that was evicted although the response was lost is not among the accepted ones
// and was retried. Such pods are few, and counted.
func (s *stormBench) newBareClientResults(began time.Time, taken map[string]time.Duration) ([]result.Result, error) {
	requests, err := audit.AgentRequestsByNode(s.Cluster, began)
	if err != nil {
		return nil, err
	}
	notice := azure.MinimumNotice(azure.Preempt)
	var cordoned, evicted []time.Duration
	inTime, sent, refused := 0, 0, 0
	for _, node := range s.noticedNodes {
		if at, ok := audit.CordonTimes(requests[node])[cordon.AnnotationKey("floor")]; ok {
			cordoned = append(cordoned, at.Sub(began))
		}
		accepted, err := audit.EvictionTimes(requests[node])
		if err != nil {
			return nil, err
		}
		for _, at := range accepted {
			evicted = append(evicted, at.Sub(began))
			if at.Sub(began) <= notice {
				inTime++
			}
		}
		sent += len(requests[node])
		refused += countRefused(requests[node])
	}
	if len(cordoned) < s.noticedMachineCount() || len(evicted) == 0 {
		return nil, fmt.Errorf("floor: %d of %d nodes were cordoned, %d of %d pods evicted within %s", len(cordoned), s.noticedMachineCount(),
			len(evicted), s.podCount(), floorTimeout)
	}
	setup := s.describeSetup("bare clients that know the pods in advance and send one patch and %d evictions each; ", podsEach)
	row := func(name string, value float64, unit, format string, args ...any) result.Result {
		return result.Result{Name: "floor: " + name, Value: value, Unit: unit, Setup: setup + fmt.Sprintf(format, args...)}
	}
	return []result.Result{
		row(fmt.Sprintf("first request to node cordoned, maximum of %d", s.noticedMachineCount()), slices.Max(cordoned).Seconds(), "s",
			"p50 %.2f s", median(cordoned).Seconds()),
		row("first request to eviction accepted, maximum", slices.Max(evicted).Seconds(), "s",
			"%d of %d evictions with a response; p50 %.2f s", len(evicted), s.podCount(), median(evicted).Seconds()),
		row(fmt.Sprintf("pods without accepted eviction within %s, of %d", notice, s.podCount()), float64(s.podCount()-inTime), "pods", ""),
		row("API requests per node", float64(sent)/float64(s.noticedMachineCount()), "requests", ""),
		row("API requests refused or abandoned, all nodes", float64(refused+len(requests[audit.UnknownNode])), "requests", ""),
		newLoadResult("floor: processor time of the API server, until the last eviction", setup, taken),
	}, nil
}
