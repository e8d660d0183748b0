package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/bench/audit"
	"github.com/slipway-dev/slipway/dev/bench/bareclient"
	"github.com/slipway-dev/slipway/dev/bench/result"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// floorTimeout ends the measurement. What is not finished then counts as missing.
const floorTimeout = 2 * time.Minute

// floorPrefix begins the names of the bare clients' results.
const floorPrefix = "floor: "

// evictionOrder is the order of the bare clients' evictions. The faster order is the floor.
type evictionOrder struct {
	name string // in the names of the results
	file string // of the profile
	run  func(context.Context, []*bareclient.Client) error
}

// evictionOrders are the orders that are measured. A queue spans all nodes: an app has one pod on about every fifth node, so
// that a queue for each node would evict all pods at once.
var evictionOrders = []evictionOrder{
	{"all evictions at once", "floor-at-once", evictAtOnce},
	{"one eviction per PDB at a time over all nodes", "floor-queues", func(ctx context.Context, clients []*bareclient.Client) error {
		return bareclient.CordonAndEvictAll(ctx, clients, newQueueOf())
	}},
}

// evictAtOnce lets all clients send their requests concurrently.
func evictAtOnce(ctx context.Context, clients []*bareclient.Client) error {
	var group errgroup.Group
	for _, c := range clients {
		group.Go(func() error { return c.CordonAndEvict(ctx) })
	}
	return group.Wait()
}

// newQueueOf returns a function that returns the queue of a pod: its app if the app has a PDB, and otherwise only the pod.
func newQueueOf() func(kubeapi.Pod) string {
	withPDB := map[string]bool{}
	for i := range apps {
		withPDB[appName(i)] = hasPDB(i)
	}
	return func(p kubeapi.Pod) string {
		if app := p.Labels[workload.AppLabel]; withPDB[app] {
			return app
		}
		return p.UID
	}
}

// measureBareClients measures the time that the control plane itself needs for the agents' cordons and evictions. It
// sends these requests over as many connections and with the same credentials, but no other requests.
func (s *stormBench) measureBareClients(ctx context.Context, order evictionOrder) ([]result.Result, error) {
	s.clientKind = "connections instead of agents"
	var clients []*bareclient.Client
	err := s.runSteps(ctx, benchStep{fmt.Sprintf("connecting %d bare clients", s.machineCount()), func(ctx context.Context) (err error) {
		clients, err = s.connectClients(ctx)
		return err
	}}, calmStep)
	if err != nil {
		return nil, err
	}
	began, unfinished, taken := time.Now(), 0, map[string]time.Duration{}
	load, profile := s.startCPULoad(ctx), s.startProfile(ctx, order.file)
	err = s.runSteps(ctx, benchStep{fmt.Sprintf("%d cordons and %d evictions, %s", s.size, s.podCount(), order.name), func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error {
			defer func() { taken = load.stopAndReport() }()
			return runBareClients(ctx, clients, order)
		})
		group.Go(func() (err error) {
			unfinished, err = s.countUnfinished(ctx, began.Add(azure.MinimumNotice(azure.Preempt)))
			return err
		})
		return group.Wait()
	}})
	if err := errors.Join(err, profile(), s.copyAuditLog(order.file)); err != nil {
		return nil, err
	}
	results, err := s.newBareClientResults(order, began, taken)
	if err != nil {
		return nil, err
	}
	return append(results, result.Result{
		Name:  fmt.Sprintf("%s%s, pods that did not finish within %s, of %d", floorPrefix, order.name, azure.MinimumNotice(azure.Preempt), s.podCount()),
		Value: float64(unfinished), Unit: "pods", Setup: results[0].Setup,
	}), nil
}

// countUnfinished counts, at the given time, the pods that still run on nodes with a notice. Only the original pods run there, because
// these nodes have no room for others, and are cordoned.
func (s *stormBench) countUnfinished(ctx context.Context, at time.Time) (n int, err error) {
	if err := testbed.Sleep(ctx, time.Until(at)); err != nil {
		return 0, err
	}
	pods, err := s.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, p := range pods.Items {
		if slices.Contains(s.noticedNodes, p.Spec.NodeName) && p.Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n, nil
}

// connectClients opens one connection for each agent that the storm would have. The clients of nodes without a
// notice only connect.
func (s *stormBench) connectClients(ctx context.Context) ([]*bareclient.Client, error) {
	clients := make([]*bareclient.Client, s.machineCount())
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

func (s *stormBench) connectClient(ctx context.Context, node string) (*bareclient.Client, error) {
	kubeconfig, err := s.WriteAgentKubeconfig(ctx, node)
	if err != nil {
		return nil, err
	}
	return bareclient.Connect(ctx, kubeconfig, node)
}

// runBareClients lets the clients of nodes with a notice send their requests. A missing response is not an error but is
// counted in the results.
func runBareClients(ctx context.Context, clients []*bareclient.Client, order evictionOrder) error {
	bounded, cancel := context.WithTimeout(ctx, floorTimeout)
	defer cancel()
	_ = order.run(bounded, slices.DeleteFunc(clients, func(c *bareclient.Client) bool { return len(c.Pods) == 0 }))
	return ctx.Err()
}

// newBareClientResults returns the results, which it reads from the audit log. If the response to an accepted
// eviction was lost, the client sent the eviction again, and the pod is missing in the results. Such pods are few,
// and the results count them.
func (s *stormBench) newBareClientResults(order evictionOrder, began time.Time, taken map[string]time.Duration) ([]result.Result, error) {
	requests, err := audit.AgentRequestsByNode(s.Cluster, began)
	if err != nil {
		return nil, err
	}
	notice := azure.MinimumNotice(azure.Preempt)
	var cordoned, evicted []time.Duration
	inTime, sent, refused := 0, 0, 0
	for _, node := range s.noticedNodes {
		if at, ok := audit.CordonTimes(requests[node])[bareclient.ClaimAnnotation]; ok {
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
	if len(cordoned) < s.size || len(evicted) == 0 {
		return nil, fmt.Errorf("floor, %s: %d of %d nodes were cordoned, %d of %d pods evicted within %s", order.name, len(cordoned),
			s.size, len(evicted), s.podCount(), floorTimeout)
	}
	s.lastEviction = slices.Max(evicted)
	setup := s.describeSetup("bare clients that know the pods in advance and send one patch and %d evictions each, %s; ", podsEach, order.name)
	prefix := floorPrefix + order.name + ", "
	row := func(name string, value float64, unit, format string, args ...any) result.Result {
		return result.Result{Name: prefix + name, Value: value, Unit: unit, Setup: setup + fmt.Sprintf(format, args...)}
	}
	return []result.Result{
		row(fmt.Sprintf("first request to node cordoned, maximum of %d", s.size), slices.Max(cordoned).Seconds(), "s",
			"p50 %.2f s", median(cordoned).Seconds()),
		row("first request to eviction accepted, maximum", slices.Max(evicted).Seconds(), "s",
			"%d of %d evictions with a response; p50 %.2f s", len(evicted), s.podCount(), median(evicted).Seconds()),
		row(fmt.Sprintf("pods without accepted eviction within %s, of %d", notice, s.podCount()), float64(s.podCount()-inTime), "pods", ""),
		row("API requests per node", float64(sent)/float64(s.size), "requests", ""),
		row("API requests refused or abandoned, all nodes", float64(refused+len(requests[audit.UnknownNode])), "requests", ""),
		newLoadResult(prefix+"processor time of the API server, until the last eviction", setup, taken),
	}, nil
}
