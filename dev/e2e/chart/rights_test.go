package chart_test

import (
	"os"
	"path/filepath"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func TestI2WithoutForcedDrainsTheAgentMayNotDeletePods(t *testing.T) {
	t.Parallel()
	for forced, want := range map[string]bool{"true": true, "false": false} {
		all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace),
			"image: {registry: registry.example.com/slipway}\nagent: {forcedDrains: "+forced+"}"))
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
			t.Errorf("forcedDrains: %s: it may delete pods: %t", forced, may)
		}
	}
}

// TestTheChartHasTheTypesOfThisVersion compares the chart's copies with the types. The chart installs the copies for
// crds.by: chart.
func TestTheChartHasTheTypesOfThisVersion(t *testing.T) {
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
		copied := filepath.Join(root(t), "charts", slipwayChart, "files", "crds", filepath.Base(file))
		got, err := os.ReadFile(copied)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != string(got) {
			t.Errorf("%s is not %s: make generate copies it", copied, file)
		}
	}
}

// TestAgentsEvictionsInOneNamespaceDoNotHoldUpThoseInOthers checks the flow distinguisher. All agents are one user, so
// several flows need another distinction. Many requests in one namespace must find the same capacity as in one queue.
func TestAgentsEvictionsInOneNamespaceDoNotHoldUpThoseInOthers(t *testing.T) {
	t.Parallel()
	for chart, name := range map[string]string{slipwayChart: "slipway-agent", handlerChart: handlerChart} {
		text := "image: {registry: registry.example.com/slipway}"
		if chart == handlerChart {
			text = "slipway: {image: 'registry.example.com/slipway:v1'}"
		}
		all := objects(t, manifest(t, chart, release(chart, namespace), text))
		schema := find[flowcontrolv1.FlowSchema](t, all, "FlowSchema", name)
		if by := schema.Spec.DistinguisherMethod; by == nil || by.Type != flowcontrolv1.FlowDistinguisherMethodByNamespaceType {
			t.Errorf("%s: requests are told apart by %v, want their namespaces", chart, by)
		}
		level := find[flowcontrolv1.PriorityLevelConfiguration](t, all, "PriorityLevelConfiguration", name)
		q := level.Spec.Limited.LimitResponse.Queuing
		if q.Queues < 2*q.HandSize || q.HandSize < 2 || q.HandSize*q.QueueLengthLimit < 10000 {
			t.Errorf("%s: %d queues, of which a flow has %d with %d requests each: want at least twice as many as a flow has, and 10000 requests of a flow",
				chart, q.Queues, q.HandSize, q.QueueLengthLimit)
		}
	}
}
