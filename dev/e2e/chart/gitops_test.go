package chart_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The types of Argo CD and Flux, with the fields that docs/gitops.md uses. An unknown field is an error. Sources:
// https://argo-cd.readthedocs.io/en/stable/operator-manual/application.yaml,
// https://fluxcd.io/flux/components/helm/helmreleases/ and https://fluxcd.io/flux/components/source/helmrepositories/
type (
	application struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Project string `json:"project"`
			Source  struct {
				RepoURL, Chart, TargetRevision string
				Helm                           struct {
					ReleaseName  string         `json:"releaseName"`
					ValuesObject map[string]any `json:"valuesObject"`
				}
			}
			Destination struct{ Server, Namespace string }
			SyncPolicy  struct {
				Automated   struct{ Prune, SelfHeal bool }
				SyncOptions []string
				Retry       struct{ Limit int }
			}
		}
	}
	helmRepository struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Type, URL string
			Interval  metav1.Duration
		}
	}
	helmRelease struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Interval                     metav1.Duration
			ReleaseName, TargetNamespace string
			DependsOn                    []struct{ Name string }
			Chart                        struct {
				Spec struct {
					Chart, Version string
					SourceRef      struct{ Kind, Name string }
				}
			}
			Install struct{ CreateNamespace bool }
			Upgrade struct {
				Remediation struct{ Retries int }
			}
			Values map[string]any
		}
	}
)

// recipe is a chart with its values, as a GitOps tool installs it.
type recipe struct {
	chart, repository, version, name, namespace string
	values                                      map[string]any
}

// recipes returns what the page installs with each tool, in its order.
func recipes(t *testing.T) (argo, flux []recipe) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	var repository helmRepository
	for _, block := range strings.Split(string(page), "\n```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "\n```\n")
		for _, o := range objects(t, text+"\n") {
			switch gvk := o.GroupVersionKind().String(); gvk {
			case "argoproj.io/v1alpha1, Kind=Application":
				a := decode[application](t, o).Spec
				if a.Project == "" || a.Destination.Server != "https://kubernetes.default.svc" {
					t.Errorf("Application %s has the project %q and the destination %q", o.GetName(), a.Project, a.Destination.Server)
				}
				name := a.Source.Helm.ReleaseName
				if name == "" {
					name = o.GetName() // as Argo CD does
				}
				argo = append(argo, recipe{a.Source.Chart, a.Source.RepoURL, a.Source.TargetRevision, name, a.Destination.Namespace, a.Source.Helm.ValuesObject})
			case "helm.toolkit.fluxcd.io/v2, Kind=HelmRelease":
				r := decode[helmRelease](t, o).Spec
				if ref := r.Chart.Spec.SourceRef; ref.Kind != repository.Kind || ref.Name != repository.Name {
					t.Errorf("HelmRelease %s refers to %v, want %s %s", o.GetName(), ref, repository.Kind, repository.Name)
				}
				for _, other := range r.DependsOn {
					if len(flux) == 0 || flux[len(flux)-1].name != other.Name {
						t.Errorf("HelmRelease %s depends on %s, want the release before it", o.GetName(), other.Name)
					}
				}
				flux = append(flux, recipe{r.Chart.Spec.Chart, strings.TrimPrefix(repository.Spec.URL, "oci://"), r.Chart.Spec.Version, r.ReleaseName, r.TargetNamespace, r.Values})
			case "source.toolkit.fluxcd.io/v1, Kind=HelmRepository":
				repository = *decode[helmRepository](t, o)
			case "/v1, Kind=Secret":
				s := decode[corev1.Secret](t, o)
				if s.StringData["enableOCI"] != "true" || s.StringData["url"] != "registry.example.com/slipway/charts" {
					t.Errorf("the Secret of Argo CD has %v", s.StringData)
				}
			default:
				t.Errorf("docs/gitops.md has an object of the unknown type %s", gvk)
			}
		}
	}
	return argo, flux
}

// decode returns an object as its own type.
func decode[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	into := new(T)
	raw, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return into
}

// TestGitOpsRecipesRenderAndApply renders the recipes of docs/gitops.md with the charts, and applies them to an API server.
// Both tools install the same objects.
func TestGitOpsRecipesRenderAndApply(t *testing.T) {
	t.Parallel()
	argo, flux := recipes(t)
	var rendered [2]map[string]map[string]any // by kind and name
	var all []*unstructured.Unstructured
	for i, list := range [][]recipe{argo, flux} {
		if len(list) != 2 || list[0].chart != crdChart || list[1].chart != slipwayChart {
			t.Fatalf("%d charts, want %s and %s: %+v", len(list), crdChart, slipwayChart, list)
		}
		rendered[i], all = map[string]map[string]any{}, nil
		for _, r := range list {
			c := load(t, r.chart)
			if r.repository != "registry.example.com/slipway/charts" || r.version != c.Metadata.Version || r.namespace != namespace || r.name != r.chart {
				t.Errorf("chart %s has the repository %s, the version %s, the release %s and the namespace %s", r.chart, r.repository, r.version, r.name, r.namespace)
			}
			values, err := yaml.Marshal(r.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects(t, manifest(t, r.chart, release(r.name, r.namespace), string(values))) {
				all = append(all, o)
				id := o.GetKind() + "/" + o.GetName()
				if r.chart == crdChart {
					annotations := o.GetAnnotations()
					delete(annotations, "argocd.argoproj.io/sync-options")
					o.SetAnnotations(annotations)
				}
				rendered[i][id] = o.Object
			}
		}
	}
	if d := cmp.Diff(rendered[0], rendered[1]); d != "" {
		t.Errorf("-Argo CD +Flux:\n%s", d)
	}
	if n := kinds(all); n["CustomResourceDefinition"] != 3 || n["Deployment"] != 1 || n["DaemonSet"] != 1 {
		t.Errorf("the recipes install %v", n)
	}
	for id := range rendered[0] {
		if strings.HasSuffix(id, "-install-crds") {
			t.Errorf("%s: with the chart %s, the manager needs no right to create CRDs", id, crdChart)
		}
	}
	b := newBed(t)
	const in = "gitops"
	b.createRestrictedNamespace(in)
	for _, r := range flux {
		values, err := yaml.Marshal(r.values)
		b.check(err)
		if r.chart == slipwayChart { // other tests install the CRDs with other labels
			b.apply(objects(t, manifest(t, r.chart, release(in, in), string(values))))
		}
	}
}
