package chart_test

import (
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/slipway-dev/slipway/internal/compat/awsnth"
)

// queueMode selects the queue mode of the chart aws-node-termination-handler.
const queueMode = "enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/notices\n"

// awsHandlerRefusals lists the refusals of the chart aws-node-termination-handler.
var awsHandlerRefusals = []refusal{
	{"no image", "slipway: {image: ''}", "slipway.image is empty: want the image slipway with its tag"},
	{"an image of another release", "slipway: {image: a, release: v0.0.9}", "slipway.release: v0.0.9, but this chart is of v0.1.0"},
	{"no operating system", "targetNodeOs: bsd", `targetNodeOs: "bsd": no node would be guarded; want linux, windows or "linux windows"`},
	{"no queue", "enableSqsTerminationDraining: true", "queueURL is empty: enableSqsTerminationDraining needs the URL of an SQS queue"},
	{"the default account", "serviceAccount: {create: false}", "serviceAccount.name is empty, and serviceAccount.create is false"},
	{"a text for a boolean", "enableSqsTerminationDraining: 'false'", "at '/enableSqsTerminationDraining': got string, want boolean"},
	{"a port that is none", "prometheusServerPort: 99999", "at '/prometheusServerPort': maximum"},
	{"an unknown key under slipway", "slipway: {imige: a}", "additional properties 'imige' not allowed"},
}

// TestAWSHandlerObjectsKeepTheirNames checks that an upgrade from chart 0.27.6 changes the existing objects. The
// selectors of a DaemonSet and of a Deployment cannot change.
func TestAWSHandlerObjectsKeepTheirNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ release, values, name, label, account string }{
		{awsHandler, "", awsHandler, awsHandler, awsHandler},
		{"nth", "", "nth-" + awsHandler, awsHandler, "nth-" + awsHandler},
		{"nth", "nameOverride: handler", "nth-handler", "handler", "nth-handler"},
		{"nth", "fullnameOverride: guard", "guard", awsHandler, "guard"},
		{"nth", "serviceAccount: {name: mine}", "nth-" + awsHandler, awsHandler, "mine"},
	} {
		for _, mode := range []string{"", queueMode} {
			all := objects(t, manifest(t, awsHandler, release(c.release, "kube-system"), handlerImage+mode+c.values+"\ntargetNodeOs: linux windows"))
			selector := map[string]string{"app.kubernetes.io/name": c.label, "app.kubernetes.io/instance": c.release}
			pods := map[string]*corev1.PodTemplateSpec{}
			if mode == "" {
				for name, os := range map[string]string{c.name: "linux", c.name + "-win": "windows"} {
					set := find[appsv1.DaemonSet](t, all, "DaemonSet", name)
					selector["app.kubernetes.io/component"], selector["kubernetes.io/os"] = "daemonset", os
					check(t, maps.Equal(set.Spec.Selector.MatchLabels, selector), "%s: the selector is %v, want %v", name, set.Spec.Selector.MatchLabels, selector)
					pods[name] = &set.Spec.Template
				}
			} else {
				set := find[appsv1.Deployment](t, all, "Deployment", c.name)
				selector["app.kubernetes.io/component"] = "deployment"
				check(t, maps.Equal(set.Spec.Selector.MatchLabels, selector), "%s: the selector is %v, want %v", c.name, set.Spec.Selector.MatchLabels, selector)
				pods[c.name] = &set.Spec.Template
			}
			find[corev1.ServiceAccount](t, all, "ServiceAccount", c.account)
			binding := find[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding", c.name)
			check(t, binding.Subjects[0].Name == c.account, "the rights are of %s, want %s", binding.Subjects[0].Name, c.account)
			for name, pod := range pods {
				check(t, pod.Spec.ServiceAccountName == c.account, "the pods of %s run as %s, want %s", name, pod.Spec.ServiceAccountName, c.account)
			}
		}
	}
}

func check(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
}

// parseRenderedOptions reads the environment of the first container as the program does.
func parseRenderedOptions(t *testing.T, pod corev1.PodSpec) *awsnth.Options {
	t.Helper()
	env := map[string]string{}
	for _, v := range pod.Containers[0].Env {
		if _, twice := env[v.Name]; twice {
			t.Errorf("the variable %s is set twice", v.Name)
		}
		if env[v.Name] = v.Value; v.ValueFrom != nil {
			env[v.Name] = "from-elsewhere"
		}
	}
	used := map[string]bool{}
	o, err := awsnth.ParseOptions(pod.Containers[0].Args[1:], func(name string) string {
		used[name] = true
		return env[name]
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for name := range env {
		check(t, used[name] || strings.HasPrefix(name, "AWS_"), "the program does not read the variable %s", name)
	}
	return o
}

// TestAWSHandlerValuesReachTheProgram parses the rendered environment. The defaults of the chart and of the program
// differ only where they differed before.
func TestAWSHandlerValuesReachTheProgram(t *testing.T) {
	t.Parallel()
	podWith := func(text string) corev1.PodSpec {
		if !strings.HasPrefix(text, "{") {
			text = handlerImage + text
		}
		all := objects(t, manifest(t, awsHandler, release(awsHandler, "kube-system"), text))
		if strings.Contains(text, "enableSqsTerminationDraining") {
			return find[appsv1.Deployment](t, all, "Deployment", awsHandler).Spec.Template.Spec
		}
		return find[appsv1.DaemonSet](t, all, "DaemonSet", awsHandler).Spec.Template.Spec
	}
	for text, want := range map[string][]string{
		"":        {"-enable-asg-lifecycle-draining"},
		queueMode: {"-enable-sqs-termination-draining", "-queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/notices", "-enable-probes-server"},
		"{probes: {httpGet: {path: /alive, port: 81}}, enableProbesServer: true, logLevel: debug, jsonLogging: true, logFormatVersion: 2," +
			"enablePrometheusServer: true, prometheusServerPort: 82, dryRun: true, cordonOnly: true, taintNode: true, enableOutOfServiceTaint: true," +
			"excludeFromLoadBalancers: true, deleteLocalData: false, ignoreDaemonSets: false, podTerminationGracePeriod: 7," +
			"nodeTerminationGracePeriod: 600, emitKubernetesEvents: true, kubernetesEventsExtraAnnotations: a=b, webhookURL: 'http://h'," +
			"webhookHeaders: '{}', webhookProxy: 'http://p:1', webhookTemplate: x, enableSpotInterruptionDraining: false," +
			"enableASGLifecycleDraining: false, enableScheduledEventDraining: false, enableRebalanceMonitoring: true, enableRebalanceDraining: true," +
			"metadataTries: 9, instanceMetadataURL: 'http://127.0.0.1:1338', procUptimeFile: /uptime, extraEnv: [{name: ACKNOWLEDGE, value: 'false'}]," +
			"slipway: {image: a}}": {
			"-probes-server-endpoint=/alive", "-probes-server-port=81", "-enable-probes-server", "-log-level=debug", "-json-logging",
			"-log-format-version=2", "-enable-prometheus-server", "-prometheus-server-port=82", "-dry-run", "-cordon-only", "-taint-node",
			"-enable-out-of-service-taint", "-exclude-from-load-balancers", "-delete-local-data=false", "-ignore-daemon-sets=false",
			"-pod-termination-grace-period=7", "-node-termination-grace-period=600", "-emit-kubernetes-events",
			"-kubernetes-events-extra-annotations=a=b", "-webhook-url=http://h", "-webhook-headers={}", "-webhook-proxy=http://p:1",
			"-webhook-template=x", "-enable-spot-interruption-draining=false", "-enable-asg-lifecycle-draining=false",
			"-enable-scheduled-event-draining=false", "-enable-rebalance-monitoring", "-enable-rebalance-draining", "-metadata-tries=9",
			"-metadata-url=http://127.0.0.1:1338", "-uptime-from-file=/uptime", "-acknowledge=false",
		},
		"{enableSqsTerminationDraining: true, queueURL: 'https://q', awsRegion: us-east-1, awsEndpoint: 'http://l:4566', workers: 3," +
			"checkASGTagBeforeDraining: false, checkTagBeforeDraining: false, managedAsgTag: a, managedTag: b, useProviderId: true," +
			"completeLifecycleActionDelaySeconds: 4, deleteSqsMsgIfNodeNotFound: true, heartbeatInterval: 60, heartbeatUntil: 90," +
			"sqsMsgVisibilityTimeoutSec: 30, webhookURLSecretName: s, webhookTemplateConfigMapName: c, webhookTemplateConfigMapKey: k," +
			"replicas: 3, awsAccessKeyID: a, awsSecretAccessKey: b, slipway: {image: a}}": {
			"-enable-sqs-termination-draining", "-queue-url=https://q", "-enable-probes-server", "-aws-region=us-east-1",
			"-aws-endpoint=http://l:4566", "-workers=3", "-check-asg-tag-before-draining=false", "-check-tag-before-draining=false",
			"-managed-asg-tag=a", "-managed-tag=b", "-use-provider-id", "-complete-lifecycle-action-delay-seconds=4",
			"-delete-sqs-msg-if-node-not-found", "-heartbeat-interval=60", "-heartbeat-until=90", "-sqs-msg-visibility-timeout-sec=30",
			"-webhook-url=from-elsewhere", "-webhook-template-file=/config/k",
		},
	} {
		got := parseRenderedOptions(t, podWith(text))
		fixed := []string{"-log-level=info", "-node-name=from-elsewhere", "-pod-name=from-elsewhere", "-pod-namespace=from-elsewhere"}
		expected, err := awsnth.ParseOptions(slices.Concat(fixed, want), func(string) string { return "" }, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(expected, got, cmpopts.IgnoreUnexported(awsnth.Options{}), cmpopts.IgnoreFields(awsnth.Options{}, "Warnings")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
}

// TestAWSHandlerPoliciesLimitEveryWrite checks that a policy of each mode covers every resource that the handler may write. The queue mode
// writes Events about nodes and about its own pod, which no policy limits.
func TestAWSHandlerPoliciesLimitEveryWrite(t *testing.T) {
	t.Parallel()
	for mode, unlimited := range map[string]map[string]bool{"": nil, queueMode: {"events": true}} {
		limited := map[string]bool{}
		var rules []rbacv1.PolicyRule
		all := objects(t, manifest(t, awsHandler, release(awsHandler, "kube-system"), handlerImage+mode))
		for _, o := range all {
			switch o.GetKind() {
			case "ValidatingAdmissionPolicy":
				for _, r := range find[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, o.GetKind(), o.GetName()).Spec.MatchConstraints.ResourceRules {
					for _, resource := range r.Resources {
						limited[resource] = true
					}
				}
				binding := find[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, all, o.GetKind()+"Binding", o.GetName())
				check(t, binding.Spec.PolicyName == o.GetName(), "%q: the binding of %s names %s", mode, o.GetName(), binding.Spec.PolicyName)
			case "ClusterRole", "Role":
				rules = append(rules, find[rbacv1.ClusterRole](t, all, o.GetKind(), o.GetName()).Rules...)
			}
		}
		for _, rule := range rules {
			if !slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) }) {
				continue
			}
			for _, resource := range rule.Resources {
				check(t, limited[resource] != unlimited[resource], "%q: the rights are %v of %s, limited by a policy: %t", mode, rule.Verbs, resource, limited[resource])
			}
		}
	}
}

// leaseNames matches the pattern of names in a policy for Leases.
var leaseNames = regexp.MustCompile(`metadata\.\?name\.orValue\(''\)\.matches\('([^']+)'\)`)

// TestAWSHandlerPolicyAllowsGrantedLeases compares the names of Leases in the Role with the policy. A Lease that the policy refuses cannot be
// held, so a drain that needs a slot would wait until its deadline.
func TestAWSHandlerPolicyAllowsGrantedLeases(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]int{"": 16, queueMode: 17} {
		all := objects(t, manifest(t, awsHandler, release(awsHandler, "kube-system"), handlerImage+mode))
		policy := find[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy", awsHandler+"-lease")
		var allowed *regexp.Regexp
		for _, v := range policy.Spec.Validations {
			if pattern := leaseNames.FindStringSubmatch(v.Expression); pattern != nil {
				allowed = regexp.MustCompile(pattern[1])
			}
		}
		if allowed == nil {
			t.Fatalf("%q: %s limits no names", mode, policy.Name)
		}
		granted := 0
		for _, rule := range find[rbacv1.Role](t, all, "Role", awsHandler).Rules {
			for _, name := range rule.ResourceNames {
				granted++
				check(t, allowed.MatchString(name), "%q: the Role grants the Lease %s, and the policy refuses it", mode, name)
			}
		}
		check(t, granted == want, "%q: the Role grants %d Leases, want %d", mode, granted, want)
		check(t, !allowed.MatchString("slipway-manager"), "%q: the policy allows the Lease of the manager", mode)
	}
}

// TestAWSHandlerToleratesItsOwnTaints checks the tolerations with any values.
func TestAWSHandlerToleratesItsOwnTaints(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"", "daemonsetTolerations: []", "daemonsetTolerations: [{key: a, operator: Exists}]"} {
		all := objects(t, manifest(t, awsHandler, release(awsHandler, "kube-system"), handlerImage+values+"\nenableOutOfServiceTaint: true"))
		pod := find[appsv1.DaemonSet](t, all, "DaemonSet", awsHandler).Spec.Template.Spec
		for _, key := range []string{
			awsHandler + "/spot-itn", awsHandler + "/scheduled-maintenance", awsHandler + "/asg-lifecycle-termination",
			awsHandler + "/rebalance-recommendation", "node.kubernetes.io/out-of-service",
		} {
			tolerated := slices.ContainsFunc(pod.Tolerations, func(toleration corev1.Toleration) bool {
				return (toleration.Key == key || toleration.Key == "") && toleration.Effect == "" && toleration.Operator == corev1.TolerationOpExists
			})
			check(t, tolerated, "%q: %s is not tolerated by %v", values, key, pod.Tolerations)
		}
	}
}
