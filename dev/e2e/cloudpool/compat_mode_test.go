package cloudpool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
)

// TestCompatModeServesOnePoolOfSeveral uses a configuration of kubeaware-cloudpool-proxy, in front of a server of several
// pools. It presents a certificate to the API server.
func TestCompatModeServesOnePoolOfSeveral(t *testing.T) {
	t.Parallel()
	kind := emulator.Options{Kind: emulator.EC2, Region: "eu-west-1"}
	f := newFixture(t, "drop-in", 3, options{pool: kind})
	kind.Name = "drop-in-other"
	other := f.createPool(kind)
	multi := httptest.NewServer(emulator.NewMultiPoolHandler(map[string]*emulator.Pool{f.name: f.pool, kind.Name: other}))
	t.Cleanup(multi.Close)
	f.create(f.app("web", 3).Deployment())
	admin, auth := f.RESTConfig(), map[string]any{}
	for key, content := range map[string][]byte{"clientCertPath": admin.CertData, "clientKeyPath": admin.KeyData, "caCertPath": admin.CAData} {
		auth[key] = testbed.WriteTempFile(t, key, string(content))
	}
	f.startCompatMode(auth, multi.URL)
	pool := "/cloudpools/" + f.name
	if a := f.get(pool + "/pool"); a.code != http.StatusOK {
		t.Errorf("GET: %s", a)
	}
	f.checkPoolList(f.name, kind.Name) // in the format of a server of several pools
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

// startCompatMode starts the compatibility mode, strict, in front of a server. auth authenticates it to the API server.
func (f *fixture) startCompatMode(auth map[string]any, backend string) {
	f.t.Helper()
	config, err := json.Marshal(map[string]any{
		"server":    map[string]any{"timeout": "60s"},
		"apiServer": map[string]any{"url": f.RESTConfig().Host, "auth": auth},
		"backend":   map[string]any{"cloudPoolUrl": backend, "timeout": "30s"},
	})
	f.check(err)
	file := testbed.WriteTempFile(f.t, "config.json", string(config))
	port, err := controlplane.ReserveFreePort(f.ctx)
	f.check(err)
	health, err := controlplane.ReserveFreeAddress(f.ctx)
	f.check(err)
	f.address = "http://127.0.0.1:" + strconv.Itoa(port)
	f.start("compat", "http://"+health+"/readyz", kubeaware.Tool, "--config-file="+file, "-port", strconv.Itoa(port), "--address=127.0.0.1",
		"--v=4", "--logtostderr", "--namespace", namespace, "--metrics-listen", health, "--strict-compat")
}

// ran holds the exit code and the output of a process.
type ran struct {
	code           int
	stdout, stderr string
}

// runCompatMode runs the compatibility mode until it exits on its own, which it must do.
func runCompatMode(t *testing.T, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := testbed.NewCommand(ctx, t, "slipway", append([]string{kubeaware.Tool}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Dir = t.TempDir()
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) || ctx.Err() != nil {
		t.Fatalf("%q: %v, %v\n%s", args, err, ctx.Err(), &stderr)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestI10CompatModeReportsStartErrors checks that each failed start exits with 1. The last line of stderr begins with the
// original tool's message. A unit test has more errors.
func TestI10CompatModeReportsStartErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"server": {"timeout": 5}}`: "error: could not parse config: failed to parse proxy config: server.timeout: 5: want a duration in quotes",
		`{}`:                         "error: could not parse config: invalid proxy configuration: proxy config: apiServer: missing field: url",
		`{"apiServer": {"url": "https://127.0.0.1:1", "auth": {"kubeConfigPath": "/none"}}, "backend": {"url": "http://127.0.0.1:1"}}`:                                            "error: failed to create kubernetes client: failed to load kubeconfig /none: ",
		`{"apiServer": {"url": "https://127.0.0.1:1", "auth": {"clientCertPath": "/none", "clientKeyPath": "/k", "caCertPath": "/a"}}, "backend": {"url": "http://127.0.0.1:1"}}`: "error: failed to create kubernetes client: could not create kubernetes client: open /none: ",
	} {
		checkFailedStart(t, runCompatMode(t, "--config-file="+testbed.WriteTempFile(t, "config.json", text)), 1, want)
	}
	checkFailedStart(t, runCompatMode(t), 1, "error: failed to open configuration file: open "+kubeaware.DefaultFile+": ")
}

// checkFailedStart checks the exit code of a process that could not start, and its last line.
func checkFailedStart(t *testing.T, got ran, code int, last string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
	if got.code != code || got.stdout != "" || !strings.HasPrefix(lines[len(lines)-1], last) || strings.Contains(got.stderr, "goroutine ") {
		t.Errorf("ended with %d, stdout %q, stderr:\n%s\nwant %d and %q", got.code, got.stdout, got.stderr, code, last)
	}
}

// TestCompatModeFlagsMatchTool checks flags that end the process before it reads a configuration. Go's flag package exits
// in the same way.
func TestCompatModeFlagsMatchTool(t *testing.T) {
	t.Parallel()
	got := runCompatMode(t, "-config-file=/none.json", "--version", "-logtostderr", "--v=8")
	version, ok := strings.CutPrefix(got.stdout, "Version: ")
	if got.code != 0 || !ok || strings.TrimSpace(version) == "" || strings.Count(got.stdout, "\n") != 1 || got.stderr != "" {
		t.Errorf("-version: %+v", got)
	}
	got = runCompatMode(t, "--prot=1")
	if !strings.HasPrefix(got.stderr, "flag provided but not defined: -prot\nUsage of "+kubeaware.Tool+":\n") || !strings.Contains(got.stderr, "-config-file") {
		t.Errorf("an unknown flag: %s; want the error and the usage", got.stderr)
	}
	checkFailedStart(t, got, 2, "error: flag provided but not defined: -prot")
	checkFailedStart(t, runCompatMode(t, "--port=65536"), 2, "error: -port: 65536: want 0 to 65535")
	if got = runCompatMode(t, "-help"); got.code != 0 || got.stdout != "" || !strings.HasPrefix(got.stderr, "Usage of "+kubeaware.Tool+":\n") {
		t.Errorf("-help: %+v", got)
	}
}

// TestCompatModeExitsIfPortIsInUse occupies the port before the process starts.
func TestCompatModeExitsIfPortIsInUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "port", 1, options{})
	listener, err := new(net.ListenConfig).Listen(f.ctx, "tcp", "127.0.0.1:0")
	f.check(err)
	t.Cleanup(func() { _ = listener.Close() })
	file := testbed.WriteTempFile(t, "config.json", `{"apiServer": {"url": "`+f.RESTConfig().Host+`", "auth": {"kubeConfigPath": "`+f.Kubeconfig()+`"}},
		"backend": {"url": "`+f.server.URL+`"}}`)
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	got := runCompatMode(t, "--config-file="+file, "--address=127.0.0.1", "--port="+port, "--metrics-listen=", "--namespace="+namespace)
	if got.code != 1 || !strings.Contains(got.stderr, "error: ") || !strings.Contains(got.stderr, "127.0.0.1:"+port) || !strings.Contains(got.stderr, "address already in use") {
		t.Errorf("ended with %d:\n%s", got.code, got.stderr)
	}
}
