package testbed

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
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
