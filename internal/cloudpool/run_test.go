package cloudpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/semaphore"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func uuid(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

// unreachableLeases is an API server that refuses connections.
type unreachableLeases struct{ semaphore.API }

func (unreachableLeases) ListLeases(context.Context, string, string) ([]kubeapi.Lease, error) {
	return nil, errors.New("connection refused")
}

func (unreachableLeases) CreateLease(context.Context, kubeapi.Lease) (*kubeapi.Lease, error) {
	return nil, errors.New("connection refused")
}

// fakeServer is a cloudpool server of two machines that records requested changes.
type fakeServer struct {
	mu      sync.Mutex
	changes []string
}

func (b *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		raw, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		b.changes = append(b.changes, r.URL.Path+" "+string(raw))
		b.mu.Unlock()
		return
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	if r.URL.Path == "/pool/size" {
		fmt.Fprintf(w, `{"timestamp":%q,"desiredSize":2,"allocated":2,"active":2}`, now)
		return
	}
	machine := `{"id":%q,"machineState":"RUNNING","membershipStatus":{"active":true,"evictable":true}}`
	fmt.Fprintf(w, `{"timestamp":%q,"machines":[`+machine+`,`+machine+`]}`, now, uuid(1), uuid(2))
}

func (b *fakeServer) changeRequests() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.changes, "; ")
}

// servingLog sends the address of the API from the log to a channel.
type servingLog struct {
	io.Writer
	addresses chan string
}

// Write gets one log entry per call.
func (l servingLog) Write(entry []byte) (int, error) {
	var e struct{ Msg, Address string }
	if json.Unmarshal(entry, &e) == nil && e.Msg == "serving the cloudpool API" {
		l.addresses <- e.Address
	}
	return l.Writer.Write(entry)
}

// runWithoutKubernetes runs the API with an unavailable API server and returns its address.
func runWithoutKubernetes(t *testing.T, apiServer string, backend http.Handler) string {
	t.Helper()
	server := httptest.NewServer(backend)
	t.Cleanup(server.Close)
	pools := must.Get(provider.New(provider.Config{Pools: []provider.PoolConfig{{Name: "workers", URL: server.URL}}}, provider.Options{}))(t)
	var c Config
	c.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	c.Address, c.MetricsListen, c.Namespace, c.Holder, c.LogFormat = "127.0.0.1:0", "", "slipway", "a", "json"
	log := servingLog{t.Output(), make(chan string, 1)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, c, Dependencies{
			Kube: &rest.Config{Host: apiServer}, Leases: unreachableLeases{}, Clouds: map[string]cloud.Provider{provider.Name: pools}, Stderr: log,
		})
	}()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			check.Not(t, err != nil, "the front ended: %v", err)
		case <-time.After(2 * time.Minute): // requests have 10 s to finish
			t.Error("the front does not end")
		}
	})
	select {
	case address := <-log.addresses:
		return "http://" + address
	case err := <-ended:
		ended <- nil
		t.Fatalf("the front has ended: %v", err)
	}
	return ""
}

// sendRequest sends a request and returns the status code and the detail of an error.
func sendRequest(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	must.Not(t, err != nil, "%s %s: %v", method, url, err)
	defer func() { _ = answer.Body.Close() }()
	var said struct{ Detail string }
	_ = json.NewDecoder(answer.Body).Decode(&said)
	return answer.StatusCode, said.Detail
}

func TestRequestsPassWhileKubernetesIsUnavailable(t *testing.T) {
	silent := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	for name, apiServer := range map[string]string{"refuses": "http://127.0.0.1:1", "is silent": "http://" + silent.Addr().String()} {
		t.Run(name, func(t *testing.T) { // not parallel: Run sets the loggers of the whole process
			backend := &fakeServer{}
			front := runWithoutKubernetes(t, apiServer, backend)
			for _, tt := range []struct {
				method, path, body string
				want               int
			}{
				{http.MethodGet, "/pool", "", 200},
				{http.MethodGet, "/pool/size", "", 200},
				{http.MethodPost, "/pool/serviceState", `{"machineId":"` + uuid(1) + `","serviceState":"IN_SERVICE"}`, 200},
				{http.MethodPost, "/pool/size", `{"desiredSize":3}`, 200},
				{http.MethodPost, "/pool/size", `{"desiredSize":1}`, 503},
				{http.MethodPost, "/pool/terminate", `{"machineId":"` + uuid(1) + `","decrementDesiredSize":true}`, 503},
				{http.MethodPost, "/pool/detach", `{"machineId":"` + uuid(1) + `"}`, 503},
			} {
				if name == "is silent" && (tt.want != 200 || strings.Contains(tt.path, "serviceState")) {
					continue // each of these waits for its timeout
				}
				if code, detail := sendRequest(t, tt.method, front+tt.path, tt.body); code != tt.want || code == 503 && detail == "" {
					t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, code, detail, tt.want)
				}
			}
			if asked := backend.changeRequests(); !strings.Contains(asked, `/pool/size {"desiredSize":3}`) || strings.Contains(asked, "terminate") ||
				strings.Contains(asked, `:1}`) {
				t.Errorf("the backend was asked %s", asked)
			}
		})
	}
}

func TestI10UnsafeConfigIsRefused(t *testing.T) {
	good := func() Config {
		return Config{
			ListenOptions: httpserver.ListenOptions{Address: "127.0.0.1:1", ReadTimeout: time.Minute},
			ServerOptions: httpserver.ServerOptions{BackendTimeout: time.Minute, MaxBody: 1024},
			UpdaterOptions: controller.UpdaterOptions{MaxConcurrentRemovals: 1, Namespace: "n", Holder: "h", Timeouts: controller.Timeouts{
				NodeRegistration: time.Minute, PollInterval: time.Second, FailureTolerance: time.Second, RetirementStart: time.Second, PodSettle: time.Second,
			}},
		}
	}
	for want, change := range map[string]func(*Config){
		"":                                 func(*Config) {},
		"want --tls-cert-file":             func(c *Config) { c.Address = ":8080" },
		"clients are not authenticated":    func(c *Config) { c.Address, c.TLSCertFile, c.TLSKeyFile = "10.0.0.1:1", "a", "b" },
		"--tls-private-key-file: only one": func(c *Config) { c.TLSCertFile = "a" },
		"client certificates require TLS":  func(c *Config) { c.ClientCAFile = "a" },
		"--refuse: \"size\"":               func(c *Config) { c.RefusedActions = []string{"size"} },
		"--max-concurrent-removals: 0":     func(c *Config) { c.MaxConcurrentRemovals = 0 },
		"--policy":                         func(c *Config) { c.Policy = "Random" },
		"--namespace":                      func(c *Config) { c.Namespace = "" },
		"--identity":                       func(c *Config) { c.Holder = "" },
		"--max-body: 1:":                   func(c *Config) { c.MaxBody = 1 },
		"--poll-interval: 0s":              func(c *Config) { c.Timeouts.PollInterval = 0 },
		"--listen: \"nowhere\"":            func(c *Config) { c.Address = "nowhere" },
		"--native-refresh: 1h0m0s: want 0": func(c *Config) { c.NativeRefresh = time.Hour },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	open := good()
	open.Address, open.Insecure = ":8080", true
	if err := open.Validate(); err != nil {
		t.Errorf("with --insecure: %v", err)
	}
}

func TestI10TooLongPoolNameIsRefused(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("p", maxPoolName):   "",
		strings.Repeat("p", maxPoolName+1): "the name has 54 characters: want at most 53",
	} {
		if err := checkPoolNames([]*httpserver.ServedPool{{Name: name}}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if problems := validation.IsValidLabelValue(controller.PoolObjectName(name)[len("slipway-"):]); (len(problems) > 0) != (want != "") {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
