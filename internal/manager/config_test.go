package manager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestRecordsOfSurgesAreInTheNamespaceOfThePod(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	must.NoError(t, os.WriteFile(file, []byte("slipway\n"), 0o600))
	inPod := Config{LeaderElectionNamespace: "kube-system", namespaceFile: file}
	check.Is(t, "slipway", inPod.recordNamespace())
	outside := Config{LeaderElectionNamespace: "kube-system", namespaceFile: file + "-missing"}
	check.Is(t, "kube-system", outside.recordNamespace())
}
