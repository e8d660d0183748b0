// Package chart_test uses the Helm charts and the kustomizations as their users do. It renders them, checks refusals,
// and applies them to a real API server. It runs the programs as the rendered objects specify.
package chart_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

const (
	slipwayChart = "slipway"
	crdChart     = "slipway-crds"
	handlerChart = "aks-node-termination-handler"
	awsHandler   = "aws-node-termination-handler"
	namespace    = "slipway"
)

// registry contains the required value of the chart slipway.
const registry = "image: {registry: registry.example.com/slipway}\n"

// root returns the root of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var loaded sync.Map // charts by name

// load returns a chart that the tests share.
func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	once, _ := loaded.LoadOrStore(name, sync.OnceValues(func() (*chart.Chart, error) {
		return loader.LoadDir(filepath.Join(root(t), "charts", name))
	}))
	c, err := once.(func() (*chart.Chart, error))()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// release returns the options to render a release without an installation.
func release(name, in string) chartutil.ReleaseOptions {
	return chartutil.ReleaseOptions{Name: name, Namespace: in, Revision: 1, IsInstall: true}
}

// templates renders a chart as helm template does. The result is by template file.
func templates(t *testing.T, c *chart.Chart, r chartutil.ReleaseOptions, values map[string]any) (map[string]string, error) {
	t.Helper()
	return templatesOn(t, newestKubernetes, c, r, values)
}

// newestKubernetes is a version of Kubernetes that the charts install everything on.
const newestKubernetes = "v1.37.0"

func kubeVersion(t *testing.T, version string) *chartutil.KubeVersion {
	t.Helper()
	v, err := chartutil.ParseKubeVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// templatesOn renders a chart for a cluster with a version of Kubernetes.
func templatesOn(t *testing.T, version string, c *chart.Chart, r chartutil.ReleaseOptions, values map[string]any) (map[string]string, error) {
	t.Helper()
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *kubeVersion(t, version)
	all, err := chartutil.ToRenderValues(c, values, r, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// values parses the text of a values file.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// manifest renders a chart with values into one text.
func manifest(t *testing.T, name string, r chartutil.ReleaseOptions, text string) string {
	t.Helper()
	files, err := templates(t, load(t, name), r, values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if body := strings.TrimSpace(files[file]); body != "" && path.Ext(file) == ".yaml" {
			fmt.Fprintf(&all, "---\n# %s\n%s\n", file, strings.TrimPrefix(body, "---\n"))
		}
	}
	return all.String()
}

// objects parses the objects of a manifest, in its order.
func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	docs := utilyaml.NewYAMLReader(newReader(text))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{}
		// Strict parsing finds a duplicate key, which is a bug in the template.
		if err := yaml.UnmarshalStrict(doc, &o.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

// find returns the object with a kind and name, as its own type.
func find[T any](t *testing.T, all []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, o := range all {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		into := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		return into
	}
	t.Fatalf("no %s %s in %s", kind, name, names(all))
	return nil
}

// names returns kind/name of each object.
func names(all []*unstructured.Unstructured) []string {
	var list []string
	for _, o := range all {
		list = append(list, o.GetKind()+"/"+o.GetName())
	}
	slices.Sort(list)
	return list
}
