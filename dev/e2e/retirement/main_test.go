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

// typesInstalled is whether Slipway's types are installed, and why not.
var typesInstalled struct {
	sync.Once
	err error
}

func withTypes(t *testing.T) bed {
	t.Helper()
	b := bed{testbed.Shared(t)}
	typesInstalled.Do(func() {
		var root string
		if root, typesInstalled.err = testbed.Root(); typesInstalled.err == nil {
			typesInstalled.err = b.ApplyTypes(t.Context(), filepath.Join(root, "api", "crds"), groups.GroupVersion(),
				groups.Resource, retirements.Resource)
		}
	})
	if typesInstalled.err != nil {
		t.Fatal(typesInstalled.err)
	}
	return b
}
