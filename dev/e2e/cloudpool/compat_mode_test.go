package cloudpool_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
)

// TestCompatModeRunsInOneProcess uses a configuration of kubeaware-cloudpool-proxy, in front of a server of
// several pools.
func TestCompatModeRunsInOneProcess(t *testing.T) {
	t.Parallel()
	kind := emulator.Options{Kind: emulator.EC2, Region: "eu-west-1"}
	f := newFixture(t, "drop-in", 3, options{pool: kind})
	kind.Name = "drop-in-other"
	other := f.another(kind)
	multi := httptest.NewServer(emulator.NewMultiPoolHandler(map[string]*emulator.Pool{f.name: f.pool, kind.Name: other}))
	t.Cleanup(multi.Close)
	f.create(f.app("web", 3).Deployment())
	f.startCompatMode(map[string]any{"kubeConfigPath": f.Kubeconfig()}, multi.URL)
	pool := "/cloudpools/" + f.name
	if a := f.get(pool + "/pool"); a.code != http.StatusOK {
		t.Errorf("GET: %s", a)
	}
	f.list(f.name, kind.Name) // in the format of a server of several pools
	f.want(f.post(pool+"/pool/size", `{}`), http.StatusBadRequest, "setDesiredSize message did not specify a desiredSize")
	f.want(f.post(pool+"/terminate", termination("i-0000000000000000", true)), http.StatusInternalServerError,
		"failed to terminate machine", "no kubernetes node with external ID i-0000000000000000 exists")
	f.want(f.post(pool+"/terminate", termination(other.Machines()[0].ID, true)), http.StatusInternalServerError,
		"failed to terminate machine", "machine not found")
	if n := len(other.Machines()); n != 1 || len(f.pool.Machines()) != 3 {
		t.Errorf("%d machines of the other pool, want 1, and %d of this one, want 3", n, len(f.pool.Machines()))
	}
	f.want(f.post(pool+"/pool/size", size(2)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 2 || f.pool.DesiredSize() != 2 {
		t.Errorf("%d machines, and a desired size of %d; want 2", n, f.pool.DesiredSize())
	}
	f.want(f.post(pool+"/terminate", termination(f.pool.Machines()[0].ID, true)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 1 || f.pool.DesiredSize() != 1 {
		t.Errorf("%d machines, and a desired size of %d; want 1", n, f.pool.DesiredSize())
	}
	// The pods of the last node have no other node.
	f.want(f.post(pool+"/pool/size", size(0)), http.StatusInternalServerError, "found no viable candidates for scaling down: ")
}

// TestCompatModePresentsACertificateToTheAPIServer uses the second form of apiServer.auth.
func TestCompatModePresentsACertificateToTheAPIServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "certified", 2, options{})
	f.create(f.app("web", 1).Deployment())
	admin := f.RESTConfig()
	auth := map[string]any{}
	for key, content := range map[string][]byte{
		"clientCertPath": admin.CertData, "clientKeyPath": admin.KeyData, "caCertPath": admin.CAData,
	} {
		path := filepath.Join(t.TempDir(), key)
		f.check(os.WriteFile(path, content, 0o600))
		auth[key] = path
	}
	f.startCompatMode(auth, f.server.URL)
	f.want(f.post("/pool/size", size(1)), http.StatusOK)
	if n := len(f.pool.Machines()); n != 1 || f.pool.DesiredSize() != 1 {
		t.Errorf("%d machines, and a desired size of %d; want 1", n, f.pool.DesiredSize())
	}
}

// startCompatMode starts the compatibility mode, strict, in front of a server. auth authenticates it to the API server.
func (f *fixture) startCompatMode(auth map[string]any, backend string) {
	f.t.Helper()
	config, err := json.Marshal(map[string]any{
		"server":    map[string]any{"timeout": "60s"},
		"apiServer": map[string]any{"url": f.RESTConfig().Host, "auth": auth},
		"backend":   map[string]any{"cloudPoolUrl": backend, "timeout": "30s"},
	})
	f.check(err)
	file := filepath.Join(f.t.TempDir(), "config.json")
	f.check(os.WriteFile(file, config, 0o600))
	port, err := controlplane.ReserveFreePort(f.ctx)
	f.check(err)
	health, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	f.front = "http://127.0.0.1:" + strconv.Itoa(port)
	f.start("compat", "http://"+health+"/readyz", kubeaware.Tool, "--config-file="+file, "-port", strconv.Itoa(port), "--address=127.0.0.1",
		"--v=4", "--logtostderr", "--namespace", namespace, "--metrics-listen", health, "--strict-compat")
}
