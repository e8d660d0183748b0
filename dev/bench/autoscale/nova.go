package autoscale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/dev/bench/result"
	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// novaMetadata is the metadata of the servers that belong to the benchmark.
var novaMetadata = map[string]string{openstack.ClusterKey: "bench", openstack.GroupKey: "workers"}

// RunNovaBenchmark measures the time from an unschedulable pod to the call that creates its server in a real
// OpenStack. It takes two minutes. The first run takes a few minutes more and needs root, because it installs
// OpenStack.
func RunNovaBenchmark(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	c, stop, err := openstackdev.InstallAndStart(ctx, "bench", novaMetadata, o.Progress)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := stop(); err == nil {
			err = stopped
		}
	}()
	f, err := newNovaProxy(c.IDs.Endpoints["compute"])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	nova, err := c.NewNovaClient(ctx, openstackdev.DemoCloud)
	if err != nil {
		return nil, err
	}
	m := f.newCloud(c)
	m.awaitAllMachines = func(ctx context.Context) error {
		var failed error
		var servers int
		err := testbed.PollUntil(ctx, fmt.Sprintf("Nova has created %d servers", machines), func() bool {
			all, err := openstackdev.ListServers(ctx, nova, novaMetadata)
			failed, servers = err, len(all)
			return err == nil && servers >= machines
		})
		if err != nil {
			return fmt.Errorf("it has %d: %w", servers, errors.Join(err, failed))
		}
		return checkMachineCount(servers)
	}
	latency, err := measureLatency(ctx, o, func(context.Context, *testbed.Testbed) (testCloud, error) { return m, nil })
	if err != nil {
		return nil, err
	}
	return append(latency, f.maxConcurrencyResult()), openstackdev.DeleteServersAndWait(ctx, nova, novaMetadata)
}

// novaProxy is a proxy for Nova that records the calls that create servers.
type novaProxy struct {
	*httptest.Server

	mu        sync.Mutex
	callTimes []time.Time
	// waiting is the number of unanswered calls, and most its maximum.
	waiting, most int
}

// maxConcurrencyResult returns, as a result, the maximum number of concurrent calls that create servers.
func (f *novaProxy) maxConcurrencyResult() result.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	return result.Result{
		Name: "maximum concurrent create calls", Value: float64(f.most), Unit: "calls",
		Setup: fmt.Sprintf("%d in total, the first one alone; the quota and the default of parallelCreates allow all of them; some are "+
			"answered before others are sent", len(f.callTimes)),
	}
}

// recordCall records that a call has begun. It returns a function that records the end of this call.
func (f *novaProxy) recordCall() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.callTimes = append(f.callTimes, time.Now())
	f.waiting++
	f.most = max(f.most, f.waiting)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting--
	}
}

func newNovaProxy(nova string) (*novaProxy, error) {
	u, err := url.Parse(nova)
	if err != nil {
		return nil, err
	}
	f := &novaProxy{}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host}) }}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/servers") {
			defer f.recordCall()()
		}
		forward.ServeHTTP(w, r)
	}))
	return f, nil
}

func (f *novaProxy) creationTimes() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.callTimes)
}

// newCloud returns a testCloud for an OpenStack, with servers of four cores.
func (f *novaProxy) newCloud(c *openstackdev.Cloud) testCloud {
	const cores = 4
	labels := map[string]string{"pool": novaMetadata[openstack.GroupKey]}
	return testCloud{
		cores: cores, cpu: "250m", labels: labels,
		config: map[string]any{openstack.Name: openstack.Config{
			Cloud: openstackdev.DemoCloud, CloudsFile: c.CloudsFile(), ClusterName: novaMetadata[openstack.ClusterKey],
			Endpoints: map[string]string{"compute": f.URL + "/v2.1/"},
			Groups: []openstack.GroupConfig{{
				Name: novaMetadata[openstack.GroupKey], Flavors: []string{"m.4c8g"}, Image: openstack.Image{Name: "tiny"},
				Networks: []string{"demo-net"}, SecurityGroups: []string{"demo-sg"}, KeyPair: openstackdev.KeyPair,
				Nodes: cloud.NodeShape{Labels: labels},
			}},
		}},
		group: fmt.Sprintf("nodeSelector: {matchLabels: {pool: %[1]s}}\ncloud: {provider: openstack, group: %[1]s}\n"+
			"maxSize: 1000\nscaleUp: {joinTimeout: 1h}\n", novaMetadata[openstack.GroupKey]),
		timesSource:   "measured in front of a real Nova, which gets all calls of a launch at once",
		creationTimes: f.creationTimes,
	}
}
