package controlplane

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// requiredModule matches a required module with its version in a go.mod.
var requiredModule = regexp.MustCompile(`(?m)^(?:require\s+|\t)(\S+) (v\S+)`)

func readRequirements(t *testing.T, file string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	must.NoError(t, err)
	versions := map[string]string{}
	for _, m := range requiredModule.FindAllSubmatch(raw, -1) {
		versions[string(m[1])] = string(m[2])
	}
	return versions
}

// TestProductAndDevModuleRequireSameVersions checks that both modules require the same versions. Otherwise the tests of
// the dev module compile most of Kubernetes' libraries again, which takes minutes.
func TestProductAndDevModuleRequireSameVersions(t *testing.T) {
	t.Parallel()
	dev, err := findDevModule()
	must.NoError(t, err)
	product, here := readRequirements(t, filepath.Join(filepath.Dir(dev), "go.mod")), readRequirements(t, filepath.Join(dev, "go.mod"))
	both := 0
	for module, version := range product {
		wanted, ok := here[module]
		if !ok {
			continue
		}
		both++
		if version != wanted {
			t.Errorf("go.mod requires %s %s, and dev/go.mod %s: go get the higher version in both", module, version, wanted)
		}
	}
	if both < 50 {
		t.Errorf("the two modules share only %d requirements: want Kubernetes' libraries and their dependencies", both)
	}
}
