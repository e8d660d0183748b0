// Package cloudpool measures slipway cloudpool on a real control plane, in front of an emulated cloudpool server. It
// measures the time of a decision and the API requests per removed machine. It also measures how much slower a read
// is while machines are removed.
package cloudpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/bench/result"
	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
)

// Options configures RunBenchmarks.
type Options struct {
	// Kubernetes is the minor version. Empty means the newest.
	Kubernetes string
	// Profile is a directory for a profile of slipway cloudpool during the removals. Empty means no profile.
	Profile  string
	Progress io.Writer
}

// The sizes of the measurements, and the targets of the results.
const (
	small, large   = 30, 100 // nodes
	podsEach       = 30
	apps           = 30
	removedNodes   = 10 // from each pool, because the requests per node depend on the number of nodes removed together
	decisions      = 30
	readsPerSecond = 500
	quietTime      = 10 * time.Second

	maxDecisionMillis = 50 // ms
	maxAddedMillis    = 1  // ms
	// maxRequestGrowth is the allowed growth in requests per removed node. Retries vary by two or three between runs. One
	// request per additional node of the large pool would be seven.
	maxRequestGrowth = 5
)

const namespace = "slipway"

// The names of the processes that serve the reads: slipway cloudpool, and the bare proxy for comparison.
const (
	frontProcess = "slipway-cloudpool"
	bareProcess  = "forward"
)

// RunBenchmarks measures a small pool and then a large pool. The difference shows how requests grow with the number
// of nodes.
func RunBenchmarks(ctx context.Context, o Options) ([]result.Result, error) {
	few, err := measurePool(ctx, o, "few", small, removedNodes)
	if err != nil {
		return nil, fmt.Errorf("%d nodes: %w", small, err)
	}
	many, err := measurePool(ctx, o, "many", large, removedNodes)
	if err != nil {
		return nil, fmt.Errorf("%d nodes: %w", large, err)
	}
	setup := fmt.Sprintf("%d nodes and %d pods of %d Deployments on a real control plane with kwok, Kubernetes %s, %d cores for everything; ",
		large, large*podsEach, apps, many.version, runtime.NumCPU())
	return []result.Result{
		{
			Name: fmt.Sprintf("decision on size %d to %d, p50", large, large-removedNodes), Value: toMillis(percentile(many.decisions, 50)), Unit: "ms",
			Target: result.AtMost(maxDecisionMillis),
			Setup: setup + fmt.Sprintf("GET /slipway/v1/pools/…/plan over HTTP with the pool read from its server, %d times; p99 %.0f ms; %d victims each",
				decisions, toMillis(percentile(many.decisions, 99)), removedNodes),
		},
		{
			Name: "API requests per removed node", Value: many.requests, Unit: "requests",
			Setup: setup + fmt.Sprintf("from the audit log, by slipway cloudpool and slipway manager, with watches and Lease renewals, from the request to "+
				"its response %.0f s later; by verb: %s", many.took.Seconds(), many.kinds),
		},
		{
			Name: fmt.Sprintf("the same, difference to %d nodes", small), Value: many.requests - few.requests, Unit: "requests",
			Target: result.AtMost(maxRequestGrowth), Setup: fmt.Sprintf("with %d nodes it is %.1f in %.0f s: %s", small, few.requests, few.took.Seconds(), few.kinds),
		},
		{
			Name: fmt.Sprintf("read, p99 of the differences to a bare proxy, above the floor, %d reads per second during removals", readsPerSecond),
			// A pause of the machine can slow down one read of a turn. So the p99 of the differences is above 0 even for a bare proxy,
			// and the floor shows by how much.
			Value: toMillis(many.busy.pairedLatency(99) - many.busy.pairedFloor(99)), Unit: "ms", Target: result.AtMost(maxAddedMillis),
			Setup: setup + fmt.Sprintf("GET /pool/size, %s; the difference is to the read through the bare proxy in the same turn, in the median "+
				"%.2f ms; the next lines are the p99 and the floor; %s; before the removals: %s", many.busy, toMillis(many.busy.pairedLatency(50)),
				many.cores, many.quiet),
		},
		{
			Name: "read, p99 of the differences to a bare proxy", Value: toMillis(many.busy.pairedLatency(99)), Unit: "ms",
			Setup: setup + "the same reads",
		},
		{
			Name: "floor: the same for a second read through the bare proxy", Value: toMillis(many.busy.pairedFloor(99)), Unit: "ms",
			Setup: setup + "the machine's own part: a pause can slow down one read of a turn",
		},
		{
			Name: "read at p99, added to a bare proxy's p99", Value: toMillis(many.busy.addedLatency(99)), Unit: "ms",
			Setup: setup + "without pairs: slow turns on all routes can hide single slow reads",
		},
		{
			Name: "the same, added to a direct read", Value: toMillis(many.busy.directLatency(99)), Unit: "ms",
			Setup: setup + "a part of this is the machine's own, as the next line shows",
		},
		{
			Name: "the part that the bare proxy adds", Value: toMillis(many.busy.forwardLatency(99)), Unit: "ms",
			Setup: setup + "the standard library's reverse proxy in its own process",
		},
	}, nil
}

func toMillis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// measurements holds what was measured with one pool.
type measurements struct {
	version   string
	decisions []time.Duration
	requests  float64 // per removed node
	kinds     string
	took      time.Duration
	// quiet and busy are the reads before and during the removals. cores describes the cores that they used.
	quiet, busy readTimes
	cores       string
}

// testPool is an emulated cloudpool, with its nodes, a manager, slipway cloudpool and a bare proxy.
type testPool struct {
	*testbed.Testbed
	pool   *emulator.Pool
	server *httptest.Server
	front  string // the URL of slipway cloudpool
	bare   string // the URL of the forwarding proxy
	health string
	name   string
}

func measurePool(ctx context.Context, o Options, name string, nodes, remove int) (_ *measurements, err error) {
	fmt.Fprintf(o.Progress, "cloudpool: starting a control plane with %d nodes and %d pods\n", nodes, nodes*podsEach)
	bed, err := testbed.Start(ctx, testbed.Options{Cluster: controlplane.Options{Version: o.Kubernetes, Progress: o.Progress}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Stop()) }()
	s := &testPool{Testbed: bed, name: name}
	defer s.close()
	if err := s.prepareCluster(ctx, nodes); err != nil {
		return nil, err
	}
	f := &measurements{version: bed.Version()}
	fmt.Fprintf(o.Progress, "cloudpool: %d decisions\n", decisions)
	for range decisions {
		took, err := s.requestPlan(ctx, nodes-remove, remove)
		if err != nil {
			return nil, err
		}
		f.decisions = append(f.decisions, took)
	}
	// Counts requests before the reads start. The number of polls depends on the duration, which depends on the load of
	// the few cores.
	fmt.Fprintf(o.Progress, "cloudpool: from %d to %d\n", nodes, nodes-remove)
	if err := s.shrinkAndCountRequests(ctx, f, nodes-remove, remove); err != nil {
		return nil, err
	}
	if nodes == small {
		return f, nil
	}
	nodes -= remove
	if f.cores, err = s.splitAndDescribeCores(); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "cloudpool: %s of reads without removals, %d per second\n", quietTime, readsPerSecond)
	reading, stop := context.WithTimeout(ctx, quietTime)
	f.quiet, err = s.readSizes(reading)
	stop()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Progress, "cloudpool: from %d to %d, with %d reads per second\n", nodes, nodes-remove, readsPerSecond)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.shrinkWhileReading(groupCtx, f, nodes-remove) })
	group.Go(func() error { return s.writeProfile(groupCtx, o.Profile) })
	return f, group.Wait()
}

// splitAndDescribeCores reserves one half of the cores for the processes that take part in a read. They are slipway
// cloudpool, the bare proxy, and this process, which runs the clients and the pool's server. It returns text that
// describes the division.
func (s *testPool) splitAndDescribeCores() (string, error) {
	others, measured, err := s.PinToCoreHalves(frontProcess, bareProcess)
	if others == 0 {
		return "everything runs on the same cores", err
	}
	return fmt.Sprintf("the control plane and slipway manager use %d of the cores; slipway cloudpool, the bare proxy, the clients and the pool's "+
		"server use the other %d, because in a cluster they run on separate machines", others, measured), err
}

const profileSeconds = 20

// writeProfile writes a CPU profile of slipway cloudpool to a file in dir. If dir is empty, it does nothing.
func (s *testPool) writeProfile(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	raw, code, err := httpGet(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.health, profileSeconds))
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("profile: %d %s", code, raw)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cloudpool-"+s.name+".pprof"), raw, 0o600)
}

func (s *testPool) close() {
	if s.server != nil {
		s.server.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

func (s *testPool) prepareCluster(ctx context.Context, nodes int) error {
	if err := errors.Join(s.InstallCRDs(ctx), s.ApplyManifests(ctx, "manager/rbac.yaml", "cloudpool/rbac.yaml")); err != nil {
		return err
	}
	s.pool = emulator.New(emulator.Options{Name: s.name, SkipRequestLog: true, Nodes: emulator.ClusterNodes{Cluster: s.Cluster, Pool: s.name}})
	if _, err := s.pool.AddMachines(ctx, nodes); err != nil {
		return err
	}
	s.server = httptest.NewServer(s.pool.Handler())
	if err := s.createPods(ctx, nodes*podsEach); err != nil {
		return err
	}
	return errors.Join(s.startProcesses(ctx), s.startForwardProxy(ctx))
}

// startForwardProxy starts the bare proxy that RunForwardProxy runs, as a separate process.
func (s *testPool) startForwardProxy(ctx context.Context) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	address, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return err
	}
	s.bare = "http://" + address
	_, err = s.StartProcess(ctx, controlplane.Command{
		Name: bareProcess, Path: path, Args: []string{"forward", "--listen", address, "--to", s.server.URL}, ReadyURL: s.bare + "/pool/size",
	})
	return err
}

// createPods creates the given number of pods, which the scheduler spreads over the nodes.
func (s *testPool) createPods(ctx context.Context, pods int) error {
	if err := workload.Create(ctx, s.Client(), workload.NewNamespace(s.name)); err != nil {
		return err
	}
	var objects []apiruntime.Object
	for i := range apps {
		app := workload.App{
			Namespace: s.name, Name: fmt.Sprint("app-", i), Replicas: int32(pods / apps), StopSeconds: "0.5", CPU: resource.MustParse("100m"),
			NodeSelector: map[string]string{emulator.PoolLabel: s.name}, MaxUnavailable: "20",
		}
		objects = append(objects, app.Deployment(), app.PodDisruptionBudget())
	}
	return workload.CreateAndAwait(ctx, s.Client(), objects...)
}

// startProcesses starts the manager and slipway cloudpool.
func (s *testPool) startProcesses(ctx context.Context) error {
	settle := cloud.Duration(time.Second)
	raw, err := yaml.Marshal(map[string]any{"cloudpool": provider.Config{
		Pools: []provider.PoolConfig{{Name: s.name, URL: s.server.URL}}, SettleTime: &settle,
	}})
	if err != nil {
		return err
	}
	clouds := filepath.Join(s.Dir(), "clouds.yaml")
	if err := os.WriteFile(clouds, raw, 0o600); err != nil {
		return err
	}
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return err
	}
	address, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return err
	}
	health, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return err
	}
	s.front, s.health = "http://"+address, "http://"+health
	for name, command := range map[string]controlplane.Command{
		"slipway-manager": {Args: []string{"manager", "--listen", "", "--leader-election-namespace", namespace}},
		frontProcess: {
			Args:     []string{"cloudpool", "--listen", address, "--metrics-listen", health, "--profiling", "--namespace", namespace},
			ReadyURL: s.health + "/readyz",
		},
	} {
		kubeconfig, err := s.ServiceAccountKubeconfig(ctx, namespace, name, controlplane.TokenOptions{})
		if err != nil {
			return err
		}
		command.Name, command.Path = name, path
		command.Args = append(command.Args, "--kubeconfig", kubeconfig, "--cloud-config", clouds)
		if _, err := s.StartProcess(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// requestPlan asks slipway cloudpool which machines it would remove for a size, and checks the answer. It returns
// the duration of the request.
func (s *testPool) requestPlan(ctx context.Context, size, victims int) (time.Duration, error) {
	began := time.Now()
	raw, code, err := httpGet(ctx, fmt.Sprintf("%s/slipway/v1/pools/%s/plan?desiredSize=%d", s.front, s.name, size))
	took := time.Since(began)
	var d matching.Decision
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err == nil && (code != http.StatusOK || len(d.Victims) != victims) {
		err = fmt.Errorf("the decision is %d %s, want %d victims", code, raw, victims)
	}
	return took, err
}

// shrinkAndCountRequests reduces the size of the pool, and counts the API requests for this.
func (s *testPool) shrinkAndCountRequests(ctx context.Context, f *measurements, size, removed int) error {
	began := time.Now()
	if err := s.setSize(ctx, size); err != nil {
		return err
	}
	f.took = time.Since(began)
	return s.countRequests(f, began, removed)
}

// shrinkWhileReading reduces the size of the pool. Until this has finished, it reads the size and measures the
// latency.
func (s *testPool) shrinkWhileReading(ctx context.Context, f *measurements, size int) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	group, _ := errgroup.WithContext(ctx)
	group.Go(func() (err error) { f.busy, err = s.readSizes(reading); return err })
	err := s.setSize(ctx, size)
	stop()
	return errors.Join(err, group.Wait())
}

// setSize requests a size of the pool, and returns an error if the pool then has another size.
func (s *testPool) setSize(ctx context.Context, size int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.front+"/pool/size", strings.NewReader(fmt.Sprintf(`{"desiredSize":%d}`, size)))
	if err != nil {
		return err
	}
	response, err := readClient.Do(r)
	if err != nil {
		return err
	}
	raw, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || s.pool.DesiredSize() != size || len(s.pool.Machines()) != size {
		return fmt.Errorf("status %d %s, desired size %d and %d machines; want 200 and %d", response.StatusCode, raw, s.pool.DesiredSize(),
			len(s.pool.Machines()), size)
	}
	return nil
}

// countRequests counts the API requests of slipway cloudpool and the manager since a time, per removed node.
func (s *testPool) countRequests(f *measurements, since time.Time, removed int) error {
	kinds := map[string]int{}
	total := 0
	for _, agent := range []string{"slipway-cloudpool/", "slipway-manager/"} {
		events, err := s.ReadAuditLog(controlplane.AuditFilter{UserAgent: agent, Since: since})
		if err != nil {
			return err
		}
		for _, e := range events {
			kind := e.Verb
			if e.ObjectRef != nil {
				kind += " " + e.ObjectRef.Resource
				if e.ObjectRef.Subresource != "" {
					kind += "/" + e.ObjectRef.Subresource
				}
			}
			// The requests per pod depend on the pods per node, not on the size of the cluster.
			kinds[kind]++
			total++
		}
	}
	f.requests = float64(total) / float64(removed)
	var all []string
	for kind, n := range kinds {
		all = append(all, fmt.Sprintf("%.1f %s", float64(n)/float64(removed), kind))
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	f.kinds = strings.Join(all, ", ")
	return nil
}
