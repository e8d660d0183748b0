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

// novaMark is the metadata of the servers.
var novaMark = map[string]string{openstack.ClusterKey: "bench", openstack.GroupKey: "workers"}

// RunNova measures the time from an unschedulable pod to the create call of a server, with a real OpenStack. It takes
// two minutes, and a few more the first time. Then it must run as root to install OpenStack.
func RunNova(ctx context.Context, o Options) (_ []result.Result, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	c, stop, err := openstackdev.Begin(ctx, "bench", novaMark, o.Progress)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopped := stop(); err == nil {
			err = stopped
		}
	}()
	f, err := newFront(c.IDs.Endpoints["compute"])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	nova, err := c.Nova(ctx, openstackdev.Demo)
	if err != nil {
		return nil, err
	}
	m := f.market(c)
	m.confirm = func(ctx context.Context) error {
		var failed error
		var servers int
		err := testbed.Poll(ctx, fmt.Sprintf("Nova has created %d servers", machines), func() bool {
			all, err := openstackdev.Servers(ctx, nova, novaMark)
			failed, servers = err, len(all)
			return err == nil && servers >= machines
		})
		if err != nil {
			return fmt.Errorf("it has %d: %w", servers, errors.Join(err, failed))
		}
		return asMany(servers)
	}
	r, err := reach(ctx, o, func(context.Context, *testbed.Testbed) (market, error) { return m, nil })
	if err != nil {
		return nil, err
	}
	return []result.Result{r, f.parallel()}, openstackdev.RemoveServers(ctx, nova, novaMark)
}

// front is a proxy in front of Nova that records the create calls.
type front struct {
	*httptest.Server

	mu    sync.Mutex
	asked []time.Time
	// waiting is the number of unanswered calls, and most its maximum.
	waiting, most int
}

// parallel returns the maximum number of concurrent create calls.
func (f *front) parallel() result.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	return result.Result{
		Name: "maximum concurrent create calls", Value: float64(f.most), Unit: "calls",
		Setup: fmt.Sprintf("%d in total, the first one alone; the quota and the default of parallelCreates allow all of them; some are "+
			"answered before others are sent", len(f.asked)),
	}
}

// ask records a create call. It returns a function that records the response.
func (f *front) ask() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	f.waiting++
	f.most = max(f.most, f.waiting)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting--
	}
}

func newFront(nova string) (*front, error) {
	u, err := url.Parse(nova)
	if err != nil {
		return nil, err
	}
	f := &front{}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host}) }}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/servers") {
			defer f.ask()()
		}
		forward.ServeHTTP(w, r)
	}))
	return f, nil
}

func (f *front) made() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// market returns a cloud with servers of four cores.
func (f *front) market(c *openstackdev.Cloud) market {
	const cores = 4
	labels := map[string]string{"pool": novaMark[openstack.GroupKey]}
	return market{
		cores: cores, cpu: "250m", labels: labels,
		config: map[string]any{openstack.Name: openstack.Config{
			Cloud: openstackdev.Demo, CloudsFile: c.CloudsFile(), ClusterName: novaMark[openstack.ClusterKey],
			Endpoints: map[string]string{"compute": f.URL + "/v2.1/"},
			Groups: []openstack.GroupConfig{{
				Name: novaMark[openstack.GroupKey], Flavors: []string{"m.4c8g"}, Image: openstack.Image{Name: "tiny"},
				Networks: []string{"demo-net"}, SecurityGroups: []string{"demo-sg"}, KeyPair: openstackdev.KeyPair,
				Nodes: cloud.Shape{Labels: labels},
			}},
		}},
		group: fmt.Sprintf("nodeSelector: {matchLabels: {pool: %[1]s}}\ncloud: {provider: openstack, group: %[1]s}\n"+
			"maximum: 1000\nscaleUp: {joinTimeout: 1h}\n", novaMark[openstack.GroupKey]),
		by:   "measured in front of a real Nova, which gets all calls of a launch at once",
		made: f.made,
	}
}
