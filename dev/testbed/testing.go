package testbed

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// sharedOutage is how long a Reboot or Redeploy takes down a machine of a shared testbed, unless the event states a
// duration.
const sharedOutage = time.Second

var shared struct {
	sync.Mutex
	testbed *Testbed
	err     error
}

// StartShared returns the shared testbed of the test binary and starts it on the first call. Tests must use their own
// namespaces and pools. A TestMain stops it:
//
//	func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }
func StartShared(tb testing.TB) *Testbed {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.testbed == nil && shared.err == nil {
		shared.testbed, shared.err = Start(context.Background(), Options{
			Azure: azure.Options{Outage: sharedOutage}, ARM: azure.ARMOptions{DeleteTime: sharedOutage},
		})
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.testbed
}

// StartForTest starts a testbed for one test and stops it when the test ends.
func StartForTest(tb testing.TB, o Options) *Testbed {
	tb.Helper()
	t, err := Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := t.Stop(); err != nil {
			tb.Errorf("stop the testbed: %v", err)
		}
	})
	return t
}

// goroutineDrainTime is longer than any sleep of the goroutines that a stopped testbed in memory has left.
const goroutineDrainTime = 10 * time.Minute

// NewVirtualForTest returns a testbed in virtual time, and stops it when the test ends. See NewVirtual.
func NewVirtualForTest(tb testing.TB, o Options) *Testbed {
	tb.Helper()
	t, err := NewVirtual(tb.TempDir(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := t.Stop(); err != nil {
			tb.Error(err)
		}
		time.Sleep(goroutineDrainTime)
	})
	return t
}

// LogBuffer is a buffer for log output. It can be read while another goroutine writes to it. The zero value is ready
// to use.
type LogBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestTimeout is the maximum duration of a test. Tests take far less, unless the machine is busy.
const TestTimeout = 6 * time.Minute

// TestContext returns a context that ends with the test, or after TestTimeout.
func TestContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), TestTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// WriteProxyKubeconfig writes a kubeconfig for a client that reaches the API server through a proxy, and returns its
// path. The credentials come from the kubeconfig at the given path. The wrappers wrap the transport from the proxy
// to the API server.
func (t *Testbed) WriteProxyKubeconfig(tb testing.TB, proxy *faultproxy.Proxy, credentials string, wrappers ...func(http.RoundTripper) http.RoundTripper) string {
	tb.Helper()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	config := rest.AnonymousClientConfig(t.RESTConfig())
	transport, err := rest.TransportFor(config)
	check(err)
	for _, wrap := range wrappers {
		transport = wrap(transport)
	}
	server, err := url.Parse(config.Host)
	check(err)
	front, err := proxy.ServeTLS("api", server, transport, t.ARMServer().Certificate) // client-go sends tokens only over TLS
	check(err)
	to := filepath.Join(tb.TempDir(), "kubeconfig")
	check(faultproxy.WriteKubeconfig(credentials, to, front))
	loaded, err := clientcmd.LoadFromFile(to)
	check(err)
	for _, cluster := range loaded.Clusters {
		cluster.CertificateAuthorityData = t.ARMServer().CA
	}
	check(clientcmd.WriteToFile(*loaded, to))
	return to
}

// NewCommand returns a command that runs a binary until ctx ends. The command has only the environment variables of
// [controlplane.MinimalEnvironment].
func NewCommand(ctx context.Context, tb testing.TB, program string, args ...string) *exec.Cmd {
	tb.Helper()
	path, err := EnsureBinary(program)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // the path comes from Binary
	cmd.Env = controlplane.MinimalEnvironment(tb.TempDir())
	return cmd
}

// FindPeer returns the path of another project's program, from the host or from the directory of dev/peers/install. Without
// the program, it skips the test.
func FindPeer(tb testing.TB, name string) string {
	tb.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	root, err := RepositoryRoot()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(root, "bin", "peers", name)
	if _, err := os.Stat(path); err != nil {
		tb.Skipf("%s is not installed (dev/peers/install)", name)
	}
	return path
}

// StartProcessForTest starts a process, see KillAfterTest.
func (t *Testbed) StartProcessForTest(ctx context.Context, tb testing.TB, cmd controlplane.Command) *controlplane.Process {
	tb.Helper()
	p, err := t.StartProcess(ctx, cmd)
	if err != nil {
		tb.Fatal(err)
	}
	KillAfterTest(tb, p)
	return p
}

// KillAfterTest kills a process when the test ends. If the test failed, it prints the process's log.
func KillAfterTest(tb testing.TB, p *controlplane.Process) {
	tb.Helper()
	tb.Cleanup(func() {
		if p.IsAlive() {
			_ = p.Kill()
		}
		if tb.Failed() {
			raw, _ := os.ReadFile(p.LogFile())
			tb.Logf("log of %s:\n%s", p.Name(), raw)
		}
	})
}

// StartAgentForTest starts the agent of an instance, see StartAgent and KillAgentAfterTest.
func (t *Testbed) StartAgentForTest(ctx context.Context, tb testing.TB, pool controlplane.AKSPool, instance int, flags ...string) *Agent {
	tb.Helper()
	a, err := t.StartAgent(ctx, pool, instance, flags...)
	if err != nil {
		tb.Fatal(err)
	}
	KillAgentAfterTest(tb, a)
	return a
}

// KillAgentAfterTest kills an agent when the test ends. If the test failed, it prints the agent's log.
func KillAgentAfterTest(tb testing.TB, a *Agent) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := a.KillIfAlive(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			raw, _ := os.ReadFile(a.LogFile()) // only for people
			tb.Logf("log of the agent on %s:\n%s", a.Node, raw)
		}
	})
}

// AnnounceForTest announces an event for instances of a pool. Without Resources, it announces it for the first instance.
func (t *Testbed) AnnounceForTest(tb testing.TB, pool controlplane.AKSPool, a azure.Announcement) azure.EventRecord {
	tb.Helper()
	a.ScaleSet = pool.ScaleSetName()
	if a.Resources == nil {
		a.Resources = []string{pool.ResourceName(0)}
	}
	r, err := t.Azure.Announce(a)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// RunSlipway runs a command of slipway as the administrator, and returns its standard output. An error contains the
// standard error.
func (t *Testbed) RunSlipway(ctx context.Context, tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	cmd := NewCommand(ctx, tb, "slipway", append(args, "--kubeconfig", t.Kubeconfig())...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("slipway %v: %w: %s", args, err, stderr.Bytes())
	}
	return string(out), err
}

// WriteTempFile writes a file for the duration of the test and returns its path.
func WriteTempFile(tb testing.TB, name, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// DefaultParallel is the default of the test flag -parallel. Most tests wait for notices and for pods to stop, so
// they use little processor time. A package whose tests start many programs lowers it in TestMain.
var DefaultParallel = 24

// RunTestsAndStopShared runs a package's tests, stops the shared testbed, and returns the exit code.
func RunTestsAndStopShared(m *testing.M) int {
	// The second handler sleeps relative to the time of the last error. In another bubble of virtual time this may be
	// years.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(DefaultParallel)); err != nil {
			println("-test.parallel:", err.Error())
			return 1
		}
	}
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.testbed == nil {
		return code
	}
	if err := shared.testbed.Stop(); err != nil {
		println("stop the shared testbed:", err.Error())
		return max(code, 1)
	}
	shared.testbed, shared.err = nil, errors.New("the shared testbed is stopped because the tests have ended")
	return code
}

// UseOneThread makes the Go runtime use one thread until the test ends. In virtual time, the race detector crashes
// on several threads (see tools/test). The test must not be parallel, because other tests need more threads.
func UseOneThread(tb testing.TB) {
	tb.Helper()
	before := runtime.GOMAXPROCS(1)
	tb.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// AddSummaryNote adds a line to the summary that `make test` prints. `make test` hides the logs of passing tests.
func AddSummaryNote(tb testing.TB, line string) {
	tb.Helper()
	tb.Log(line)
	path := os.Getenv("SLIPWAY_TEST_NOTES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0) //nolint:gosec // the path comes from make test
	if err == nil {
		_, err = fmt.Fprintln(f, line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		tb.Error(err)
	}
}
