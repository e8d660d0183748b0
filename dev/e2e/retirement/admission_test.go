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

func TestI10TheAPIServerRefusesANodeGroupThatMakesNoSense(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(groups)
	for name, tt := range map[string]struct{ spec, want string }{
		"nothing but what is needed": {goodGroup, ""},
		"minimum above maximum": {
			goodGroup + "minSize: 3\nmaxSize: 2", "minSize must not be above maxSize",
		},
		"negative minimum":     {goodGroup + "minSize: -1", "spec.minSize"},
		"no cloud":             {"nodeSelector: {matchLabels: {pool: ci}}", "spec.cloud"},
		"cloud spelt oddly":    {"nodeSelector: {matchLabels: {a: b}}\ncloud: {provider: My Cloud, group: ci}", "spec.cloud.provider"},
		"cloud group unnamed":  {"nodeSelector: {matchLabels: {a: b}}\ncloud: {provider: azure, group: ''}", "spec.cloud.group"},
		"selector of all":      {"nodeSelector: {}\ncloud: {provider: azure, group: ci}", "an empty selector would select every node"},
		"selector of all, too": {"nodeSelector: {matchLabels: {}}\ncloud: {provider: azure, group: ci}", "an empty selector"},
		"control plane": {
			"nodeSelector: {matchLabels: {node-role.kubernetes.io/control-plane: ''}}\ncloud: {provider: azure, group: ci}",
			"control-plane nodes belong to no group",
		},
		"budget of a percentage": {goodGroup + "disruptionBudgets: [{nodes: 10%}]", ""},
		"budget of 101 %":        {goodGroup + "disruptionBudgets: [{nodes: 101%}]", "disruptionBudgets[0].nodes"},
		"budget below nothing":   {goodGroup + "disruptionBudgets: [{nodes: -1}]", "must be a number of at least 0"},
		"budget in words":        {goodGroup + "disruptionBudgets: [{nodes: few}]", "disruptionBudgets[0].nodes"},
		"window without an end":  {goodGroup + "disruptionBudgets: [{nodes: 1, schedule: '0 9 * * *'}]", "schedule and duration must be set together"},
		"window of four fields":  {goodGroup + "disruptionBudgets: [{nodes: 1, schedule: '0 9 * *', duration: 1h}]", "disruptionBudgets[0].schedule"},
		"window of no time":      {goodGroup + "disruptionBudgets: [{nodes: 1, schedule: '@daily', duration: 0s}]", "must be at least 1m"},
		"time zone of nothing":   {goodGroup + "disruptionBudgets: [{nodes: 1, timeZone: Europe/Stockholm}]", "timeZone requires schedule"},
		"cooldown that is no time": {
			goodGroup + "scaleDown: {idleByLabel: {podSelector: {matchLabels: {a: b}}, cooldown: soon}}", "cooldown",
		},
		"cooldown below nothing": {
			goodGroup + "scaleDown: {idleByLabel: {podSelector: {matchLabels: {a: b}}, cooldown: -1m}}", "must not be negative",
		},
		"every pod keeps its node": {goodGroup + "scaleDown: {idleByLabel: {podSelector: {}}}", "an empty selector"},
		"checks at no time": {
			goodGroup + "scaleDown: {idleByLabel: {podSelector: {matchLabels: {a: b}}, checks: 2}}", "checks requires checkEvery",
		},
		"every pod is a placeholder": {goodGroup + "drain: {placeholderPods: {}}", "an empty selector"},
		"drain without time":         {goodGroup + "drain: {timeout: 0s}", "must be at least 1s"},
		"protection unheard of":      {goodGroup + "drain: {protection: Maybe}", "spec.drain.protection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Create(t.Context(), parse(t, "NodeGroup", tt.spec), metav1.CreateOptions{DryRun: []string{"All"}})
			refused(t, err, tt.want)
		})
	}
}

func TestI10TheAPIServerRefusesANodeRetirementThatMakesNoSense(t *testing.T) {
	t.Parallel()
	bed := withTypes(t)
	client := dynamic.NewForConfigOrDie(bed.RESTConfig()).Resource(retirements)
	for name, tt := range map[string]struct{ spec, want string }{
		"nothing but what is needed": {"nodeName: node-1", ""},
		"no node":                    {"reason: Idle", "spec.nodeName"},
		"node of an impossible name": {"nodeName: N_1", "spec.nodeName"},
		"reason in words":            {"nodeName: node-1\nreason: because of it", "spec.reason"},
		"override without an end":    {"nodeName: node-1\noverrideProtection: {by: me, why: so}", "until"},
		"override by nobody":         {"nodeName: node-1\noverrideProtection: {by: '', why: so, until: '2030-01-01T00:00:00Z'}", "by"},
		"kept for less than no time": {"nodeName: node-1\nttlAfterFinished: -1s", "must not be negative"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Create(t.Context(), parse(t, "NodeRetirement", tt.spec), metav1.CreateOptions{DryRun: []string{"All"}})
			refused(t, err, tt.want)
		})
	}
}

func TestARetirementCannotBeMadeOneOfAnotherNode(t *testing.T) {
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
		refused(t, err, field+" is immutable")
	}
	removed := made.DeepCopy()
	unstructured.RemoveNestedField(removed.Object, "spec", "providerID")
	_, err = client.Update(t.Context(), removed, metav1.UpdateOptions{DryRun: []string{"All"}})
	refused(t, err, "providerID is immutable")
}

func TestTheExamplesAreTaken(t *testing.T) {
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

// refused checks that the API server rejected the object with the given message. If want is empty, it checks that the API
// server accepted the object.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want it refused with %q", err, want)
	}
}
