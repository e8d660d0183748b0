package controlplane

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// StartForTest starts a control plane for one test and stops it when the test ends.
func StartForTest(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	c, err := Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Stop(); err != nil {
			tb.Errorf("stopping the control plane: %v", err)
		}
	})
	return c
}

var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// StartShared returns the shared control plane of a test binary, and starts it on the first call. It has the default options
// and no nodes. Tests must use their own namespaces and nodes. A TestMain stops it:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
// Without TestMain the processes still end with the test binary, but the directory stays.
func StartShared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = Start(context.Background(), Options{})
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.cluster
}

// RunTestsAndStopShared runs a package's tests, stops the shared control plane, and returns the exit code.
func RunTestsAndStopShared(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return code
	}
	if err := shared.cluster.Stop(); err != nil {
		println("stopping the shared control plane:", err.Error())
		return max(code, 1)
	}
	shared.cluster, shared.err = nil, errors.New("the shared control plane is stopped because the tests have ended")
	return code
}
