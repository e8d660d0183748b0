package chart_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
)

// standardGrace is the default grace period of a pod in seconds.
const standardGrace = 30

// TestAgentsHaveTheTimeToEndThatTheyAreToldToTake checks the pod's grace period. The kubelet kills an agent that takes
// longer.
func TestAgentsHaveTheTimeToEndThatTheyAreToldToTake(t *testing.T) {
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
			"image: {registry: registry.example.com/slipway}\nagent: {windows: {enabled: true}, config: "+config+"}"))
		for _, name := range []string{"slipway-agent", "slipway-agent-windows"} {
			if got := graceOf(find[appsv1.DaemonSet](t, all, "DaemonSet", name)); got != standardGrace+want {
				t.Errorf("%s: %s has %d s to end, want %d", config, name, got, standardGrace+want)
			}
		}
	}
}

// TestTheHandlerHasTheTimeToEndThatItIsToldToTake sets the time by a flag or by the handler's file. The file takes
// precedence. A file that the chart does not see may contain anything.
func TestTheHandlerHasTheTimeToEndThatItIsToldToTake(t *testing.T) {
	t.Parallel()
	const file = "configMap: {data: {a.yaml: 'graceperiodseconds: 300', b.yaml: 'period: 1s', c.yaml: '['}}\n"
	for values, want := range map[string]int64{
		"":                                  10,
		"args: [-gracePeriodSeconds=600]":   600,
		"args: [--gracePeriodSeconds, '0']": 0,
		"args: [-podGracePeriodSeconds=99, -nodeGracePeriodSeconds=99]":      10,
		file + "args: [-gracePeriodSeconds=20]":                              20,
		file + "args: [-config, /files/a.yaml, -gracePeriodSeconds=20]":      300,
		file + "args: [-config=/files/b.yaml, -gracePeriodSeconds=20]":       20,
		file + "args: [-config=/files/c.yaml]":                               600,
		file + "args: [-config=/elsewhere/a.yaml]":                           600,
		file + "env: [{name: CONFIG, value: /files/a.yaml}]":                 300,
		file + "env: [{name: CONFIG, valueFrom: {secretKeyRef: {name: a}}}]": 600,
		"configMap: {create: false}\nargs: [-config=/files/a.yaml]":          600,
	} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), image+values))
		if got := graceOf(find[appsv1.DaemonSet](t, all, "DaemonSet", handlerChart)); got != standardGrace+want {
			t.Errorf("%q: the handler has %d s to end, want %d", values, got, standardGrace+want)
		}
	}
}

func graceOf(set *appsv1.DaemonSet) int64 {
	if grace := set.Spec.Template.Spec.TerminationGracePeriodSeconds; grace != nil {
		return *grace
	}
	return standardGrace
}

// TestAgentsEvictWithoutGraceOnlyWhereTheyAreToldTo checks the right to evict with a grace period of 0. Without the
// right, the API server refuses every such eviction.
func TestAgentsEvictWithoutGraceOnlyWhereTheyAreToldTo(t *testing.T) {
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
	} {
		for text, want := range cases {
			image := "image: {registry: registry.example.com/slipway}\n"
			if chart == handlerChart {
				image = "slipway: {image: 'registry.example.com/slipway:v1'}\n"
			}
			all := objects(t, manifest(t, chart, release(chart, namespace), image+text))
			policy := chart + "-eviction"
			if chart == slipwayChart {
				policy = "slipway-agent-eviction"
			}
			may := true
			for _, v := range find[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy", policy).Spec.Validations {
				may = may && !strings.Contains(v.Expression, "gracePeriodSeconds")
			}
			if may != want {
				t.Errorf("%s: %q: agents may evict with a grace period of 0: %t", chart, text, may)
			}
		}
	}
}
