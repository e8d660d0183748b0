package chart_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"
)

// TestOnlyARegistryInstallsOnlyAgents checks that the default has nothing of the parts that need clouds.
func TestOnlyARegistryInstallsOnlyAgents(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry))
	var others []string
	for _, name := range names(all) {
		if !strings.Contains(name, "/slipway-agent") {
			others = append(others, name)
		}
	}
	roles := []string{"ClusterRole/slipway-doctor", "ClusterRole/slipway-doctor-ask-agents", "ClusterRole/slipway-top", "ClusterRole/slipway-viewer"}
	if d := cmp.Diff(roles, others); d != "" {
		t.Errorf("in addition to the agents: -want +has:\n%s", d)
	}
	if n := kinds(all)["DaemonSet"]; n != 1 {
		t.Errorf("%d DaemonSets, want 1", n)
	}
}

func TestImageHasOwnTagOrDigest(t *testing.T) {
	t.Parallel()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	own := "agent: {repository: a, tag: v2}, slipway: {repository: b/c, digest: '" + digest + "'}"
	for text, want := range map[string][2]string{
		"":                                    {"example.com/slipway-agent:v0.1.0", "example.com/slipway:v0.1.0"},
		"tag: v1":                             {"example.com/slipway-agent:v1", "example.com/slipway:v1"},
		own:                                   {"example.com/a:v2", "example.com/b/c@" + digest},
		"agent: {tag: v2}":                    {"example.com/slipway-agent:v2", "example.com/slipway:v0.1.0"},
		"agent: {repository: x}":              {"example.com/x:v0.1.0", "example.com/slipway:v0.1.0"},
		"registry: '127.0.0.1:5000/a/b-c__d'": {"127.0.0.1:5000/a/b-c__d/slipway-agent:v0.1.0", "127.0.0.1:5000/a/b-c__d/slipway:v0.1.0"},
		"registry: '[fd00::1]:5000'":          {"[fd00::1]:5000/slipway-agent:v0.1.0", "[fd00::1]:5000/slipway:v0.1.0"},
	} {
		if !strings.Contains(text, "registry: ") {
			text = "registry: example.com/, " + text
		}
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), "image: {"+text+"}\n"+cloudpoolValues+"}"))
		got := [2]string{find[appsv1.DaemonSet](t, all, "DaemonSet", "slipway-agent").Spec.Template.Spec.Containers[0].Image}
		for _, name := range []string{"slipway-manager", "slipway-cloudpool"} {
			got[1] = find[appsv1.Deployment](t, all, "Deployment", name).Spec.Template.Spec.Containers[0].Image
			if got != want {
				t.Errorf("%q: the images of agents and %s are %q, want %q", text, name, got, want)
			}
		}
	}
}

// TestManagersRunOutsideManagedNodes places the pods with the scheduler's code. A node can run them if it is in no managed
// group and meets the affinity of the values.
func TestManagersRunOutsideManagedNodes(t *testing.T) {
	t.Parallel()
	selectors := []string{
		"{matchLabels: {pool: a}}",
		"{matchLabels: {pool: b, zone: x}}",
		"{matchExpressions: [{key: pool, operator: In, values: [a, b]}, {key: zone, operator: DoesNotExist}]}",
		"{matchLabels: {pool: a}, matchExpressions: [{key: zone, operator: NotIn, values: [x]}]}",
		"{matchExpressions: [{key: zone, operator: Exists}]}",
	}
	const required = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: NotIn, values: [z]}]}, {matchExpressions: [{key: pool, operator: In, values: [c]}]}]}}}"
	var nodes []map[string]string
	for _, pool := range []string{"", "a", "b", "c"} {
		for _, zone := range []string{"", "x", "z"} {
			node := map[string]string{"pool": pool, "zone": zone}
			maps.DeleteFunc(node, func(_, value string) bool { return value == "" })
			nodes = append(nodes, node)
		}
	}
	deployments := onlyTemplates(t, "deployment.yaml")
	for _, managed := range [][]int{nil, {0}, {1}, {2}, {3}, {4}, {0, 1}, {1, 3}, {0, 1, 2, 3}} {
		for _, own := range []string{"", required} {
			var groups, list []string
			for i, n := range managed { // the first is in the values of the manager, the others are objects
				if i == 0 {
					groups = append(groups, fmt.Sprintf("g: {nodeSelector: %s, cloud: {provider: azure, group: g}}", selectors[n]))
				} else {
					list = append(list, selectors[n])
				}
			}
			text := fmt.Sprintf("placement: {managedNodes: [%s]}\ncloudpool: {enabled: true, nodeGroups: [h], tls: {secretName: a}, %s}\nmanager: {enabled: true, nodeGroups: {%s}, %s}\n",
				strings.Join(list, ", "), own, strings.Join(groups, ", "), own)
			files, err := templates(t, deployments, release(slipwayChart, namespace), values(t, registry+text))
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"manager", "cloudpool"} {
				name := "slipway-" + part
				all := objects(t, files[path.Join(slipwayChart, "templates", part, "deployment.yaml")])
				spec := find[appsv1.Deployment](t, all, "Deployment", name).Spec.Template.Spec
				spec.NodeSelector = nil // the operating system
				for _, node := range nodes {
					want := own == "" || node["zone"] != "z" || node["pool"] == "c"
					for _, n := range managed {
						want = want && !selectorOf(t, selectors[n]).Matches(labels.Set(node))
					}
					got, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node}})
					if err != nil || got != want {
						t.Errorf("%s with the groups %v and %q: runs on %v: %t, want %t: %v", name, managed, own, node, got, want, err)
					}
				}
			}
		}
	}
}

func selectorOf(t *testing.T, text string) labels.Selector {
	t.Helper()
	var s metav1.LabelSelector
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

func TestManagersPreferSystemPools(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+cloudpoolValues+"}"))
	for _, name := range []string{"slipway-manager", "slipway-cloudpool"} {
		spec := find[appsv1.Deployment](t, all, "Deployment", name).Spec.Template.Spec
		preferred, err := nodeaffinity.NewPreferredSchedulingTerms(spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		if err != nil {
			t.Fatal(err)
		}
		for mode, want := range map[string]bool{"system": true, "user": false} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.azure.com/mode": mode}}}
			if got := preferred.Score(node) > 0; got != want {
				t.Errorf("%s prefers a pool with mode %s: %t", name, mode, got)
			}
		}
		taint := corev1.Taint{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			t.Errorf("%s does not tolerate the taint of system pools: %v", name, spec.Tolerations)
		}
	}
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	return t.Key == taint.Key && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == taint.Effect)
}

// TestServiceAccountNamesReachRightsAndPolicies checks that no object still names the default accounts.
func TestServiceAccountNamesReachRightsAndPolicies(t *testing.T) {
	t.Parallel()
	text := manifest(t, slipwayChart, release(slipwayChart, namespace), registry+`
agent: {serviceAccount: {name: mine-agent}}
manager: {enabled: true, bootstrapTokens: true, serviceAccount: {create: false, name: mine-manager}}
cloudpool: {enabled: true, bootstrapTokens: true, nodeGroups: [a], tls: {secretName: a}, serviceAccount: {name: mine-cloudpool}}
`)
	for _, part := range []string{"agent", "manager", "cloudpool"} {
		for _, left := range []string{"serviceaccount:slipway:slipway-" + part + "'", "serviceAccountName: \"slipway-" + part + "\""} {
			if strings.Contains(text, left) {
				t.Errorf("the manifest has %q", left)
			}
		}
		for _, want := range []string{"serviceaccount:slipway:mine-" + part + "'", "serviceAccountName: \"mine-" + part + "\"\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the manifest lacks %q", want)
			}
		}
	}
	for _, o := range objects(t, text) {
		if o.GetKind() == "ServiceAccount" && o.GetName() != "mine-agent" && o.GetName() != "mine-cloudpool" {
			t.Errorf("ServiceAccount %s is created", o.GetName())
		}
		subjects := mapsOf(o.Object, "subjects")
		for _, s := range subjects {
			if name, _ := s["name"].(string); s["kind"] == "ServiceAccount" && !strings.HasPrefix(name, "mine-") {
				t.Errorf("%s %s binds %s", o.GetKind(), o.GetName(), name)
			}
		}
	}
}

// mapsOf returns the objects in a list of an object.
func mapsOf(o map[string]any, key string) (all []map[string]any) {
	list, _ := o[key].([]any)
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// TestMonitoringOptionsRenderShippedFiles compares the objects with the files of deploy/monitoring.
func TestMonitoringOptionsRenderShippedFiles(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+
		"metrics: {rules: {enabled: true, labels: {release: prometheus}}, dashboard: {enabled: true, namespace: grafana, annotations: {folder: nodes}}}"))
	read := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(root(t), "deploy", "monitoring", name))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(read("slipway.rules.yaml"), &want); err != nil {
		t.Fatal(err)
	}
	rule := find[monitoringv1.PrometheusRule](t, all, "PrometheusRule", "slipway")
	if len(want.Groups) == 0 || !reflect.DeepEqual(want, rule.Spec) || rule.Labels["release"] != "prometheus" {
		t.Errorf("PrometheusRule with labels %v: -want +has:\n%s", rule.Labels, cmp.Diff(want, rule.Spec))
	}
	file := find[corev1.ConfigMap](t, all, "ConfigMap", "slipway-dashboard")
	var shipped, rendered any
	if err := json.Unmarshal(read("dashboard.json"), &shipped); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(file.Data["slipway.json"]), &rendered); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(shipped, rendered); d != "" || file.Namespace != "grafana" || file.Labels["grafana_dashboard"] != "1" || file.Annotations["folder"] != "nodes" {
		t.Errorf("the dashboard in %s with labels %v and annotations %v: -want +has:\n%s", file.Namespace, file.Labels, file.Annotations, d)
	}
}

func TestExtraObjectsAreRenderedAsTemplates(t *testing.T) {
	t.Parallel()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+`
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-a"}, data: {in: "{{ .Release.Namespace }}"}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: {{ include "slipway.fullname" . }}-b}
    data: {in: {{ .Release.Namespace }}}
`))
	for _, name := range []string{"slipway-a", "slipway-b"} {
		if got := find[corev1.ConfigMap](t, all, "ConfigMap", name).Data["in"]; got != namespace {
			t.Errorf("%s has %q, want %s", name, got, namespace)
		}
	}
}

// TestNotesDescribeInstalledParts reads what helm install prints.
func TestNotesDescribeInstalledParts(t *testing.T) {
	t.Parallel()
	const groups, agents, managers, missing = "get nodegroups", "get daemonset", "get deployment slipway-manager", "install the CRDs of this version first"
	const inFile, noManager = "without those of manager.nodeGroups", "WARNING: this release has no manager"
	for text, want := range map[string][]string{
		"":                               {"is installed as slipway in namespace slipway: agents.", "there is no manager", agents},
		withManager:                      {": agents, 2 managers.", agents, managers, groups, "UnknownCloud", "placement.managedNodes is empty"},
		withManager + "crds: {by: none}": {managers, missing, groups, agents},
		"manager: {enabled: true, nodeGroups: {a: {nodeSelector: {matchLabels: {a: a}}, cloud: {provider: azure, group: a}}}}": {managers, groups, agents, inFile},
		"crds: {by: chart}\ncloudpool: {enabled: true, nodeGroups: [a], tls: {secretName: a}}":                                 {"agents, 2 cloudpool servers.", agents, noManager},
		"agent: {enabled: false}\n" + cloudpoolValues + "}":                                                                    {": 2 managers, 2 cloudpool servers.", managers, groups, "get deployment slipway-cloudpool"},
	} {
		files, err := templates(t, load(t, slipwayChart), release(slipwayChart, namespace), values(t, registry+text))
		if err != nil {
			t.Fatal(err)
		}
		notes := files[slipwayChart+"/templates/NOTES.txt"]
		for _, part := range append(want, "slipway doctor ") {
			if !strings.Contains(notes, part) {
				t.Errorf("%q: the notes lack %q:\n%s", text, part, notes)
			}
		}
		for _, part := range []string{groups, agents, managers, missing, inFile, noManager} {
			if strings.Contains(notes, part) && !slices.Contains(want, part) {
				t.Errorf("%q: the notes have %q:\n%s", text, part, notes)
			}
		}
	}
}
