package chart_test

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const image = "slipway: {image: registry.example.com/slipway/slipway}\n"

// TestTheHandlersObjectsAreCalledAsTheyWere, so that an upgrade of a release of the chart 1.2.0 changes the objects that are
// there. A DaemonSet's selector cannot be changed at all.
func TestTheHandlersObjectsAreCalledAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ release, values, name, label, files string }{
		{handlerChart, "", handlerChart, handlerChart, handlerChart + "-files"},
		{"my-" + handlerChart, "", "my-" + handlerChart, handlerChart, "my-" + handlerChart + "-files"},
		{"nodes", "", "nodes-" + handlerChart, handlerChart, "nodes-files"},
		{"nodes", "nameOverride: handler", "nodes-handler", "handler", "nodes-files"},
		{"nodes", "fullnameOverride: guard", "guard", handlerChart, "nodes-files"},
		{"nodes", "configMap: {name: '{{ .Release.Name }}-mine'}", "nodes-" + handlerChart, handlerChart, "nodes-mine"},
	} {
		all := objects(t, manifest(t, handlerChart, release(c.release, "kube-system"), image+c.values))
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

// TestTheHandlerToleratesItsOwnTaints, whatever else the values have it tolerate: a NoExecute taint drove the old one away.
func TestTheHandlerToleratesItsOwnTaints(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"", "tolerations: []", "tolerations: [{key: a, operator: Exists}]"} {
		all := objects(t, manifest(t, handlerChart, release(handlerChart, "kube-system"), image+values))
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
