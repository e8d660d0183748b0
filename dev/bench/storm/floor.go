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

// floor measures the time that the control plane itself needs: the same cordons and evictions over as many connections,
// with the same credentials, and nothing else.
func (s *scene) floor(ctx context.Context) ([]result.Result, error) {
	s.who = "connections instead of agents"
	var clients []bareClient
	err := s.do(ctx, step{fmt.Sprintf("connecting %d bare clients", machines), func(ctx context.Context) (err error) {
		clients, err = s.connect(ctx)
		return err
	}}, calm)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	load, profile := s.watchLoad(ctx), s.profile(ctx, "floor")
	err = s.do(ctx, step{fmt.Sprintf("%d cordons and %d evictions at once", s.machinesThatGo(), s.allPods()), func(ctx context.Context) error {
		return strikeBare(ctx, clients)
	}})
	taken := load.end()
	if err := errors.Join(err, profile(), s.keepAudit("floor")); err != nil {
		return nil, err
	}
	return s.floorResults(began, taken)
}

// connect connects as many clients as there are agents. Clients of unaffected nodes only connect.
func (s *scene) connect(ctx context.Context) ([]bareClient, error) {
	clients := make([]bareClient, machines)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(startedAtOnce)
	for i, node := range s.nodes() {
		group.Go(func() (err error) {
			clients[i], err = s.connectTo(ctx, node)
			return err
		})
	}
	return clients, group.Wait()
}

func (s *scene) connectTo(ctx context.Context, node string) (bareClient, error) {
	kubeconfig, err := s.AgentKubeconfig(ctx, node)
	if err != nil {
		return bareClient{}, err
	}
	config, err := kubeapi.LoadConfig(kubeconfig)
	if err != nil {
		return bareClient{}, err
	}
	api, err := config.Connect(floorClient)
	if err != nil {
		return bareClient{}, err
	}
	on, err := api.ListPodsOn(ctx, node)
	return bareClient{api, node, on}, err
}

// strikeBare lets every client send its requests. A missing response is counted, and is not an error.
func strikeBare(ctx context.Context, clients []bareClient) error {
	bounded, cancel := context.WithTimeout(ctx, floorTimeout)
	defer cancel()
	var group errgroup.Group
	for _, c := range clients {
		if len(c.pods) > 0 {
			group.Go(func() error { return c.clear(bounded) })
		}
	}
	_ = group.Wait()
	return ctx.Err()
}

// clear cordons the node, and then evicts its pods concurrently.
func (c bareClient) clear(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{cordon.AnnotationKey("floor"): "{}"}},
		"spec":     map[string]any{"unschedulable": true},
	})
	if err != nil {
		return err
	}
	err = insist(ctx, func() error {
		_, err := c.api.PatchNode(ctx, c.node, patch)
		return err
	})
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, p := range c.pods {
		r := kubeapi.Removal{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		group.Go(func() error { return insist(ctx, func() error { return c.api.Evict(ctx, r) }) })
	}
	return group.Wait()
}

// insist retries send while the API server refuses and allows a retry.
func insist(ctx context.Context, send func() error) error {
	for {
		err := send()
		if err == nil || kubeapi.IsNotFound(err) {
			return nil
		}
		after := floorPause
		if s := kubeapi.AsStatus(err); s != nil && s.Code == http.StatusTooManyRequests && s.RetryAfter > 0 {
			after = s.RetryAfter
		}
		if err := testbed.Pause(ctx, after); err != nil {
			return err
		}
	}
}

// floorResults reads the audit log. A pod that was evicted although the response was lost is not among the accepted ones
// and was retried. Such pods are few, and counted.
func (s *scene) floorResults(began time.Time, taken map[string]time.Duration) ([]result.Result, error) {
	requests, err := audit.Requests(s.Cluster, began)
	if err != nil {
		return nil, err
	}
	notice := azure.MinimumNotice(azure.Preempt)
	var cordoned, evicted []time.Duration
	inTime, sent, refused := 0, 0, 0
	for _, node := range s.doomed {
		if at, ok := audit.Cordons(requests[node])[cordon.AnnotationKey("floor")]; ok {
			cordoned = append(cordoned, at.Sub(began))
		}
		accepted, err := audit.Evictions(requests[node])
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
		refused += refusals(requests[node])
	}
	if len(cordoned) < s.machinesThatGo() || len(evicted) == 0 {
		return nil, fmt.Errorf("floor: %d of %d nodes were cordoned, %d of %d pods evicted within %s", len(cordoned), s.machinesThatGo(),
			len(evicted), s.allPods(), floorTimeout)
	}
	setup := s.setup("bare clients that know the pods in advance and send one patch and %d evictions each; ", podsEach)
	row := func(name string, value float64, unit, format string, args ...any) result.Result {
		return result.Result{Name: "floor: " + name, Value: value, Unit: unit, Setup: setup + fmt.Sprintf(format, args...)}
	}
	return []result.Result{
		row(fmt.Sprintf("first request to node cordoned, maximum of %d", s.machinesThatGo()), slices.Max(cordoned).Seconds(), "s",
			"p50 %.2f s", median(cordoned).Seconds()),
		row("first request to eviction accepted, maximum", slices.Max(evicted).Seconds(), "s",
			"%d of %d evictions with a response; p50 %.2f s", len(evicted), s.allPods(), median(evicted).Seconds()),
		row(fmt.Sprintf("pods without accepted eviction within %s, of %d", notice, s.allPods()), float64(s.allPods()-inTime), "pods", ""),
		row("API requests per node", float64(sent)/float64(s.machinesThatGo()), "requests", ""),
		row("API requests refused or abandoned, all nodes", float64(refused+len(requests[audit.Nobody])), "requests", ""),
		loadResult("floor: processor time of the API server, until the last eviction", setup, taken),
	}, nil
}
