// Package retirement_test retires real nodes of a real control plane, with the real manager or its parts. It checks what
// is left of the node, its pods, and its instance in the cloud.
package retirement_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// bed is a testbed with Slipway's types.
type bed struct {
	*testbed.Testbed
	access *access
	// virtual is set for a testbed in memory, in virtual time.
	virtual bool
}

// Background returns a context that outlives the test, for cleanups.
func (bed) Background() context.Context { return context.Background() }

// typesInstalled holds the result of installing Slipway's types.
var typesInstalled struct {
	sync.Once
	access *access
	err    error
}

func withTypes(t *testing.T) bed {
	t.Helper()
	b := bed{Testbed: testbed.StartShared(t)}
	typesInstalled.Do(func() {
		var root string
		if root, typesInstalled.err = testbed.RepositoryRoot(); typesInstalled.err == nil {
			typesInstalled.err = b.ApplyCRDs(t.Context(), filepath.Join(root, "api", "crds"), groups.GroupVersion(),
				groups.Resource, retirements.Resource)
		}
		if typesInstalled.err == nil {
			typesInstalled.access, typesInstalled.err = newAccess(b.Background(), b.RESTConfig())
		}
	})
	if typesInstalled.err != nil {
		t.Fatal(typesInstalled.err)
	}
	b.access = typesInstalled.access
	return b
}

// inMemory returns a testbed for one test in virtual time.
func inMemory(t *testing.T) bed {
	t.Helper()
	bed := bed{virtual: true, Testbed: testbed.NewVirtualForTest(t, testbed.Options{ARM: azure.ARMOptions{DeleteTime: time.Second}})}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	var err error
	if bed.access, err = newAccess(ctx, bed.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	return bed
}
