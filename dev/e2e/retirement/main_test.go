// Package retirement_test takes real nodes of a real control plane out of service, with the real manager or its parts,
// and looks at what is left: of the node, of its pods, of its machine in the cloud.
package retirement_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// bed is the package's shared testbed, with Slipway's types installed.
type bed struct{ *testbed.Testbed }

// Background outlives the test, for what cleans up after it.
func (bed) Background() context.Context { return context.Background() }

// types is whether Slipway's types are installed, and why not.
var types struct {
	sync.Once
	err error
}

func withTypes(t *testing.T) bed {
	t.Helper()
	b := bed{testbed.Shared(t)}
	types.Do(func() {
		var root string
		if root, types.err = testbed.Root(); types.err == nil {
			types.err = b.ApplyTypes(t.Context(), filepath.Join(root, "api", "crds"), groups.GroupVersion(),
				groups.Resource, retirements.Resource)
		}
	})
	if types.err != nil {
		t.Fatal(types.err)
	}
	return b
}
