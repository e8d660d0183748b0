package chart_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloudpool"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/manager"
)

// refusal adds values to the required ones, and expects an error message.
type refusal struct{ name, values, says string }

// withManager contains the values of a release with managers. The manager installs the CRDs.
const withManager = "manager: {enabled: true}\n"

// cloudpoolValues begins the values of a valid cloudpool. The text after it may make them invalid.
const cloudpoolValues = withManager + "cloudpool: {enabled: true, nodeGroups: [a], tls: {secretName: a}, "

// policyValues begins the values of a release with a network policy. Its pods reach only the listed destinations.
const policyValues = "networkPolicy: {enabled: true}\n"

var refusals = []refusal{
	{"no part", "agent: {enabled: false}\nmanager: {enabled: false}", "agent.enabled, manager.enabled and cloudpool.enabled are all false"},
	{"no registry", "image: {registry: ''}", "image.registry is empty: want where your images"},
	{"no operating system", "agent: {linux: {enabled: false}}", "no node would be guarded; want one of them"},
	{
		"deletions without permission", "agent: {forcedDrains: false, config: {disableEviction: true}}",
		"agent.forcedDrains: false keeps the right to from the agent",
	},
	{
		"surges of agents without policies", "agent: {admissionPolicies: false, config: {surge: annotated}}",
		"a stolen token could then change the image of every pod; want agent.admissionPolicies: true",
	},
	{
		"surges of the manager without policies", "manager: {enabled: true, surge: true, admissionPolicies: false}",
		"a stolen token could then change the image of every pod; want manager.admissionPolicies: true",
	},
	{
		"surges of a group without rights", "manager: {enabled: true, nodeGroups: {ci: {drain: {surge: Always}}}}",
		"manager.nodeGroups.ci.drain.surge: Always, but manager.surge: false",
	},
	{
		"a queue without policies", "manager: {enabled: true, awsQueue: {url: 'https://sqs.eu-west-1.amazonaws.com/1/q'}, admissionPolicies: false}",
		"want manager.admissionPolicies: true, or no queue",
	},
	{
		"a policy without its queue", "manager: {enabled: true, awsQueue: {agentConfig: {onReboot: cordon}}}",
		"manager.awsQueue.url is empty: want the URL of the queue",
	},
	{
		"flags without their queue", "manager: {enabled: true, extraArgs: [--aws-queue-workers=20]}",
		"manager.extraArgs: --aws-queue-workers is for the queue mode, but manager.awsQueue.url is empty: want the URL of the queue, or no --aws-queue-workers",
	},
	{
		"a taint that the manager may not write", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {taintKey: example.com/going}}}",
		`"example.com/going" is none that manager.admissionPolicies lets the manager write: want a key under slipway.dev, such as slipway.dev/going`,
	},
	{
		"drain slots of the queue", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {maxConcurrentDrains: 2}}}",
		"want --aws-queue-workers in manager.extraArgs instead",
	},
	{"surges of the queue", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {surge: always}}}", "has no rights for surges; want never"},
	{"a queue that is no URL", "manager: {enabled: true, awsQueue: {url: notices}}", "at '/manager/awsQueue/url'"},
	{"surge mode that YAML reads as a boolean", "agent: {config: {surge: on}}", "at '/agent/config/surge': value must be one of"},
	{
		"traces of the small agent", "agent: {config: {traceEndpoint: 'http://collector:4318'}}",
		"slipway-agent sends no traces: want agent.binary: slipway",
	},
	{
		"a taint that the policy refuses", "agent: {config: {taintKey: example.com/going}}",
		`"example.com/going" is none that agent.admissionPolicies lets agents write: want a key under slipway.dev, such as slipway.dev/going`,
	},
	{
		"a label of the queue as text", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {label: slipway.dev/going=true}}}",
		"at '/manager/awsQueue/agentConfig/label': got string, want object",
	},
	{
		"an unknown key of the queue's agents", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {onFreez: drain}}}",
		"additional properties 'onFreez' not allowed",
	},
	{
		"a label that the policy refuses", "agent: {config: {label: {going: 'true'}}}",
		`"going" is none that agent.admissionPolicies lets agents write`,
	},
	{"an argument twice", "agent: {extraArgs: ['--listen=:1']}", "agent.extraArgs: --listen is set by the chart: want agent.port instead"},
	{"the manager's argument", "manager: {enabled: true, extraArgs: ['--install-crds']}", "--install-crds is set by the chart: want crds.by instead"},
	{
		"leader election disabled", "manager: {enabled: true, extraArgs: ['--leader-elect=false']}",
		"manager.replicas: 2, but manager.extraArgs has --leader-elect=false",
	},
	{
		"leader election disabled, other spelling", "manager: {enabled: true, extraArgs: ['--leader-elect=0']}",
		"manager.replicas: 2, but manager.extraArgs has --leader-elect=0",
	},
	{
		"a Lease elsewhere", "manager: {enabled: true, extraArgs: ['--leader-election-namespace=kube-system']}",
		"manager.extraArgs: --leader-election-namespace is set by the chart: want the release's namespace instead",
	},
	{
		"a taint by argument", "agent: {extraArgs: ['--taint-key=example.com/going']}",
		"agent.extraArgs: --taint-key is a key of the agent's file: want agent.config.taintKey instead",
	},
	{
		"deletions by argument", "agent: {forcedDrains: false, extraArgs: ['--disable-eviction']}",
		"agent.extraArgs: --disable-eviction is a key of the agent's file: want agent.config.disableEviction instead",
	},
	{
		"traces by argument", "agent: {extraArgs: ['--trace-endpoint=http://collector:4318']}",
		"agent.extraArgs: --trace-endpoint is a key of the agent's file: want agent.config.traceEndpoint instead",
	},
	{
		"records of pools elsewhere", cloudpoolValues + "extraArgs: ['--namespace=other']}",
		"cloudpool.extraArgs: --namespace is set by the chart: want the release's namespace instead",
	},
	{"agents that cannot be replaced", "agent: {maxUnavailable: 0}", "agent.maxUnavailable: 0: no agent could be replaced by an upgrade; want 1 or more"},
	{"no percentage of the agents", "agent: {maxUnavailable: 0%}", "agent.maxUnavailable: 0%: no agent could be replaced"},
	{"a common label of selectors", "commonLabels: {app.kubernetes.io/name: a}", "commonLabels: app.kubernetes.io/name is the chart's own label"},
	{"a dashboard label of selectors", "metrics: {dashboard: {labels: {helm.sh/chart: a}}}", "metrics.dashboard.labels: helm.sh/chart is the chart's own label"},
	{"an agent label of selectors", "agent: {podLabels: {slipway.dev/os: a}}", "agent.podLabels: slipway.dev/os is the chart's own label"},
	{
		"a label of the managers that is a selector's", "manager: {enabled: true, podLabels: {app.kubernetes.io/instance: a}}",
		"manager.podLabels: app.kubernetes.io/instance is the chart's own label",
	},
	{
		"a label of the cloudpool that is a selector's", cloudpoolValues + "podLabels: {app.kubernetes.io/name: a}}",
		"cloudpool.podLabels: app.kubernetes.io/name is the chart's own label",
	},
	{
		"a volume of the chart's", "agent: {extraVolumes: [{name: secrets, emptyDir: {}}]}",
		"agent.extraVolumes: secrets is a volume of the chart's: want another name than config, secrets, files",
	},
	{"the manager's /tmp", "manager: {enabled: true, extraVolumes: [{name: tmp, emptyDir: {}}]}", "manager.extraVolumes: tmp is a volume of the chart's"},
	{
		"a mount over the chart's", "manager: {enabled: true, extraVolumeMounts: [{name: a, mountPath: /tmp/}]}",
		"manager.extraVolumeMounts: /tmp/ is where the chart mounts a volume",
	},
	{"the cloudpool's certificate", cloudpoolValues + "extraVolumes: [{name: tls, emptyDir: {}}]}", "cloudpool.extraVolumes: tls is a volume of the chart's"},
	{"too short poll interval", "agent: {config: {pollInterval: 10ms}}", "agent.config.pollInterval: 10ms: want 100ms to 1m"},
	{"too long poll interval", "agent: {config: {pollInterval: 1m0.5s}}", "agent.config.pollInterval: 1m0.5s: want 100ms to 1m"},
	{"too wide a margin", "agent: {config: {deadlineMargin: 2m}}", "agent.config.deadlineMargin: 2m: want 0 to 1m"},
	{
		"too wide a margin for the queue", "manager: {enabled: true, awsQueue: {url: 'https://q', agentConfig: {deadlineMargin: 2m}}}",
		"manager.awsQueue.agentConfig.deadlineMargin: 2m: want 0 to 1m",
	},
	{
		"successors of pods that are deleted at once", "agent: {config: {disableEviction: true, surge: always}}",
		"agent.config.surge: always: want never with disableEviction: true",
	},
	{
		"an early acknowledgement without acknowledgements", "agent: {config: {acknowledge: false, acknowledgeFreezeUnder: 9s}}",
		"agent.config.acknowledgeFreezeUnder: 9s: want 0 with acknowledge: false",
	},
	{
		"a later request that may take longer than the first", "agent: {config: {requestTimeout: 30s, firstRequestTimeout: 29s}}",
		"agent.config.requestTimeout: 30s: want more than 0, and not more than firstRequestTimeout (29s)",
	},
	{"two listeners on one port", cloudpoolValues + "port: 9000, metricsPort: 9000}", "cloudpool.port and cloudpool.metricsPort are both 9000: want two ports"},
	{
		"clouds without a cloudpool", "clouds: {config: {azure: {}}}\ncloudpool: {enabled: true, tls: {secretName: a}}",
		"clouds.config names no cloudpool servers, and cloudpool.nodeGroups no NodeGroups to serve",
	},
	{
		"an unknown pool", "clouds: {config: {cloudpool: {pools: [{name: a, url: 'http://a'}]}}}\ncloudpool: {enabled: true, pools: [b], tls: {secretName: a}}",
		"cloudpool.pools: b is not in clouds.config.cloudpool.pools: want a",
	},
	{
		"a placeholder twice", "placeholders: [{name: a, nodeSelector: {p: q}}, {name: a, nodeSelector: {p: q}}]",
		"placeholders: a is there twice: want names that differ",
	},
	{
		"a placeholder by another's label", "placeholders: [{name: a, nodeSelector: {p: q}, labels: {slipway.dev/placeholder: b}}]",
		"placeholders: a: labels: slipway.dev/placeholder is the chart's own label",
	},
	{"placeholders without node selector", "placeholders: [{name: a, nodeSelector: {}}]", "at '/placeholders/0/nodeSelector': minProperties: got 0, want 1"},
	{
		"a budget that blocks", "manager: {enabled: true, podDisruptionBudget: {maxUnavailable: 0}}",
		"manager.podDisruptionBudget.maxUnavailable: 0: no node with it could ever be drained",
	},
	{"clouds without a manager", "manager: {enabled: false}\nclouds: {config: {azure: {}}}", "clouds is set, but manager.enabled and cloudpool.enabled are false"},
	{"NodeGroups without a manager", "manager: {nodeGroups: {b: {}, a: {}}}", "manager.nodeGroups: a, b, but manager.enabled is false"},
	{
		"two files of clouds", "clouds: {config: {azure: {}}, existingConfigMap: mine}",
		"clouds.config and clouds.existingConfigMap (mine) are both set",
	},
	{
		"CRDs without an installer", "manager: {enabled: false}\ncloudpool: {enabled: true}",
		"crds.by: manager, but manager.enabled is false, and the cloudpool needs the types",
	},
	{"nothing to serve", "cloudpool: {enabled: true}", "there is neither a pool nor a NodeGroup to serve"},
	{"pools without servers", "cloudpool: {enabled: true, nodeGroups: [a], pools: [b]}", "cloudpool.pools: b: pools are named in the file of clouds"},
	{
		"a pool of the manager's file", "cloudpool: {enabled: true, nodeGroups: [a], tls: {secretName: a}}\nmanager: {enabled: true, nodeGroups: {a: {}}}",
		"cloudpool.nodeGroups: a is in manager.nodeGroups, a file that the manager alone reads",
	},
	{
		"tokens without machines", "clouds: {config: {cloudpool: {pools: [{name: a, url: 'http://a'}]}}}\ncloudpool: {enabled: true, bootstrapTokens: true, tls: {secretName: a}}",
		"cloudpool.bootstrapTokens: true, but cloudpool.nodeGroups is empty, and a proxy launches no machines",
	},
	{"no certificate", "cloudpool: {enabled: true, nodeGroups: [a]}", "cloudpool.tls.secretName is empty"},
	{
		"no authorization", "cloudpool: {enabled: true, nodeGroups: [a], tls: {secretName: a}, authorize: false}",
		"whoever reaches it could remove machines",
	},
	{
		"secure and insecure", "cloudpool: {enabled: true, nodeGroups: [a], tls: {secretName: a}, insecure: true}",
		"cloudpool.tls and cloudpool.authorize make it secure",
	},
	{
		"certificates without TLS", "cloudpool: {enabled: true, nodeGroups: [a], clientCA: {secretName: a}, insecure: true, authorize: false}",
		"clients show certificates over TLS alone",
	},
	{
		"a receiver out of reach", policyValues + "agent: {config: {notifications: [{name: am, webhook: {url: 'http://alertmanager.monitoring:9093/hook'}}]}}",
		"agent.config.notifications: am: goes to port 9093, and networkPolicy.enabled lets agents reach 443, 6443 alone: want networkPolicy.receivers",
	},
	{
		"a receiver without TLS", policyValues + "agent: {config: {notifications: [{name: am, webhook: {url: 'http://{{ .ClusterName }}@am/hook'}}, {name: b, webhook: {url: 'http://am'}}]}}",
		"agent.config.notifications: b: goes to port 80",
	},
	{
		"a proxy out of reach", policyValues + "agent: {config: {notifications: [{name: bot, proxy: 'http://proxy:3128', telegram: {chatID: '1', tokenFile: a}}]}}",
		"agent.config.notifications: bot: goes to port 3128",
	},
	{
		"a collector out of reach", policyValues + "agent: {binary: slipway, config: {traceEndpoint: 'http://collector:4318/v1/traces'}}",
		"agent.config.traceEndpoint: goes to port 4318",
	},
	{
		"Windows agents' receiver out of reach",
		policyValues + "agent: {hostNetwork: true, windows: {enabled: true, hostProcess: false}, config: {notifications: [{name: am, webhook: {url: 'http://am:9093'}}]}}",
		"agent.config.notifications: am: goes to port 9093",
	},
	{
		"receivers where the API server alone is reached",
		"networkPolicy: {enabled: true, apiServer: {cidrs: [203.0.113.7/32]}}\nagent: {config: {notifications: [{name: any, webhook: {urlFile: /a}}]}}",
		"agent.config.notifications: any: networkPolicy.enabled with networkPolicy.apiServer.cidrs lets agents reach no receivers: want networkPolicy.receivers",
	},
	{
		"the last worker by an argument", cloudpoolValues + "extraArgs: [--remove-last-worker]}",
		"cloudpool.extraArgs: --remove-last-worker is set by the chart: want cloudpool.removeLastWorker instead",
	},
	{
		"no ServiceAccount", "agent: {serviceAccount: {create: false}}",
		"agent.serviceAccount.create is false and agent.serviceAccount.name is empty: want the name of your ServiceAccount",
	},
	{
		"annotations of a ServiceAccount that the chart does not create", "agent: {serviceAccount: {create: false, name: mine, annotations: {a: b}}}",
		"agent.serviceAccount.annotations are set, but agent.serviceAccount.create is false: want the annotations on your ServiceAccount mine",
	},
	{
		"one ServiceAccount for two parts", "manager: {enabled: true, serviceAccount: {name: slipway-agent}}",
		"manager.serviceAccount.name: slipway-agent is also the account of agent: want an account of its own",
	},
	{
		"managers on managed nodes only", "placement: {managedNodes: [{matchLabels: {pool: ci}}]}\nmanager: {enabled: true, nodeSelector: {pool: ci, zone: a}}",
		`manager.nodeSelector: all these nodes are of a managed group ({"pool":"ci"})`,
	},
	{
		"too many labels of managed nodes", "placement: {managedNodes: [" + strings.Repeat("{matchLabels: {a: a, b: b, c: c}}, ", 20) + "]}",
		"their labels need more node selector terms than the 64 that are allowed", // 3^20 terms would not fit into memory
	},
	{
		"a tag beside a digest", "image: {registry: a, tag: v2, agent: {digest: 'sha256:" + strings.Repeat("0", 64) + "'}}",
		"image.agent.digest and the tag v2 are both set",
	},
	{
		"images of another release", "image: {registry: a, release: v0.0.9}",
		"image.release: v0.0.9, but this chart is of v0.1.0: the images would be of the earlier release",
	},
	{"a Service that begins with a digit", "fullnameOverride: 2nd", `would begin with "2nd", and the name of a Service must begin with a letter: want fullnameOverride`},
	// The schema refuses these values.
	{"the values of an earlier chart", "placement: null", "missing property 'placement'"},
	{"a digest without its algorithm", "image: {registry: a, agent: {digest: abc}}", "at '/image/agent/digest'"},
	{"a registry with a scheme", "image: {registry: 'https://registry.example.com/slipway'}", "at '/image/registry'"},
	{"a registry with a tag", "image: {registry: 'registry.example.com/slipway:v1'}", "at '/image/registry'"},
	{"a tag with its colon", "image: {registry: a, tag: ':v1'}", "at '/image/tag'"},
	{"an empty selector of managed nodes", "placement: {managedNodes: [{}]}", "at '/placement/managedNodes/0': minProperties: got 0, want 1"},
	{"an unknown value", "agnet: {}", "additional properties 'agnet' not allowed"},
	{"an unknown key of the agent's file", "agent: {config: {onFreez: drain}}", "additional properties 'onFreez' not allowed"},
	{"a text for a boolean", "agent: {windows: {hostProcess: maybe}}", "at '/agent/windows/hostProcess': got string, want boolean"},
	{"an unknown action", "agent: {config: {onReboot: maybe}}", "at '/agent/config/onReboot': value must be one of"},
	{"too many drain slots", "agent: {config: {maxConcurrentDrains: 17}}", "at '/agent/config/maxConcurrentDrains': maximum: got 17, want 16"},
	{"a duration without its unit", "agent: {config: {pollInterval: '5'}}", "at '/agent/config/pollInterval'"},
	{"root", "runAsUser: 0", "at '/runAsUser': minimum: got 0, want 1"},
	{"an invalid port", "manager: {enabled: true, port: 70000}", "at '/manager/port': maximum: got 70,000, want 65,535"},
}

// handlerRefusals lists the refusals of the handler's chart.
var handlerRefusals = []refusal{
	{"no image", "slipway: {image: ''}", "slipway.image is empty: want the image slipway with its tag"},
	{
		"deletes without the right", "{args: [--disableEviction=true], slipway: {image: a, forcedDrains: false}}",
		"slipway.forcedDrains: false keeps the right to from the handler",
	},
	{"another port", "args: [-web.address, ':80']", "args: -web.address=:80: probes, metrics and the NetworkPolicy are of port 17923"},
	{
		"deletes without the right, by its file",
		"{args: [-config=/files/c.yaml, -disableEviction=false], configMap: {data: {c.yaml: 'disableeviction: true'}}, slipway: {image: a, forcedDrains: false}}",
		"configMap.data: disableeviction: true deletes pods, and slipway.forcedDrains: false keeps the right to from the handler",
	},
	{
		"another port, by its file", "{args: [-config=/files/c.yaml, '-web.address=:17923'], configMap: {data: {c.yaml: 'webhttpaddress: :80'}}}",
		"configMap.data: webhttpaddress: :80: probes, metrics and the NetworkPolicy are of port 17923",
	},
	{"an image of another release", "slipway: {image: a, release: v0.0.9}", "slipway.release: v0.0.9, but this chart is of v0.1.0"},
	{"a program", "args: [slipway]", `args: "slipway" is no flag`},
	{"an argument that is not a text", "args: [-podGracePeriodSeconds, 30]", "at '/args/1': got number, want string"},
	{"an unknown key under slipway", "slipway: {imige: a}", "additional properties 'imige' not allowed"},
}

// refusalsOnly returns a chart without the templates of objects. In the chart slipway, refusals.yaml refuses most values,
// and it renders much faster alone.
func refusalsOnly(t *testing.T, name string) *chart.Chart {
	t.Helper()
	if name == slipwayChart {
		return onlyTemplates(t, "refusals.yaml")
	}
	return load(t, name)
}

// onlyTemplates returns the chart slipway with the files of one name only, which renders much faster.
func onlyTemplates(t *testing.T, name string) *chart.Chart {
	t.Helper()
	c := *load(t, slipwayChart)
	c.Templates = slices.DeleteFunc(slices.Clone(c.Templates), func(f *chart.File) bool {
		file := path.Base(f.Name)
		return !strings.HasPrefix(file, "_") && file != name
	})
	return &c
}

func TestOldKubernetesGetsAgentsOnly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                           "",
		"manager: {enabled: true}":   "need Kubernetes 1.33, and the cluster has v1.32.9: want both false",
		"cloudpool: {enabled: true}": "need Kubernetes 1.33, and the cluster has v1.32.9: want both false",
	} {
		all := values(t, "image: {registry: a}\n"+text)
		_, err := templatesOn(t, "v1.32.9", refusalsOnly(t, slipwayChart), release(slipwayChart, namespace), all)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestI10InvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	least := map[string]map[string]any{
		slipwayChart: {"image": map[string]any{"registry": "registry.example.com/slipway"}, "manager": map[string]any{"enabled": true}},
		handlerChart: {"slipway": map[string]any{"image": "registry.example.com/slipway/slipway"}},
		awsHandler:   {"slipway": map[string]any{"image": "registry.example.com/slipway/slipway"}},
	}
	for name, all := range map[string][]refusal{slipwayChart: refusals, handlerChart: handlerRefusals, awsHandler: awsHandlerRefusals} {
		c := refusalsOnly(t, name)
		for _, r := range all {
			given := values(t, r.values)
			for key, value := range least[name] {
				if _, said := given[key]; !said {
					given[key] = value
				}
			}
			files, err := templates(t, c, release(slipwayChart, namespace), given)
			if err == nil { // a template of an object may refuse it
				files, err = templates(t, load(t, name), release(slipwayChart, namespace), given)
			}
			if err == nil {
				t.Errorf("%s: %s: accepted, with %d files", name, r.name, len(files))
				continue
			}
			if !strings.Contains(err.Error(), r.says) {
				t.Errorf("%s: %s: error %q, want %q", name, r.name, err, r.says)
			}
		}
	}
}

// TestI10NullRemovesNoDefault sets each value to null. Helm then removes the value with its default. A template would read a removed
// value as false, and so leave out a policy.
func TestI10NullRemovesNoDefault(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]string{slipwayChart: registry, crdChart: "", handlerChart: handlerImage, awsHandler: handlerImage} {
		c := refusalsOnly(t, name)
		checked := 0
		for _, path := range valuePaths(c.Values, values(t, string(c.Schema)), nil) {
			if (name == handlerChart || name == awsHandler) && path[0] != "slipway" {
				continue // the values of another tool's chart, which allowed null
			}
			checked++
			all := values(t, given)
			if err := unstructured.SetNestedField(all, nil, path...); err != nil {
				t.Fatal(err)
			}
			_, err := templates(t, c, release(slipwayChart, namespace), all)
			want := "missing property '" + path[len(path)-1] + "'"
			if path[0] == "runAsUser" {
				want = ""
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: null: got %v, want %q", name, strings.Join(path, "."), err, want)
			}
		}
		if checked == 0 {
			t.Errorf("%s: no value is checked", name)
		}
	}
}

// TestAgentConfigOfTheChartIsAnAgentFile reads each key of agent.config with the code of the agent. The chart must accept what the
// agent writes as its own file, such as a file of slipway migrate.
func TestAgentConfigOfTheChartIsAnAgentFile(t *testing.T) {
	t.Parallel()
	c := load(t, slipwayChart)
	var schema struct {
		Properties struct {
			Agent struct{ Properties struct{ Config valueSchema } }
		}
	}
	if err := yaml.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	written := 0
	for key, s := range schema.Properties.Agent.Properties.Config.Properties {
		for _, value := range s.examples(t) {
			file := key + ": " + value
			a, err := config.DecodeAgentFile([]byte(file))
			if err != nil {
				t.Errorf("%s: the agent refuses what the chart accepts: %v", file, err)
				continue
			}
			raw, err := a.EncodeFile()
			if err != nil {
				t.Fatal(err)
			}
			if len(raw) > 0 {
				written++
			}
			given := values(t, registry)
			given["agent"] = map[string]any{"config": map[string]any(values(t, string(raw)))}
			given["manager"] = map[string]any{"awsQueue": map[string]any{"agentConfig": map[string]any(values(t, file))}}
			all, err := chartutil.CoalesceValues(c, given)
			if err != nil {
				t.Fatal(err)
			}
			if err := chartutil.ValidateAgainstSchema(c, all); err != nil {
				t.Errorf("%s: the chart refuses what the agent writes: %v\n%s", file, err, raw)
			}
		}
	}
	if written == 0 {
		t.Error("no value differs from its default")
	}
}

// valueSchema is the part of a JSON schema that examples reads.
type valueSchema struct {
	Type, Pattern        string
	Enum                 []string
	Properties           map[string]valueSchema
	AdditionalProperties json.RawMessage
}

// examples returns values that the schema accepts, as YAML. An object has two keys.
func (s valueSchema) examples(t *testing.T) (all []string) {
	t.Helper()
	switch {
	case s.Enum != nil:
		for _, value := range s.Enum {
			all = append(all, fmt.Sprintf("%q", value))
		}
		return all
	case s.Type == "object":
		var of valueSchema
		if err := json.Unmarshal(s.AdditionalProperties, &of); err != nil {
			t.Fatal(err)
		}
		for _, value := range of.examples(t) {
			all = append(all, fmt.Sprintf("{slipway.dev/a: %s, b: %s}", value, value))
		}
		return all
	case s.Pattern != "":
		return []string{"7m"} // a duration
	}
	return map[string][]string{"boolean": {"true", "false"}, "integer": {"7"}, "array": {"[]"}, "string": {"text"}}[s.Type]
}

// TestReusedValuesOfAnotherReleaseAreRefused upgrades from one release to the next. helm upgrade --reuse-values gives the defaults of
// the earlier chart as values, with the digests of its images. --reset-then-reuse-values gives only what the user has set.
func TestReusedValuesOfAnotherReleaseAreRefused(t *testing.T) {
	t.Parallel()
	released := func(version string) *chart.Chart {
		c := *refusalsOnly(t, slipwayChart)
		metadata := *c.Metadata
		metadata.AppVersion, c.Metadata = version, &metadata
		defaults, err := chartutil.CoalesceValues(&c, values(t, "image: {registry: registry.example.com/slipway, release: "+version+"}"))
		if err != nil {
			t.Fatal(err)
		}
		c.Values = defaults
		return &c
	}
	earlier, later := released("v1.2.3"), released("v1.2.4")
	given := values(t, "agent: {port: 9000}")
	reused, err := chartutil.CoalesceValues(earlier, given)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		chart  *chart.Chart
		values map[string]any
		want   string
	}{
		{earlier, reused, ""},
		{later, reused, "image.release: v1.2.3, but this chart is of v1.2.4"},
		{later, given, ""},
		{refusalsOnly(t, slipwayChart), reused, "image.release: v1.2.3, but this chart is of v0.1.0"},
	} {
		_, err := templates(t, c.chart, release(slipwayChart, namespace), c.values)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("chart of %s, values of %v: got %v, want %q", c.chart.Metadata.AppVersion, c.values["image"], err, c.want)
		}
	}
}

// valuePaths returns the paths of the values that a schema lists, except the keys of the agent's file.
func valuePaths(values, schema map[string]any, above []string) (all [][]string) {
	properties, _ := schema["properties"].(map[string]any)
	for key, value := range values {
		path := append(slices.Clone(above), key)
		all = append(all, path)
		below, isMap := value.(map[string]any)
		if listed, ok := properties[key].(map[string]any); ok && isMap && !slices.Equal(path, []string{"agent", "config"}) && listed["properties"] != nil {
			all = append(all, valuePaths(below, listed, path)...)
		}
	}
	return all
}

// TestReachableReceiversAreAccepted also covers unknown receivers, and receivers of agents on their nodes'
// network.
func TestReachableReceiversAreAccepted(t *testing.T) {
	t.Parallel()
	const far = "config: {notifications: [{name: am, webhook: {url: 'http://am:9093/hook'}}]}"
	c := refusalsOnly(t, slipwayChart)
	for _, text := range []string{
		"agent: {" + far + "}",
		"networkPolicy: {enabled: true, receivers: [{ports: [{port: 9093}]}]}\nagent: {" + far + "}",
		"networkPolicy: {enabled: true, apiServer: {ports: [443, 9093]}}\nagent: {" + far + "}",
		policyValues + "agent: {hostNetwork: true, " + far + "}",
		policyValues + "agent: {linux: {enabled: false}, windows: {enabled: true}, " + far + "}",
		policyValues + withManager + "agent: {enabled: false, " + far + "}",
		policyValues + "agent: {extraEnv: [{name: http_proxy, value: 'https://proxy'}], " + far + "}",
		policyValues + "agent: {config: {notifications: [{name: am, webhook: {url: 'https://example.com/hook'}}, {name: bot, telegram: {chatID: '1'}}]}}",
		policyValues + "agent: {config: {notifications: [{name: am, webhook: {urlFile: /a}}]}}",
		policyValues + "agent: {config: {notifications: [{name: am, webhook: {url: 'http://{{ index .NodeLabels \"a/b\" }}:443/hook'}}]}}",
		policyValues + "agent: {binary: slipway, config: {traceEndpoint: 'http://collector:443/v1/traces'}}",
	} {
		given := values(t, registry+text)
		if _, err := templates(t, c, release(slipwayChart, namespace), given); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// flagsWithoutValue lists the flags without a value in agent.config. The chart sets them, or a pod does not need them.
var flagsWithoutValue = map[string]bool{
	"config": true, "listen": true, "namespace": true, "node-name": true, "kubeconfig": true,
	"condition": true, // the key conditions, in a file
}

func TestSchemaHasExactlyTheAgentKeys(t *testing.T) {
	t.Parallel()
	var a config.Agent
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	want := map[string]bool{"conditions": true, "notifications": true}
	flags.VisitAll(func(f *pflag.Flag) {
		if !flagsWithoutValue[f.Name] {
			want[camelCase(f.Name)] = true
		}
	})
	schema := values(t, string(load(t, slipwayChart).Schema))
	has := schema
	for _, key := range []string{"properties", "agent", "properties", "config", "properties"} {
		below, ok := has[key].(map[string]any)
		if !ok {
			t.Fatalf("the schema has no %s", key)
		}
		has = below
	}
	for key := range want {
		if has[key] == nil {
			t.Errorf("agent.config.%s is not in the schema", key)
		}
	}
	for key := range has {
		if !want[key] {
			t.Errorf("agent.config.%s is in the schema, but not a key of the agent file", key)
		}
	}
}

// TestAgentFlagsAreRefusedAsExtraArgs checks the refusal, because flags override the file and bypass
// its checks.
func TestAgentFlagsAreRefusedAsExtraArgs(t *testing.T) {
	t.Parallel()
	var a config.Agent
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	c := refusalsOnly(t, slipwayChart)
	flags.VisitAll(func(f *pflag.Flag) {
		given := values(t, registry+"agent: {extraArgs: ['--"+f.Name+"=x']}")
		_, err := templates(t, c, release(slipwayChart, namespace), given)
		want := "want agent.config." + camelCase(f.Name) + " instead"
		switch {
		case flagsWithoutValue[f.Name]:
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("--%s: %v, want %q", f.Name, err, want)
		}
	})
}

// fixedSettings lists the values of flags that the chart sets for every release.
var fixedSettings = map[string]bool{"the release's namespace": true, "the pod's own name": true}

// TestManagerAndCloudpoolFlagsCanBeSet sets each flag by an argument, or by the value that the refusal names.
func TestManagerAndCloudpoolFlagsCanBeSet(t *testing.T) {
	t.Parallel()
	var m manager.Config
	var cloudpoolRelease cloudpool.Config
	c := refusalsOnly(t, slipwayChart)
	for part, add := range map[string]func(*pflag.FlagSet){"manager": m.AddFlags, "cloudpool": cloudpoolRelease.AddFlags} {
		flags := pflag.NewFlagSet(part, pflag.ContinueOnError)
		add(flags)
		flags.VisitAll(func(f *pflag.Flag) {
			given := values(t, registry+part+": {enabled: true, extraArgs: ['--"+f.Name+"=x']}\n")
			if part == "cloudpool" {
				given["manager"] = map[string]any{"enabled": true} // it installs the CRDs
				maps.Copy(given["cloudpool"].(map[string]any), values(t, "{enabled: true, nodeGroups: [a], tls: {secretName: a}}"))
			}
			_, err := templates(t, c, release(slipwayChart, namespace), given)
			if err == nil {
				return
			}
			_, value, _ := strings.Cut(err.Error(), "is set by the chart: want ")
			value, _, named := strings.Cut(value, " instead")
			_, scalar := chartutil.Values(c.Values).PathValue(value)
			_, table := chartutil.Values(c.Values).Table(value)
			if !named || !fixedSettings[value] && scalar != nil && table != nil {
				t.Errorf("%s --%s: refused with %v, want it to name a value", part, f.Name, err)
			}
		})
	}
}

func TestRemoveLastWorkerIsSetByItsValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "removeLastWorker: false": false, "removeLastWorker: true": true} {
		cloudpoolRelease := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			registry+"agent: {enabled: false}\n"+cloudpoolValues+text+"}"))
		got := false
		for _, o := range cloudpoolRelease {
			if pod := podOf(t, o); pod != nil && strings.HasSuffix(o.GetName(), "-cloudpool") {
				got = slices.Contains(pod.Spec.Containers[0].Args, "--remove-last-worker")
			}
		}
		if got != want {
			t.Errorf("%q: --remove-last-worker %t, want %t", text, got, want)
		}
	}
}

// TestChartAndAgentAcceptSameDurations checks both sides of every limit. The chart accepts exactly the
// agent's durations.
func TestChartAndAgentAcceptSameDurations(t *testing.T) {
	t.Parallel()
	c := refusalsOnly(t, slipwayChart)
	for _, key := range []string{
		"acknowledgeFreezeUnder", "asgHookTimeout", "deadlineMargin", "firstRequestTimeout", "maintenanceLead", "pollInterval", "requestTimeout",
		"retirementLead", "stopGrace", "unconfirmedAfter",
	} {
		accepted := 0
		for _, d := range []string{
			"0", "1ns", "99ms", "100ms", "4.999s", "5s", "9.999s", "10s", "29.999s", "30s", "1m", "1m1ms", "2m10s", "2m10.001s", "10m", "600.001s", "60m", "1h0m1ms", "48h",
			"48h1ms", "720h", "720h1ms",
		} {
			file := key + ": '" + d + "'"
			a, err := config.DecodeAgentFile([]byte(file))
			if err != nil {
				t.Fatal(err)
			}
			a.NodeName = "node"
			refused := a.Validate()
			if refused == nil {
				accepted++
			}
			given := values(t, registry+"agent: {config: {"+file+"}}")
			if _, err := templates(t, c, release(slipwayChart, namespace), given); (err == nil) != (refused == nil) {
				t.Errorf("%s: the chart returns %v, the agent %v", file, err, refused)
			}
		}
		if accepted == 0 {
			t.Errorf("no %s is accepted", key)
		}
	}
}

func camelCase(flag string) string {
	var name strings.Builder
	for i, word := range strings.Split(flag, "-") {
		if i > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		name.WriteString(word)
	}
	return name.String()
}
