package chart_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
)

// TestPDBsAllowEvictionOfUnreadyPods checks the PDBs for pods that are not ready. A manager is not ready if its
// clouds are not found. Two such managers would block every drain of their nodes.
func TestPDBsAllowEvictionOfUnreadyPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all     []*unstructured.Unstructured
		budgets []string
	}{
		"chart": {
			objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+cloudpoolValues+"}")),
			[]string{"slipway-manager", "slipway-cloudpool"},
		},
		"deploy/manager":   {kustomize(t, "manager"), []string{"slipway-manager"}},
		"deploy/cloudpool": {kustomize(t, "cloudpool"), []string{"slipway-cloudpool"}},
	} {
		if has := kinds(c.all)["PodDisruptionBudget"]; has != len(c.budgets) {
			t.Errorf("%s: %d PDBs, want %q", name, has, c.budgets)
		}
		for _, budget := range c.budgets {
			policy := find[policyv1.PodDisruptionBudget](t, c.all, "PodDisruptionBudget", budget).Spec.UnhealthyPodEvictionPolicy
			if policy == nil || *policy != policyv1.AlwaysAllow {
				t.Errorf("%s: %s: unhealthyPodEvictionPolicy is %v, want %s", name, budget, policy, policyv1.AlwaysAllow)
			}
		}
	}
}

// TestKustomizePlacesPodsAsTheChartDoes compares where the pods of both may run and prefer to.
func TestKustomizePlacesPodsAsTheChartDoes(t *testing.T) {
	t.Parallel()
	chart := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+cloudpoolValues+"}"))
	for _, part := range []string{"manager", "cloudpool"} {
		want := find[appsv1.Deployment](t, chart, "Deployment", "slipway-"+part).Spec.Template.Spec
		is := find[appsv1.Deployment](t, kustomize(t, part), "Deployment", "slipway-"+part).Spec.Template.Spec
		for what, pair := range map[string][2]any{
			"priorityClassName": {want.PriorityClassName, is.PriorityClassName},
			"tolerations":       {want.Tolerations, is.Tolerations},
			"nodeSelector":      {want.NodeSelector, is.NodeSelector},
			"preferred nodes": {
				want.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				is.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			},
		} {
			if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
				t.Errorf("deploy/%s: %s differs from the chart: %s", part, what, diff)
			}
		}
	}
}

// TestAgentsRunOnNodesWithDaemonSetsOnly compares the agents of the chart and of deploy/. Pods of a DaemonSet stay unavailable on a
// node of EKS Fargate and on a virtual node, and so block each upgrade.
func TestAgentsRunOnNodesWithDaemonSetsOnly(t *testing.T) {
	t.Parallel()
	chart := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+"agent: {windows: {enabled: true}}"))
	for name, spec := range map[string]corev1.PodSpec{
		"chart, Linux":   find[appsv1.DaemonSet](t, chart, "DaemonSet", "slipway-agent").Spec.Template.Spec,
		"chart, Windows": find[appsv1.DaemonSet](t, chart, "DaemonSet", "slipway-agent-windows").Spec.Template.Spec,
		"deploy/agent":   find[appsv1.DaemonSet](t, kustomize(t, "agent"), "DaemonSet", "slipway-agent").Spec.Template.Spec,
	} {
		for label, want := range map[string]bool{
			"pool=spot": true, "eks.amazonaws.com/compute-type=ec2": true, "type=spot": true,
			"eks.amazonaws.com/compute-type=fargate": false, "type=virtual-kubelet": false,
		} {
			key, value, _ := strings.Cut(label, "=")
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{key: value, corev1.LabelOSStable: spec.NodeSelector[corev1.LabelOSStable]}}}
			if got, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec}).Match(node); err != nil || got != want {
				t.Errorf("%s: the agent runs on a node with %s: %t, %v; want %t", name, label, got, err, want)
			}
		}
	}
}

// TestProgramsAcceptRenderedFiles parses the files from the chart with the code of the programs.
func TestProgramsAcceptRenderedFiles(t *testing.T) {
	t.Parallel()
	read := map[string]int{}
	for _, s := range sets(t) {
		if s.chart != slipwayChart {
			continue
		}
		all := objects(t, s.manifest(t))
		for _, o := range all {
			if o.GetKind() != "ConfigMap" {
				continue
			}
			for file, text := range find[corev1.ConfigMap](t, all, "ConfigMap", o.GetName()).Data {
				var err error
				switch file {
				case "agent.yaml":
					_, err = config.DecodeAgentFile([]byte(text))
				case "clouds.yaml":
					_, err = manager.ReadClouds(testbed.WriteTempFile(t, file, text))
				case "nodegroups.yaml":
					_, err = manager.ParseGroups([]byte(text))
				default:
					continue
				}
				read[file]++
				if err != nil {
					t.Errorf("%s: %s: %v\n%s", s.name(), file, err, text)
				}
			}
		}
	}
	for _, file := range []string{"agent.yaml", "clouds.yaml", "nodegroups.yaml"} {
		if read[file] == 0 {
			t.Errorf("no set of values renders a %s", file)
		}
	}
}

// TestPackagesIncludeTheLibrary packages the charts as helm package does. It renders each package and compares it with
// its folder.
func TestPackagesIncludeTheLibrary(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		slipwayChart: withEverything,
		handlerChart: "slipway: {image: registry.example.com/slipway/slipway:v0.1.0}",
		awsHandler:   "slipway: {image: registry.example.com/slipway/slipway:v0.1.0}",
	} {
		folder, err := loader.LoadDir(filepath.Join(root(t), "charts", name)) // not the shared one, because Save changes it
		if err != nil {
			t.Fatal(err)
		}
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
			t.Errorf("%s: the package has %d charts, want only the library, with the required version", name, len(all))
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

// TestNamesStayStrings uses names that YAML reads as a boolean or a number without quotes. Kubernetes and Helm accept them.
func TestNamesStayStrings(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"true", "2024", "1e3"} {
		handler := strings.ReplaceAll(handlerImage+"nameOverride: 'NAME'\nfullnameOverride: 'NAME'\npriorityClassName: 'NAME'\n", "NAME", name)
		for _, c := range []struct{ chart, values string }{
			{slipwayChart, `
image: {registry: a, pullSecrets: ['NAME']}
fullnameOverride: 'NAME'
commonLabels: {a: 'NAME'}
metrics: {scrape: monitors, interval: '0', rules: {enabled: true}, dashboard: {enabled: true, namespace: 'NAME'}}
networkPolicy: {enabled: true}
agent: {secretName: 'NAME', priorityClassName: 'NAME', config: {surge: annotated}, serviceAccount: {name: 'NAME'}}
placeholders: [{name: 'NAME', nodeSelector: {a: 'NAME'}, priorityClassName: 'NAME'}]
`},
			{slipwayChart, `
image: {registry: a}
fullnameOverride: a
clouds: {existingConfigMap: 'NAME', secretName: 'NAME'}
manager: {enabled: true, bootstrapTokens: true, surge: true, awsQueue: {url: 'https://q', agentConfig: {onReboot: cordon}}, extraFiles: {a: b}, priorityClassName: 'NAME'}
cloudpool: {enabled: true, clientCA: {secretName: 'NAME'}, tls: {secretName: 'NAME'}, serviceAccount: {name: 'NAME'}}
`},
			{handlerChart, handler + "imagePullSecrets: ['NAME']\nnetworkPolicy: {enabled: true}\nconfigMap: {name: 'NAME'}"},
			{awsHandler, handler + "webhookURLSecretName: 'NAME'\nwebhookTemplateConfigMapName: 'NAME'\nwebhookTemplateConfigMapKey: a\n" +
				"targetNodeOs: linux windows\ndaemonsetPriorityClassName: 'NAME'\nenablePrometheusServer: true\npodMonitor: {create: true, namespace: 'NAME'}"},
			{awsHandler, handler + queueMode + "replicas: 2\npodDisruptionBudget: {maxUnavailable: 1}\nenablePrometheusServer: true\nserviceMonitor: {create: true}"},
		} {
			for _, o := range objects(t, manifest(t, c.chart, release(name, name), strings.ReplaceAll(c.values, "NAME", name))) {
				checkNamesAreStrings(t, c.chart+": "+o.GetKind(), o.Object)
			}
		}
	}
}

// TestSharedLabelsAndAnnotationsAreRenderedOnce sets the same keys in several values. Flux and kustomize refuse a key that is there twice,
// and so does the parser of objects. The value of the pods takes precedence, but no value changes a selector.
func TestSharedLabelsAndAnnotationsAreRenderedOnce(t *testing.T) {
	t.Parallel()
	type metadata struct{ labels, annotations map[string]string }
	pods := metadata{map[string]string{"a": "pod"}, map[string]string{"prometheus.io/scrape": "false", "a": "pod"}}
	const slipwayPod = "{podLabels: {a: pod}, podAnnotations: {a: pod}, enabled: true"
	const selector = "app.kubernetes.io/name: mine, app.kubernetes.io/instance: mine, app.kubernetes.io/component: mine, app.kubernetes.io/version: mine"
	const aws = handlerImage + "customLabels: {a: object, " + selector + "}\npodLabels: {a: object, k8s-app: mine, " + selector + "}\n" +
		"nodeSelector: {kubernetes.io/os: mine}\npodAnnotations: {a: object}\nenablePrometheusServer: true\n"
	for _, c := range []struct {
		chart, values string
		want          metadata
	}{
		{
			slipwayChart, registry + "commonLabels: {a: object}\ncommonAnnotations: {a: object, prometheus.io/scrape: 'false'}\n" +
				"agent: " + slipwayPod + "}\nmanager: " + slipwayPod + "}\ncloudpool: " + slipwayPod + ", nodeGroups: [a], tls: {secretName: a}}", pods,
		},
		{
			slipwayChart, registry + "commonLabels: {a: object}\nmetrics: {scrape: monitors, monitorLabels: {a: monitor}}",
			metadata{labels: map[string]string{"a": "object"}},
		},
		{
			handlerChart, handlerImage + "commonLabels: {a: object, " + selector + "}\npodLabels: {a: object, " + selector + "}\nlabels: {a: pod}\n" +
				"commonAnnotations: {a: object, prometheus.io/scrape: 'false'}\npodAnnotations: {a: object}\nannotations: {a: pod}", pods,
		},
		{
			awsHandler, aws + "targetNodeOs: linux windows\nlinuxPodLabels: {a: pod}\nwindowsPodLabels: {a: pod}\nlinuxPodAnnotations: {a: pod}\n" +
				"windowsPodAnnotations: {a: pod}\npodMonitor: {create: true, labels: {a: monitor, " + selector + "}}",
			metadata{map[string]string{"a": "pod", "k8s-app": "mine"}, map[string]string{"a": "pod"}},
		},
		{
			awsHandler, aws + queueMode + "serviceMonitor: {create: true, labels: {a: monitor, " + selector + "}}",
			metadata{map[string]string{"a": "object", "k8s-app": "mine"}, map[string]string{"a": "object"}},
		},
	} {
		checked := 0
		for _, o := range objects(t, manifest(t, c.chart, release("it", namespace), c.values)) {
			if strings.HasSuffix(o.GetKind(), "Monitor") && o.GetLabels()["a"] != "monitor" {
				t.Errorf("%s: %s has the labels %v", c.chart, o.GetKind(), o.GetLabels())
			}
			pod := podOf(t, o)
			if pod == nil {
				continue
			}
			checked++
			selected, _, err := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
			if err != nil || !labels.SelectorFromSet(selected).Matches(labels.Set(pod.Labels)) {
				t.Errorf("%s: %s: the selector %v does not select %v: %v", c.chart, o.GetKind(), selected, pod.Labels, err)
			}
			if pod.Spec.NodeSelector["kubernetes.io/os"] == "mine" {
				t.Errorf("%s: %s: nodeSelector %v", c.chart, o.GetKind(), pod.Spec.NodeSelector)
			}
			for key, want := range c.want.labels {
				if got := pod.Labels[key]; got != want {
					t.Errorf("%s: %s: label %s is %q, want %q", c.chart, o.GetKind(), key, got, want)
				}
			}
			for key, want := range c.want.annotations {
				if got := pod.Annotations[key]; got != want {
					t.Errorf("%s: %s: annotation %s is %q, want %q", c.chart, o.GetKind(), key, got, want)
				}
			}
		}
		if checked == 0 {
			t.Errorf("%s has no pods", c.chart)
		}
	}
}

// TestServicesHaveValidNames uses names of releases that are longer or have other characters than the name of a Service may have.
func TestServicesHaveValidNames(t *testing.T) {
	t.Parallel()
	c := onlyTemplates(t, "deployment.yaml")
	for name, want := range map[string]string{
		"slipway":                            "slipway-manager",
		"a.b":                                "a-b-slipway-manager",
		"slipway.prod":                       "slipway-prod-manager",
		strings.Repeat("a", 38) + ".slipway": strings.Repeat("a", 38) + "-slipway-manager",
		strings.Repeat("a", 39) + ".slipway": strings.Repeat("a", 39) + "-slipway-manager",
		strings.Repeat("a", 46) + ".slipwa":  strings.Repeat("a", 46) + "-manager",
		strings.Repeat("a", 45) + "--slipwa": strings.Repeat("a", 45) + "-manager",
	} {
		files, err := templates(t, c, release(name, namespace), values(t, registry+withManager))
		if err != nil {
			t.Fatal(err)
		}
		all := objects(t, files[path.Join(slipwayChart, "templates", "manager", "deployment.yaml")])
		for _, o := range all {
			if problems := validation.IsDNS1035Label(o.GetName()); o.GetKind() == "Service" && (o.GetName() != want || len(problems) > 0) {
				t.Errorf("release %s: Service %s, want %s: %v", name, o.GetName(), want, problems)
			}
		}
		if kinds(all)["Service"] != 1 {
			t.Errorf("release %s: %v, want one Service", name, names(all))
		}
	}
}

// nameKeys matches the keys of fields that are always strings.
var nameKeys = regexp.MustCompile(`^(name|namespace|serviceAccountName|secretName|priorityClassName|interval|instance|[a-z0-9./-]+/[a-z-]+)$`)

func checkNamesAreStrings(t *testing.T, path string, value any) {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		for key, below := range value {
			if _, ok := below.(string); !ok && nameKeys.MatchString(key) {
				t.Errorf("%s.%s: %v is no string", path, key, below)
			}
			checkNamesAreStrings(t, path+"."+key, below)
		}
	case []any:
		for i, below := range value {
			if _, ok := below.(string); !ok && strings.HasSuffix(path, ".matchNames") {
				t.Errorf("%s: %v is no string", path, below)
			}
			checkNamesAreStrings(t, fmt.Sprintf("%s[%d]", path, i), below)
		}
	}
}

// expendablePriority is a priority. The cluster autoscaler ignores pods below it (--expendable-pods-priority-cutoff).
const expendablePriority = -10

// TestPlaceholdersProtectNodesFromClusterAutoscalerOnly checks both autoscalers. The cluster autoscaler
// uses an annotation and the priority. Slipway uses the selector of a NodeGroup, with an example in the documentation.
func TestPlaceholdersProtectNodesFromClusterAutoscalerOnly(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root(t), "docs", "examples", "nodegroup.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var group v1alpha1.NodeGroup
	if err := yaml.UnmarshalStrict(raw, &group); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Drain.PlaceholderPods)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
		registry+"placeholders: [{name: spare, nodeSelector: {pool: ci}, labels: {app.kubernetes.io/component: mine}}]"))
	pod := find[appsv1.Deployment](t, all, "Deployment", "slipway-placeholder-spare").Spec.Template
	if !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("%s does not select %v", selector, pod.Labels)
	}
	if safe := pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"]; safe != "false" {
		t.Errorf("safe-to-evict is %q", safe)
	}
	class := find[schedulingv1.PriorityClass](t, all, "PriorityClass", pod.Spec.PriorityClassName)
	if class.Value >= 0 || class.Value < expendablePriority {
		t.Errorf("the priority is %d, want one below 0 that the cluster autoscaler does not ignore", class.Value)
	}
}

func TestI2ForcedDrainsGrantPodDeletion(t *testing.T) {
	t.Parallel()
	for forced, want := range map[string]bool{"true": true, "false": false} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			registry+"agent: {forcedDrains: "+forced+"}"))
		role := find[rbacv1.ClusterRole](t, all, "ClusterRole", "slipway-agent")
		may := false
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					may = may || resource == "pods" && verb == "delete"
				}
			}
		}
		if may != want {
			t.Errorf("forcedDrains: %s: the agent may delete pods: %t", forced, may)
		}
	}
}

// TestChartsHaveCurrentCRDs compares the charts' copies with the types. The chart slipway installs the copies for
// crds.by: chart. Both charts render the same CRDs, apart from labels and annotations.
func TestChartsHaveCurrentCRDs(t *testing.T) {
	t.Parallel()
	from, err := filepath.Glob(filepath.Join(root(t), "api", "crds", "*.yaml"))
	if err != nil || len(from) == 0 {
		t.Fatalf("%d types: %v", len(from), err)
	}
	for _, file := range from {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{slipwayChart, crdChart} {
			copied := filepath.Join(root(t), "charts", name, "files", "crds", filepath.Base(file))
			got, err := os.ReadFile(copied)
			if err != nil {
				t.Fatal(err)
			}
			if string(want) != string(got) {
				t.Errorf("%s differs from %s: run make generate", copied, file)
			}
		}
	}
	of := func(keep string) []*unstructured.Unstructured {
		return objects(t, manifest(t, crdChart, release("types", namespace), "{keep: "+keep+", labels: {a: b}, annotations: {c: d, slipway.dev/schema-generation: '0'}}"))
	}
	kept, inChart := of("true"), crds(t)
	if len(kept) != len(inChart) {
		t.Fatalf("%s has %d CRDs, want %d", crdChart, len(kept), len(inChart))
	}
	for i, o := range kept {
		if o.GetLabels()["a"] != "b" || o.GetAnnotations()["c"] != "d" || o.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s has the labels %v and the annotations %v", o.GetName(), o.GetLabels(), o.GetAnnotations())
		}
		if got, want := o.GetAnnotations()["slipway.dev/schema-generation"], inChart[i].GetAnnotations()["slipway.dev/schema-generation"]; got != want || want == "" {
			t.Errorf("%s has the schema generation %q, want %q", o.GetName(), got, want)
		}
		if d := cmp.Diff(inChart[i].Object["spec"], o.Object["spec"]); d != "" {
			t.Errorf("%s: -%s +%s:\n%s", o.GetName(), slipwayChart, crdChart, d)
		}
	}
	for _, o := range of("false") {
		if policy := o.GetAnnotations()["helm.sh/resource-policy"]; policy != "" {
			t.Errorf("with keep: false, %s has the policy %s", o.GetName(), policy)
		}
	}
}

// TestFlowSchemaSeparatesNamespaces checks the flow distinguisher. All agents are one user, so
// several flows need another distinction. Many requests in one namespace must find the same capacity as in one queue.
func TestFlowSchemaSeparatesNamespaces(t *testing.T) {
	t.Parallel()
	for chart, name := range map[string]string{slipwayChart: "slipway-agent", handlerChart: handlerChart, awsHandler: awsHandler} {
		text := registry
		if chart != slipwayChart {
			text = "slipway: {image: 'registry.example.com/slipway:v1'}"
		}
		all := objects(t, manifest(t, chart, release(chart, namespace), text))
		schema := find[flowcontrolv1.FlowSchema](t, all, "FlowSchema", name)
		if by := schema.Spec.DistinguisherMethod; by == nil || by.Type != flowcontrolv1.FlowDistinguisherMethodByNamespaceType {
			t.Errorf("%s: the distinguisher is %v, want the namespace", chart, by)
		}
		level := find[flowcontrolv1.PriorityLevelConfiguration](t, all, "PriorityLevelConfiguration", name)
		q := level.Spec.Limited.LimitResponse.Queuing
		if q.Queues < 2*q.HandSize || q.HandSize < 2 || q.HandSize*q.QueueLengthLimit < 10000 {
			t.Errorf("%s: %d queues, hand size %d, queue length %d; want at least twice the hand size, and 10000 requests per flow",
				chart, q.Queues, q.HandSize, q.QueueLengthLimit)
		}
	}
}

// defaultGracePeriod is the default grace period of a pod in seconds.
const defaultGracePeriod = 30

// TestAgentGracePeriodIncludesStopGrace checks the pod's grace period. The kubelet kills an agent that takes
// longer.
func TestAgentGracePeriodIncludesStopGrace(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]int64{
		"{}":                   0,
		"{stopGrace: '0'}":     0,
		"{stopGrace: 1500ms}":  2,
		"{stopGrace: 2m}":      120,
		"{stopGrace: 9m59.9s}": 600,
		"{stopGrace: 10m}":     600,
	} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			registry+"agent: {windows: {enabled: true}, config: "+config+"}"))
		for _, name := range []string{"slipway-agent", "slipway-agent-windows"} {
			if got := gracePeriodOf(find[appsv1.DaemonSet](t, all, "DaemonSet", name)); got != defaultGracePeriod+want {
				t.Errorf("%s: %s has terminationGracePeriodSeconds %d, want %d", config, name, got, defaultGracePeriod+want)
			}
		}
	}
}

// TestHandlerGracePeriodIncludesItsSetting sets the time by a flag or by the handler's file. The file takes
// precedence. A file that the chart does not see may contain anything.
func TestHandlerGracePeriodIncludesItsSetting(t *testing.T) {
	t.Parallel()
	const file = "configMap: {data: {a.yaml: 'graceperiodseconds: 300', b.yaml: 'period: 1s', c.yaml: '[', d.yaml: 'graceperiodseconds:'}}\n"
	for values, want := range map[string]int64{
		"":                                  10,
		"args: [-gracePeriodSeconds=600]":   600,
		"args: [--gracePeriodSeconds, '0']": 0,
		"args: [-podGracePeriodSeconds=99, -nodeGracePeriodSeconds=99]":      10,
		file + "args: [-gracePeriodSeconds=20]":                              20,
		file + "args: [-config, /files/a.yaml, -gracePeriodSeconds=20]":      300,
		file + "args: [-config=/files/b.yaml, -gracePeriodSeconds=20]":       20,
		file + "args: [-config=/files/c.yaml]":                               600,
		file + "args: [-config=/files/d.yaml, -gracePeriodSeconds=20]":       20,
		file + "args: [-config=/elsewhere/a.yaml]":                           600,
		file + "env: [{name: CONFIG, value: /files/a.yaml}]":                 300,
		file + "env: [{name: CONFIG, valueFrom: {secretKeyRef: {name: a}}}]": 600,
		"configMap: {create: false}\nargs: [-config=/files/a.yaml]":          600,
	} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), handlerImage+values))
		if got := gracePeriodOf(find[appsv1.DaemonSet](t, all, "DaemonSet", handlerChart)); got != defaultGracePeriod+want {
			t.Errorf("%q: terminationGracePeriodSeconds is %d, want %d", values, got, defaultGracePeriod+want)
		}
	}
}

func gracePeriodOf(set *appsv1.DaemonSet) int64 {
	if grace := set.Spec.Template.Spec.TerminationGracePeriodSeconds; grace != nil {
		return *grace
	}
	return defaultGracePeriod
}

// TestEvictionWithoutGraceNeedsItsSetting checks the right to evict with a grace period of 0. Without the
// right, the API server refuses every such eviction.
func TestEvictionWithoutGraceNeedsItsSetting(t *testing.T) {
	t.Parallel()
	const file = "configMap: {data: {a.yaml: 'podgraceperiodseconds: 0', b.yaml: 'period: 1s', c.yaml: 'podgraceperiodseconds: 5'}}\n"
	for chart, cases := range map[string]map[string]bool{
		slipwayChart: {
			"": false, "agent: {config: {gracePeriod: 0}}": true, "agent: {config: {gracePeriod: 5}}": false,
			"agent: {config: {gracePeriod: -1}}": false,
		},
		handlerChart: {
			"": false, "args: [-podGracePeriodSeconds=0]": true, "args: [-podGracePeriodSeconds, '5']": false,
			file + "args: [-config=/files/a.yaml]": true, file + "args: [-config=/files/b.yaml]": false,
			file + "args: [-config=/files/b.yaml, -podGracePeriodSeconds=0]": true,
			file + "args: [-config=/files/c.yaml, -podGracePeriodSeconds=0]": false,
			// The chart cannot see the contents of such a file. A refused drain loses pods.
			"args: [-config=/elsewhere/a.yaml]": true,
		},
		awsHandler: {"": false, "podTerminationGracePeriod: 0": true, "podTerminationGracePeriod: 5": false},
	} {
		for text, want := range cases {
			handlerImage := registry + ""
			if chart != slipwayChart {
				handlerImage = "slipway: {image: 'registry.example.com/slipway:v1'}\n"
			}
			all := objects(t, manifest(t, chart, release(chart, namespace), handlerImage+text))
			policy := chart + "-eviction"
			if chart == slipwayChart {
				policy = "slipway-agent-eviction"
			}
			may := true
			for _, v := range find[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy", policy).Spec.Validations {
				may = may && !strings.Contains(v.Expression, "gracePeriodSeconds")
			}
			if may != want {
				t.Errorf("%s: %q: agents may evict with grace period 0: %t", chart, text, may)
			}
		}
	}
}

// TestNodeAffinityKeepsAntiAffinity checks that a custom node affinity keeps the replicas' anti-affinity. If no node may
// have two replicas, an upgrade removes a replica before it adds the next, because an additional node may not exist.
func TestNodeAffinityKeepsAntiAffinity(t *testing.T) {
	t.Parallel()
	const (
		nodes  = "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}"
		others = "podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}, {topologyKey: rack}]}"
	)
	for _, part := range []string{"manager", "cloudpool"} {
		for _, c := range []struct {
			values              string
			required, preferred int
			nodes               bool
		}{
			{"antiAffinity: preferred", 0, 1, false},
			{"antiAffinity: preferred, affinity: {" + nodes + "}", 0, 1, true},
			{"antiAffinity: required, affinity: {" + nodes + "}", 1, 0, true},
			{"antiAffinity: none, affinity: {" + nodes + "}", 0, 0, true},
			{"antiAffinity: required, affinity: {" + nodes + ", " + others + "}", 2, 0, true},
			{"antiAffinity: required, affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}", 0, 0, false},
		} {
			text := registry + cloudpoolValues + c.values + "}\n"
			if part == "manager" {
				text = registry + "manager: {enabled: true, " + c.values + "}\n"
			}
			all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), text))
			spec := find[appsv1.Deployment](t, all, "Deployment", "slipway-"+part).Spec
			rolling := spec.Strategy.RollingUpdate
			if surges := rolling == nil; surges == (c.required > 0) || rolling != nil && (rolling.MaxSurge.IntValue() != 0 || rolling.MaxUnavailable.IntValue() != 1) {
				t.Errorf("%s: {%s}: %d required, and the strategy %v", part, c.values, c.required, spec.Strategy)
			}
			affinity := spec.Template.Spec.Affinity
			required, preferred := 0, 0
			if apart := affinity.PodAntiAffinity; apart != nil {
				required = len(apart.RequiredDuringSchedulingIgnoredDuringExecution)
				preferred = len(apart.PreferredDuringSchedulingIgnoredDuringExecution)
			}
			nodes := affinity.NodeAffinity != nil && affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
			if required != c.required || preferred != c.preferred || nodes != c.nodes {
				t.Errorf("%s: {%s}: %d required and %d preferred, node affinity: %t; want %d, %d, %t", part, c.values, required, preferred,
					nodes, c.required, c.preferred, c.nodes)
			}
		}
	}
}
