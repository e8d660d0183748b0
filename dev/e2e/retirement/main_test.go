// Package retirement_test takes real nodes of a real control plane out of service, with the real manager or its parts,
// and looks at what is left: of the node, of its pods, of its machine in the cloud.
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

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// bed is a testbed with Slipway's types.
type bed struct {
	*testbed.Testbed
	access *access
	// virtual is set for one in memory, in virtual time.
	virtual bool
}

// Background outlives the test, for what cleans up after it.
func (bed) Background() context.Context { return context.Background() }

// typesInstalled is whether Slipway's types are installed, and why not.
var typesInstalled struct {
	sync.Once
	access *access
	err    error
}

func withTypes(t *testing.T) bed {
	t.Helper()
	b := bed{Testbed: testbed.Shared(t)}
	typesInstalled.Do(func() {
		var root string
		if root, typesInstalled.err = testbed.Root(); typesInstalled.err == nil {
			typesInstalled.err = b.ApplyTypes(t.Context(), filepath.Join(root, "api", "crds"), groups.GroupVersion(),
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

// inMemory is a testbed of the test's own in virtual time.
func inMemory(t *testing.T) bed {
	t.Helper()
	bed := bed{virtual: true, Testbed: testbed.VirtualForTest(t, testbed.Options{ARM: azure.ARMOptions{DeleteTime: time.Second}})}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	var err error
	if bed.access, err = newAccess(ctx, bed.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	return bed
}
