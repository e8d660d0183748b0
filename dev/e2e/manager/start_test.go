package manager_test

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/dev/faultproxy"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestAManagerBeginsOnAControlPlaneThatHasNeverSeenOne follows the first manager of a cluster: its API server does not
// answer at first, it has no types, and the manager lacks the rights to install them.
func TestAManagerBeginsOnAControlPlaneThatHasNeverSeenOne(t *testing.T) {
	t.Parallel()
	b := on(t, testbed.ForTest(t, testbed.Options{}))
	b.deploy("namespace.yaml", "rbac.yaml")
	if !t.Run("it waits for its API server and for its types", b.waits) {
		return
	}
	if !t.Run("it names the right that it lacks to install them", b.lacksRight) {
		return
	}
	b.deploy("install-crds.yaml")
	t.Run("it installs them, and older ones are upgraded", b.installs)
}

// waits starts a manager before an API server that answers 503, then nothing, then as it should.
func (b bed) waits(t *testing.T) {
	b.t = t
	var mode atomic.Pointer[faultproxy.Fault]
	mode.Store(&faultproxy.Fault{Status: http.StatusServiceUnavailable})
	proxy := faultproxy.New(func(r faultproxy.Request) string { return r.Method + " " + r.Path })
	proxy.Faults(func(faultproxy.Request) faultproxy.Fault { return *mode.Load() })
	p := b.start("waits", "--kubeconfig", b.through(proxy), "--leader-elect=false")
	unready := func(words string) func(int, string) bool {
		return func(status int, body string) bool {
			return status == http.StatusServiceUnavailable && strings.Contains(body, words)
		}
	}
	p.await("/readyz", "speaks of the 503", unready("does not answer as it should"))
	p.await("/healthz", "is good all the same", func(status int, _ string) bool { return status == http.StatusOK })
	asked := len(proxy.Requests())
	mode.Store(&faultproxy.Fault{Delay: patience})
	b.check(testbed.Poll(b.ctx, "the manager asks again", func() bool { return len(proxy.Requests()) > asked }))
	mode.Store(&faultproxy.Fault{})
	p.await("/readyz", "speaks of the types", unready("--install-crds"))
	if !strings.Contains(p.log(), "cannot begin yet, and tries again") {
		t.Errorf("the log does not say so:\n%s", p.log())
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}

// lacksRight starts a manager that is to install the types and may not.
func (b bed) lacksRight(t *testing.T) {
	b.t = t
	said := b.start("lacks", "--kubeconfig", b.credentials(), "--leader-elect=false", "--install-crds").ended()
	for _, part := range []string{
		`cannot patch resource \"customresourcedefinitions\" in API group \"apiextensions.k8s.io\"`, "deploy/manager/install-crds.yaml",
	} {
		if !strings.Contains(said, part) && !strings.Contains(said, strings.ReplaceAll(part, `\"`, `"`)) {
			t.Errorf("it does not say %s:\n%s", part, said)
		}
	}
	if names := b.definitions(); len(names) > 0 {
		t.Errorf("I10: half applied: %v are there", names)
	}
}

// installs starts a manager on a cluster without the types, and one on a cluster with an older version of one.
func (b bed) installs(t *testing.T) {
	b.t = t
	first := b.start("installs", "--kubeconfig", b.credentials(), "--leader-elect=false", "--install-crds")
	first.awaitReady()
	if got := b.definitions(); len(got) != 2 {
		t.Fatalf("definitions: %v", got)
	}
	b.check(first.Kill())
	const added = "replacement"
	b.age(added)
	if b.knows(added) {
		t.Fatal("the older version knows the newer field")
	}
	second := b.start("upgrades", "--kubeconfig", b.credentials(), "--leader-elect=false", "--install-crds")
	second.awaitReady()
	if !b.knows(added) {
		t.Error("the definition was not upgraded")
	}
}

var definitionResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const nodeGroups = "nodegroups.slipway.dev"

// definitions are Slipway's.
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

// specFields are the properties of NodeGroup.spec in a definition.
func specFields(b bed, d *unstructured.Unstructured) map[string]any {
	b.t.Helper()
	versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
	b.check(err)
	version, ok := versions[0].(map[string]any)
	if !ok {
		b.t.Fatalf("versions[0] is a %T", versions[0])
	}
	fields, _, err := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec", "properties")
	b.check(err)
	return fields
}

func (b bed) knows(field string) bool {
	b.t.Helper()
	_, known := specFields(b, b.definition())[field]
	return known
}

// age makes the definition of NodeGroups one that does not know a field, as that of an older manager, which installed it.
func (b bed) age(field string) {
	b.t.Helper()
	raw, err := crds.Files.ReadFile("slipway.dev_nodegroups.yaml")
	b.check(err)
	d := &unstructured.Unstructured{}
	b.check(yaml.Unmarshal(raw, &d.Object))
	fields := specFields(b, d)
	if _, known := fields[field]; !known {
		b.t.Fatalf("the field %s is not there at all", field)
	}
	delete(fields, field)
	versions, _, err := unstructured.NestedSlice(d.Object, "spec", "versions")
	b.check(err)
	version, ok := versions[0].(map[string]any)
	if !ok {
		b.t.Fatalf("versions[0] is a %T", versions[0])
	}
	b.check(unstructured.SetNestedMap(version, fields, "schema", "openAPIV3Schema", "properties", "spec", "properties"))
	b.check(unstructured.SetNestedSlice(d.Object, versions, "spec", "versions"))
	_, err = dynamic.NewForConfigOrDie(b.RESTConfig()).Resource(definitionResource).Apply(b.ctx, nodeGroups, d,
		metav1.ApplyOptions{FieldManager: "slipway-manager", Force: true})
	b.check(err)
}

// TestAManagerThatIsToldToEndBeforeItCouldBeginEnds also while it waits for an API server.
func TestAManagerThatIsToldToEndBeforeItCouldBeginEnds(t *testing.T) {
	t.Parallel()
	b := ready(t)
	proxy := faultproxy.New(func(r faultproxy.Request) string { return r.Path })
	proxy.Faults(func(faultproxy.Request) faultproxy.Fault {
		return faultproxy.Fault{Status: http.StatusServiceUnavailable}
	})
	p := b.start("stops", "--kubeconfig", b.through(proxy), "--leader-elect=false")
	p.await("/readyz", "is not good", func(status int, _ string) bool { return status == http.StatusServiceUnavailable })
	running, err := os.FindProcess(p.PID())
	b.check(err)
	b.check(running.Signal(os.Interrupt))
	if said := p.ended(); strings.Contains(said, "panic") {
		t.Error(said)
	}
}
