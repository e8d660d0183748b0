package chart_test

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const handlerImage = "slipway: {image: registry.example.com/slipway/slipway}\n"

// TestHandlerObjectsKeepTheirNames checks that an upgrade from chart 1.2.0 changes the existing objects. The
// selector of a DaemonSet cannot change.
func TestHandlerObjectsKeepTheirNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ release, values, name, label, files string }{
		{handlerChart, "", handlerChart, handlerChart, handlerChart + "-files"},
		{"my-" + handlerChart, "", "my-" + handlerChart, handlerChart, "my-" + handlerChart + "-files"},
		{"nodes", "", "nodes-" + handlerChart, handlerChart, "nodes-files"},
		{"nodes", "nameOverride: handler", "nodes-handler", "handler", "nodes-files"},
		{"nodes", "fullnameOverride: guard", "guard", handlerChart, "nodes-files"},
		{"nodes", "configMap: {name: '{{ .Release.Name }}-mine'}", "nodes-" + handlerChart, handlerChart, "nodes-mine"},
	} {
		all := objects(t, manifest(t, handlerChart, release(c.release, "kube-system"), handlerImage+c.values))
		set := find[appsv1.DaemonSet](t, all, "DaemonSet", c.name)
		want := map[string]string{"app.kubernetes.io/name": c.label, "app.kubernetes.io/instance": c.release}
		if got := set.Spec.Selector.MatchLabels; !maps.Equal(got, want) {
			t.Errorf("release %s, %q: the selector is %v, want %v", c.release, c.values, got, want)
		}
		find[corev1.ServiceAccount](t, all, "ServiceAccount", c.name)
		find[corev1.ConfigMap](t, all, "ConfigMap", c.files)
		if got := set.Spec.Template.Spec.Volumes[0].ConfigMap.Name; got != c.files {
			t.Errorf("release %s, %q: the pods mount %s, want %s", c.release, c.values, got, c.files)
		}
	}
}

// TestHandlerToleratesItsOwnTaints checks the tolerations with any values. A NoExecute taint evicted the old
// handler.
func TestHandlerToleratesItsOwnTaints(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"", "tolerations: []", "tolerations: [{key: a, operator: Exists}]"} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), handlerImage+values))
		pod := find[appsv1.DaemonSet](t, all, "DaemonSet", handlerChart).Spec.Template.Spec
		for _, kind := range []string{"preempt", "terminate", "reboot", "redeploy", "freeze"} {
			taint := corev1.Taint{Key: handlerChart + "/" + kind, Value: "id", Effect: corev1.TaintEffectNoExecute}
			tolerated := false
			for _, toleration := range pod.Tolerations {
				tolerated = tolerated || (toleration.Key == taint.Key || toleration.Key == "") && toleration.Effect == "" &&
					toleration.Operator == corev1.TolerationOpExists
			}
			if !tolerated {
				t.Errorf("%q: %s is not tolerated by %v", values, taint.Key, pod.Tolerations)
			}
		}
	}
}

// TestHandlerRunsOnSelectedOperatingSystem checks the labels in nodeSelector and affinity, as in the README of the
// old chart.
func TestHandlerRunsOnSelectedOperatingSystem(t *testing.T) {
	t.Parallel()
	affinity := func(terms string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + terms + "]}}}"
	}
	const notOld = "{matchExpressions: [{key: kubernetes.azure.com/os-sku, operator: NotIn, values: [Windows2025, Windows2019]}]}"
	const windows = "{matchExpressions: [{key: kubernetes.io/arch, operator: In, values: [amd64]}, {key: kubernetes.io/os, operator: In, values: [windows]}]}"
	const sku = "{matchExpressions: [{key: kubernetes.azure.com/os-sku, operator: In, values: [Windows2019, Windows2022]}]}"
	for values, want := range map[string]struct {
		windows bool
		linux   bool // the pods run only on Linux nodes
	}{
		"": {false, true},
		"nodeSelector: {kubernetes.azure.com/os-sku: Windows2019}": {true, false},
		"nodeSelector: {kubernetes.io/os: windows}":                {true, false},
		affinity(windows):                          {true, false},
		affinity(sku):                              {true, false},
		affinity(windows + "," + sku):              {true, false},
		affinity(notOld):                           {false, true},
		affinity(windows + "," + notOld):           {false, true},
		"nodeSelector: {pool: a}":                  {false, true},
		"affinity: {podAffinity: {}}":              {false, true},
		"tolerations: [{key: os, value: windows}]": {false, true},
	} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), handlerImage+values))
		pod := find[appsv1.DaemonSet](t, all, "DaemonSet", handlerChart).Spec.Template.Spec
		if is := pod.OS != nil && pod.OS.Name == corev1.Windows; is != want.windows || pod.HostNetwork != want.windows {
			t.Errorf("%q: Windows pods %t, host network %t, want %t", values, is, pod.HostNetwork, want.windows)
		}
		if is := pod.NodeSelector["kubernetes.io/os"] == "linux"; is != want.linux {
			t.Errorf("%q: restricted to Linux %t, want %t", values, is, want.linux)
		}
	}
	own := "slipway: {image: registry.example.com/slipway/slipway, hostProcess: false}"
	all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), own))
	if got := find[appsv1.DaemonSet](t, all, "DaemonSet", handlerChart).Spec.Template.Spec.NodeSelector; len(got) > 0 {
		t.Errorf("images for both systems are restricted to %v", got)
	}
}
