package chart_test

import (
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// monitors contains the objects for the Prometheus operator, as its own types. An unknown field is an error.
type monitors struct {
	agentObjects, cloudpools *monitoringv1.PodMonitor
	managers                 *monitoringv1.ServiceMonitor
}

func monitorsOf(t *testing.T) (monitors, []*unstructured.Unstructured) {
	t.Helper()
	all := objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+
		"metrics: {scrape: monitors, interval: 15s, monitorLabels: {release: prometheus}}\n"+cloudpoolValues+"}\n"))
	m := monitors{
		agentObjects: find[monitoringv1.PodMonitor](t, all, "PodMonitor", "slipway-agent"),
		cloudpools:   find[monitoringv1.PodMonitor](t, all, "PodMonitor", "slipway-cloudpool"),
		managers:     find[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor", "slipway-manager"),
	}
	if len(m.agentObjects.Spec.PodMetricsEndpoints) != 1 || len(m.cloudpools.Spec.PodMetricsEndpoints) != 1 || len(m.managers.Spec.Endpoints) != 1 {
		t.Fatalf("%+v, want one endpoint each", m)
	}
	return m, all
}

func TestMonitorsSelectExistingPorts(t *testing.T) {
	t.Parallel()
	m, all := monitorsOf(t)
	check := func(part string, of metav1.ObjectMeta, selector metav1.LabelSelector, selected map[string]string, port string, there []string, every monitoringv1.Duration) {
		t.Helper()
		s, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil || s.Empty() || !s.Matches(labels.Set(selected)) {
			t.Errorf("%s: the selector %s does not match %v: %v", part, s, selected, err)
		}
		if !slices.Contains(there, port) || every != "15s" || of.Labels["release"] != "prometheus" || of.Namespace != namespace {
			t.Errorf("%s: port %q of %q every %s, labels %v, in %s", part, port, there, every, of.Labels, of.Namespace)
		}
	}
	for _, o := range objects(t, manifest(t, slipwayChart, release(slipwayChart, namespace), registry+cloudpoolValues+"}\n")) {
		if needsPrometheusOperator(o) {
			t.Errorf("without metrics.scrape, %s %s needs the Prometheus operator", o.GetKind(), o.GetName())
		}
	}
	// The instance label is only an address.
	relabelings := m.agentObjects.Spec.PodMetricsEndpoints[0].RelabelConfigs
	if len(relabelings) != 1 || relabelings[0].TargetLabel != "node" ||
		!slices.Equal(relabelings[0].SourceLabels, []monitoringv1.LabelName{"__meta_kubernetes_pod_node_name"}) {
		t.Errorf("relabeled by %+v", relabelings)
	}
	agent := find[appsv1.DaemonSet](t, all, "DaemonSet", "slipway-agent").Spec.Template
	end := m.agentObjects.Spec.PodMetricsEndpoints[0]
	check("agent", m.agentObjects.ObjectMeta, m.agentObjects.Spec.Selector, agent.Labels, *end.Port, portsOf(agent), end.Interval)
	cloudpoolRelease := find[appsv1.Deployment](t, all, "Deployment", "slipway-cloudpool").Spec.Template
	end = m.cloudpools.Spec.PodMetricsEndpoints[0]
	check("cloudpool", m.cloudpools.ObjectMeta, m.cloudpools.Spec.Selector, cloudpoolRelease.Labels, *end.Port, portsOf(cloudpoolRelease), end.Interval)
	service := find[corev1.Service](t, all, "Service", "slipway-manager")
	var ports []string
	for _, p := range service.Spec.Ports {
		ports = append(ports, p.Name)
	}
	managers := m.managers.Spec.Endpoints[0]
	check("manager", m.managers.ObjectMeta, m.managers.Spec.Selector, service.Labels, managers.Port, ports, managers.Interval)
}

func portsOf(template corev1.PodTemplateSpec) (names []string) {
	for _, c := range template.Spec.Containers {
		for _, p := range c.Ports {
			names = append(names, p.Name)
		}
	}
	return names
}
