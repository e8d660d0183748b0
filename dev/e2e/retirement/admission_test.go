package retirement_test

import (
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/testbed"
)

var (
	groups      = schema.GroupVersionResource{Group: "slipway.dev", Version: "v1alpha1", Resource: "nodegroups"}
	retirements = schema.GroupVersionResource{Group: "slipway.dev", Version: "v1alpha1", Resource: "noderetirements"}
)

// parse reads an object from YAML, and gives it a name based on the test.
func parse(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("spec:\n  "+strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ")), &o.Object); err != nil {
		t.Fatal(err)
	}
	o.SetGroupVersionKind(groups.GroupVersion().WithKind(kind))
	o.SetGenerateName("admission-")
	return o
}

const goodGroup = `
nodeSelector: {matchLabels: {pool: ci}}
cloud: {provider: azure, group: ci}
`

func TestI10APIServerRefusesInvalidNodeRetirements(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(retirements)
	for name, tt := range map[string]struct{ spec, want string }{
		"required fields only":   {"nodeName: node-1", ""},
		"no node":                {"reason: Idle", "spec.nodeName"},
		"invalid node name":      {"nodeName: N_1", "spec.nodeName"},
		"reason with spaces":     {"nodeName: node-1\nreason: because of it", "spec.reason"},
		"override without until": {"nodeName: node-1\noverrideProtection: {by: me, why: so}", "until"},
		"override without by":    {"nodeName: node-1\noverrideProtection: {by: '', why: so, until: '2030-01-01T00:00:00Z'}", "by"},
		"negative TTL":           {"nodeName: node-1\nttlAfterFinished: -1s", "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Create(t.Context(), parse(t, "NodeRetirement", tt.spec), metav1.CreateOptions{DryRun: []string{"All"}})
			checkRefused(t, err, tt.want)
		})
	}
}

func TestRetirementSpecIsImmutable(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(retirements)
	made, err := client.Create(t.Context(), parse(t, "NodeRetirement", "nodeName: admission-none\nproviderID: a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Delete(bed.Background(), made.GetName(), metav1.DeleteOptions{}) })
	for field, value := range map[string]string{
		"nodeName": "m", "nodeUID": "u", "providerID": "b", "group": "g", "reason": "Idle", "requestedBy": "me",
	} {
		changed := made.DeepCopy()
		if err := unstructured.SetNestedField(changed.Object, value, "spec", field); err != nil {
			t.Fatal(err)
		}
		_, err := client.Update(t.Context(), changed, metav1.UpdateOptions{DryRun: []string{"All"}})
		checkRefused(t, err, field+" is immutable")
	}
	removed := made.DeepCopy()
	unstructured.RemoveNestedField(removed.Object, "spec", "providerID")
	_, err = client.Update(t.Context(), removed, metav1.UpdateOptions{DryRun: []string{"All"}})
	checkRefused(t, err, "providerID is immutable")
}

func TestAPIServerAcceptsTheExamples(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "docs", "examples", "node*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("examples %v, %v", files, err)
	}
	for _, file := range files {
		if err := bed.ApplyFile(t.Context(), file); err != nil {
			t.Error(err)
		}
	}
}

// checkRefused checks that the API server rejected the object with the given message. If want is empty, it checks that
// the API server accepted the object.
func checkRefused(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want it refused with %q", err, want)
	}
}
