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

// outage is how long the machines of a shared testbed are away in a Reboot or Redeploy that does not say.
const outage = time.Second

// shared is the testbed of the test binary.
var shared struct {
	sync.Mutex
	testbed *Testbed
	err     error
}

// Shared returns the one testbed of a test binary, and starts it when it is asked for the first time. Tests keep apart
// by namespaces and pools of their own. A TestMain stops it:
//
//	func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }
func Shared(tb testing.TB) *Testbed {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.testbed == nil && shared.err == nil {
		shared.testbed, shared.err = Start(context.Background(), Options{
			Azure: azure.Options{Outage: outage}, ARM: azure.ARMOptions{DeleteTime: outage},
		})
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.testbed
}

// ForTest starts a testbed of the test's own and stops it when the test ends.
func ForTest(tb testing.TB, o Options) *Testbed {
	tb.Helper()
	t, err := Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := t.Stop(); err != nil {
			tb.Errorf("stopping the testbed: %v", err)
		}
	})
	return t
}

// windDown is longer than anything that a testbed in memory leaves behind sleeps before it ends.
const windDown = 10 * time.Minute

// VirtualForTest returns a testbed of the test's own in virtual time, see Virtual. It ends with the test.
func VirtualForTest(tb testing.TB, o Options) *Testbed {
	tb.Helper()
	t, err := Virtual(tb.TempDir(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := t.Stop(); err != nil {
			tb.Error(err)
		}
		time.Sleep(windDown)
	})
	return t
}

// Log is a log that may be read while it is written. The zero value is ready to use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Patience bounds a test. Nothing takes nearly as long, but the machine may be busy.
const Patience = 6 * time.Minute

// Context returns a context that ends with the test, and after Patience.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// Behind returns the path of a kubeconfig that leads a process to the API server through a proxy, with its credentials. The
// wrappers change the transport of the proxy.
func (t *Testbed) Behind(tb testing.TB, proxy *faultproxy.Proxy, credentials string, wrappers ...func(http.RoundTripper) http.RoundTripper) string {
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
	front, err := proxy.ServeTLS("api", server, transport, t.ARMServer().Certificate) // client-go sends no token without TLS
	check(err)
	to := filepath.Join(tb.TempDir(), "kubeconfig")
	check(faultproxy.Kubeconfig(credentials, to, front))
	loaded, err := clientcmd.LoadFromFile(to)
	check(err)
	for _, cluster := range loaded.Clusters {
		cluster.CertificateAuthorityData = t.ARMServer().CA
	}
	check(clientcmd.WriteToFile(*loaded, to))
	return to
}

// Command prepares a run of one of the product's programs as from a shell in which nothing is set but [controlplane.Environment].
func Command(ctx context.Context, tb testing.TB, program string, args ...string) *exec.Cmd {
	tb.Helper()
	path, err := Binary(program)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // it is one of the product's
	cmd.Env = controlplane.Environment(tb.TempDir())
	return cmd
}

// File writes a file that lasts as long as the test, and returns its path.
func File(tb testing.TB, name, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// sideBySide is how many parallel tests run at once unless -parallel says otherwise: they wait for notices and for
// pods to stop, and hardly compute.
const sideBySide = "24"

// Main runs a package's tests, stops the shared testbed if there was one, and returns the exit code.
func Main(m *testing.M) int {
	// The second handler sleeps by the time of the last error, which in another bubble of virtual time may be years away.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", sideBySide); err != nil {
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
		println("stopping the shared testbed:", err.Error())
		return max(code, 1)
	}
	shared.testbed, shared.err = nil, errors.New("the shared testbed was stopped: the tests are over")
	return code
}

// OneThread has a test in virtual time run on one thread, and restores the number of threads when it ends. On several, the race detector
// itself crashes in virtual time, see tools/test. The test must not be parallel: what others serve and judge needs the other threads.
func OneThread(tb testing.TB) {
	tb.Helper()
	before := runtime.GOMAXPROCS(1)
	tb.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// Note adds a line to the summary of `make test`, which does not show the logs of tests that pass.
func Note(tb testing.TB, said string) {
	tb.Helper()
	tb.Log(said)
	path := os.Getenv("SLIPWAY_TEST_NOTES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0) //nolint:gosec // where make test wants it
	if err == nil {
		_, err = fmt.Fprintln(f, said)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		tb.Error(err)
	}
}
