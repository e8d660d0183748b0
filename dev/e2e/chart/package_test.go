package chart_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

// TestEachPackageHasTheLibrary packages the charts as helm package does. It renders each package and compares it with
// its folder.
func TestEachPackageHasTheLibrary(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		slipwayChart: withEverything,
		handlerChart: "slipway: {image: registry.example.com/slipway/slipway:v0.1.0}",
	} {
		folder := load(t, name)
		file, err := chartutil.Save(folder, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		packed, err := loader.LoadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// Helm downloads missing dependencies from a repository. Without a repository, it needs no network.
		want := []*chart.Dependency{{Name: "slipway-library", Version: "0.1.0"}}
		if diff := cmp.Diff(want, packed.Metadata.Dependencies); diff != "" {
			t.Errorf("%s: dependencies: -want +got:\n%s", name, diff)
		}
		if all := packed.Dependencies(); len(all) != 1 || all[0].Name() != want[0].Name || all[0].Metadata.Version != want[0].Version {
			t.Errorf("%s: the package has %d charts, want the library alone, of the version that is asked for", name, len(all))
		}
		fromFolder, err := templates(t, folder, release(name, namespace), values(t, text))
		if err != nil {
			t.Fatal(err)
		}
		fromPackage, err := templates(t, packed, release(name, namespace), values(t, text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromFolder, fromPackage); diff != "" {
			t.Errorf("%s: -folder +package:\n%s", name, diff)
		}
	}
}
