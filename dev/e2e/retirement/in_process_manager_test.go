package retirement_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/manager"
)

// inProcessManager is a manager in this process that restarts whenever it ends.
type inProcessManager struct {
	config manager.Config
	kube   rest.Config
	api    kubeapi.Config
	log    *slog.Logger
	// connect, if set, connects the next manager, and returns a function that cuts its connections.
	connect func(*inProcessManager) (cut func())

	mu   sync.Mutex
	kill context.CancelFunc // ends the current manager
}

// newInProcessManager prepares a manager with the given flags that reaches the API server through a proxy.
func newInProcessManager(t *testing.T, kube rest.Config, api kubeapi.Config, log io.Writer, flags ...string) *inProcessManager {
	t.Helper()
	kube.QPS, kube.UserAgent = -1, "slipway-manager/test"
	e := &inProcessManager{kube: kube, api: api, log: slog.New(slog.NewTextHandler(log, nil))}
	set := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	e.config.AddFlags(set)
	if err := set.Parse(append(flags, "--leader-elect=false", "--listen=")); err != nil {
		t.Fatal(err)
	}
	return e
}

// run keeps a manager running until ctx ends. If a manager cannot start because its first requests fail, run starts it
// again, as the kubelet would.
func (e *inProcessManager) run(ctx context.Context) {
	for ctx.Err() == nil {
		life, cancel := context.WithCancel(ctx)
		kill := cancel
		if e.connect != nil {
			cut := e.connect(e)
			kill = func() { cut(); cancel() }
		}
		e.mu.Lock()
		e.kill = kill
		e.mu.Unlock()
		err := e.runOnce(life)
		kill()
		e.log.Info("the manager has ended", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// crash ends the current manager, as SIGKILL does. It cuts the connections, and therefore no later request of that
// manager succeeds.
func (e *inProcessManager) crash() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kill()
}

func (e *inProcessManager) runOnce(ctx context.Context) error {
	api, err := e.api.NewClient(e.kube.UserAgent)
	if err != nil {
		return err
	}
	return manager.RunInProcess(ctx, e.config, manager.Process{
		Kube: rest.CopyConfig(&e.kube), API: api,
		Metrics: prometheus.NewRegistry(), Log: e.log,
	})
}

// account is a transport that authenticates to the API server as the manager's ServiceAccount, behind the proxy. The
// connection before the proxy therefore needs no TLS.
type account struct {
	token string
	next  http.RoundTripper
}

func (a account) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.token)
	return a.next.RoundTrip(r)
}

var managerToken struct {
	sync.Once
	token     string
	transport http.RoundTripper
	err       error
}

// account returns the transport of a manager in this process.
func (f *fixture) account() account {
	f.t.Helper()
	managerToken.Do(func() {
		managerToken.err = func() error {
			path, err := f.ServiceAccountKubeconfig(f.ctx, managerNamespace, managerAccount, controlplane.TokenOptions{})
			if err != nil {
				return err
			}
			config, err := clientcmd.BuildConfigFromFlags("", path)
			if err != nil {
				return err
			}
			if config.BearerToken == "" {
				return fmt.Errorf("%s holds no token", path)
			}
			managerToken.token = config.BearerToken
			managerToken.transport, err = rest.TransportFor(rest.AnonymousClientConfig(f.RESTConfig()))
			return err
		}()
	})
	f.check(managerToken.err)
	return account{managerToken.token, f.isolate(managerToken.transport)}
}
