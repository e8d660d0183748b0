package manager_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

const (
	nodeGroups  = "nodegroups.slipway.dev"
	newerField  = "replacement" // a field that an older definition lacks
	futureField = "futureField" // a field that only a newer definition has
)

// installsAndUpgrades starts a manager on a cluster without the types. It then starts managers on clusters with an older
// definition. The older definition has the same number, as builds of one release do, or an unreadable number.
func (b bed) installsAndUpgrades(t *testing.T) {
	b.t = t
	first := b.installer("installs", b.credentials())
	if got := b.definitions(); len(got) != 3 {
		t.Fatalf("definitions: %v", got)
	}
	b.check(first.Kill())
	own := generation(b.definition())
	if own == 0 {
		t.Fatal("the definition has no generation")
	}
	for i, number := range []string{strconv.FormatUint(own, 10), "the first", ""} {
		b.check(b.age(number))
		if got := b.definition().GetAnnotations()[crds.GenerationAnnotation]; got != number {
			t.Fatalf("the older version has the number %q, want %q", got, number)
		}
		if b.knows(newerField) {
			t.Fatal("the older version knows the newer field")
		}
		next := b.installer(fmt.Sprint("upgrades-", i), b.credentials())
		if !b.knows(newerField) {
			t.Errorf("number %q: the definition was not upgraded", number)
		}
		if got := generation(b.definition()); got != own {
			t.Errorf("number %q: it is %d after the upgrade, want %d", number, got, own)
		}
		b.check(next.Kill())
	}
}

// keepsNewer starts a manager on a cluster with a newer definition, and with an object that uses it.
func (b bed) keepsNewer(t *testing.T) {
	b.t = t
	b.check(b.renew())
	groups := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(groups)
	group := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "slipway.dev/v1alpha1", "kind": "NodeGroup", "metadata": map[string]any{"name": "newer"},
		"spec": map[string]any{
			"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "none"}},
			"cloud":        map[string]any{"provider": "azure", "group": "none"},
			futureField:    "kept",
		},
	}}
	b.check(testbed.PollUntil(b.ctx, "the newer definition is served", func() bool {
		_, err := groups.Apply(b.ctx, group.GetName(), group, metav1.ApplyOptions{FieldManager: "e2e", Force: true})
		return err == nil
	}))
	p := b.installer("older", b.credentials())
	b.checkKept(p)
	written, err := groups.Patch(b.ctx, group.GetName(), types.MergePatchType, []byte(`{"metadata":{"labels":{"written":"again"}}}`),
		metav1.PatchOptions{})
	b.check(err)
	if got, _, _ := unstructured.NestedString(written.Object, "spec", futureField); got != "kept" {
		t.Errorf("spec.%s is %q after a write", futureField, got)
	}
	b.check(groups.Delete(b.ctx, group.GetName(), metav1.DeleteOptions{}))
	b.check(p.Kill())
}

// keepsUpgraded installs a newer definition after the manager has read the older one, and before it upgrades it.
func (b bed) keepsUpgraded(t *testing.T) {
	b.t = t
	b.check(b.age(""))
	b.startAndRenew("renewed-before-apply")
}

// keepsInstalled installs a newer definition after the manager has found none, and before it installs its own.
func (b bed) keepsInstalled(t *testing.T) {
	b.t = t
	there := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(definitionResource)
	b.check(there.Delete(b.ctx, nodeGroups, metav1.DeleteOptions{}))
	b.check(testbed.PollUntil(b.ctx, "the definition is gone", func() bool {
		_, err := there.Get(b.ctx, nodeGroups, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}))
	b.startAndRenew("renewed-before-create")
}

// startAndRenew starts a manager. Another client renews the definition immediately before the manager first writes one.
func (b bed) startAndRenew(name string) {
	b.t.Helper()
	var once sync.Once
	met := false
	proxy := faultproxy.New(func(r faultproxy.Request) string { return r.Method + " " + r.Path })
	proxy.SetFaults(func(r faultproxy.Request) faultproxy.Fault {
		if r.Method != http.MethodGet && strings.Contains(r.Path, "/"+definitionResource.Resource) {
			once.Do(func() {
				met = true
				if err := b.renew(); err != nil {
					b.t.Error(err)
				}
			})
		}
		return faultproxy.Fault{}
	})
	p := b.installer(name, b.through(proxy))
	once.Do(func() {}) // lets the test read the recorded value
	if !met {
		b.t.Fatal("the manager wrote no definition")
	}
	b.checkKept(p)
	b.check(p.Kill())
}

// installer starts a manager with --install-crds, and waits until it is ready.
func (b bed) installer(name, kubeconfig string) *process {
	b.t.Helper()
	p := b.start(name, "--kubeconfig", kubeconfig, "--leader-elect=false", "--install-crds")
	p.awaitReady()
	return p
}

// checkKept checks that the newer definition is unchanged, and that the manager has logged this.
func (b bed) checkKept(p *process) {
	b.t.Helper()
	if !b.knows(futureField) {
		b.t.Error("the older definition was restored")
	}
	if said := p.log(); strings.Count(said, "is newer than this program's and is kept") != 1 {
		b.t.Errorf("the log does not report it once:\n%s", said)
	}
}

var definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// definitions returns the names of Slipway's definitions.
func (b bed) definitions() []string {
	b.t.Helper()
	list, err := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(definitionResource).List(b.ctx, metav1.ListOptions{})
	b.check(err)
	var names []string
	for _, d := range list.Items {
		if strings.HasSuffix(d.GetName(), ".slipway.dev") {
			names = append(names, d.GetName())
		}
	}
	return names
}

func (b bed) definition() *unstructured.Unstructured {
	b.t.Helper()
	d, err := dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(definitionResource).Get(b.ctx, nodeGroups, metav1.GetOptions{})
	b.check(err)
	return d
}

func (b bed) knows(field string) bool {
	b.t.Helper()
	_, fields, err := specOf(b.definition())
	b.check(err)
	_, known := fields[field]
	return known
}

func generation(d *unstructured.Unstructured) uint64 { return crds.Generation(d.GetAnnotations()) }

// age removes a field from the definition of NodeGroups and changes its number. The result looks like the definition of
// an older manager.
func (b bed) age(number string) error {
	return b.put(number, func(fields map[string]any) { delete(fields, newerField) })
}

// renew adds a field to the definition, as a newer manager would.
func (b bed) renew() error {
	raw, err := shipped()
	if err != nil {
		return err
	}
	return b.put(strconv.FormatUint(generation(raw)+1, 10), func(fields map[string]any) {
		fields[futureField] = map[string]any{"type": "string"}
	})
}

// put applies the definition of NodeGroups as a manager does, with another number and other fields of the spec. Any
// goroutine may call it.
func (b bed) put(number string, change func(fields map[string]any)) error {
	d, err := shipped()
	if err != nil {
		return err
	}
	version, fields, err := specOf(d)
	if err != nil {
		return err
	}
	change(fields)
	annotations := d.GetAnnotations()
	if annotations[crds.GenerationAnnotation] = number; number == "" {
		delete(annotations, crds.GenerationAnnotation)
	}
	d.SetAnnotations(annotations)
	if err := unstructured.SetNestedMap(version, fields, "schema", "openAPIV3Schema", "properties", "spec", "properties"); err != nil {
		return err
	}
	if err := unstructured.SetNestedSlice(d.Object, []any{version}, "spec", "versions"); err != nil {
		return err
	}
	_, err = dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(definitionResource).Apply(b.ctx, nodeGroups, d,
		metav1.ApplyOptions{FieldManager: "slipway-manager", Force: true})
	return err
}

// shipped returns the definition of NodeGroups in this build.
func shipped() (*unstructured.Unstructured, error) {
	raw, err := crds.Files.ReadFile("slipway.dev_nodegroups.yaml")
	if err != nil {
		return nil, err
	}
	d := &unstructured.Unstructured{}
	return d, yaml.Unmarshal(raw, &d.Object)
}

// specOf returns the only version in a definition, and the properties of its NodeGroup.spec.
func specOf(d *unstructured.Unstructured) (version, fields map[string]any, err error) {
	versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
	if err != nil || len(versions) != 1 {
		return nil, nil, fmt.Errorf("%d versions, want 1: %w", len(versions), err)
	}
	version, ok := versions[0].(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("versions[0] is a %T", versions[0])
	}
	fields, _, err = unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec", "properties")
	return version, fields, err
}
