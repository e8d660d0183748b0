package nodegroup_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/manager"
)

// invalidGroup is a change that makes a NodeGroup invalid. The errors must name the field.
type invalidGroup struct {
	field  string
	change map[string]any
}

func invalidGroups() []invalidGroup {
	spec := func(change map[string]any) map[string]any { return map[string]any{"spec": change} }
	budget := func(change map[string]any) map[string]any {
		if _, there := change["nodes"]; !there {
			change["nodes"] = 1
		}
		return spec(map[string]any{"disruptionBudgets": []any{change}})
	}
	idle := func(change map[string]any) map[string]any {
		if _, there := change["podSelector"]; !there {
			change["podSelector"] = map[string]any{"matchLabels": map[string]any{"app": "job"}}
		}
		return spec(map[string]any{"scaleDown": map[string]any{"idleByLabel": change}})
	}
	drain := func(change map[string]any) map[string]any { return spec(map[string]any{"drain": change}) }
	cooldowns := func(change map[string]any) map[string]any { return spec(map[string]any{"cooldowns": change}) }
	up := func(change map[string]any) map[string]any {
		return spec(map[string]any{"maxSize": 9, "scaleUp": change})
	}
	return []invalidGroup{
		{"metadata.name", map[string]any{"metadata": map[string]any{"name": "Bad Name!"}}},
		{"metadata.labels", map[string]any{"metadata": map[string]any{"name": "good", "labels": map[string]any{"a b": "c"}}}},
		{"cloud.provider", spec(map[string]any{"cloud": map[string]any{"provider": "AZ URE", "group": "ci"}})},
		{"cloud", spec(map[string]any{"cloud": map[string]any{"provider": "azure"}})},
		{"nodeSelector", spec(map[string]any{"nodeSelector": map[string]any{}})},
		{"nodeSelector", spec(map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{}}})},
		{"nodeSelector", spec(map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"node-role.kubernetes.io/master": ""}}})},
		{"minSize", spec(map[string]any{"minSize": -1})},
		{"minSize", spec(map[string]any{"minSize": 3, "maxSize": 2})},
		{"maxSize", spec(map[string]any{"maxSize": -1})},
		{"replacement", spec(map[string]any{"replacement": "never"})},
		{"scaleUp", spec(map[string]any{"scaleUp": map[string]any{}})},
		{"graceSeconds", drain(map[string]any{"graceSeconds": 0})},
		{"graceSeconds", drain(map[string]any{"graceSeconds": -4})},
		{"protection", drain(map[string]any{"protection": "evict"})},
		{"timeout", drain(map[string]any{"timeout": "10ms"})},
		{"placeholderPods", drain(map[string]any{"placeholderPods": map[string]any{}})},
		{"afterScaleUp", cooldowns(map[string]any{"afterScaleUp": "-1s"})},
		{"afterFailure", cooldowns(map[string]any{"afterFailure": "-1s"})},
		{"nodes", budget(map[string]any{"nodes": "200%"})},
		{"nodes", budget(map[string]any{"nodes": -1})},
		{"reasons", budget(map[string]any{"reasons": []any{"idle pods"}})},
		{"reasons", budget(map[string]any{"reasons": []any{"Idle", "Idle"}})},
		{"timeZone", budget(map[string]any{"timeZone": "UTC"})},
		{"timeZone", budget(map[string]any{"timeZone": "Mo on", "schedule": "@daily", "duration": "1h"})},
		{"duration", budget(map[string]any{"schedule": "@daily"})},
		{"duration", budget(map[string]any{"duration": "1h"})},
		{"duration", budget(map[string]any{"schedule": "@daily", "duration": "1s"})},
		{"schedule", budget(map[string]any{"schedule": "sometimes", "duration": "1h"})},
		{"podSelector", idle(map[string]any{"podSelector": map[string]any{}})},
		{"cooldown", idle(map[string]any{"cooldown": "-1s"})},
		{"checkEvery", idle(map[string]any{"checkEvery": "10ms"})},
		{"checks", idle(map[string]any{"checks": 2})},
		{"checks", idle(map[string]any{"checks": 101, "checkEvery": "1m"})},
		{"namespaces", idle(map[string]any{"namespaces": []any{"a", "a"}})},
		{"cpuBelow", spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"cpuBelow": 101}}})},
		{"podsAtMost", spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"podsAtMost": -1}}})},
		{"cooldown", spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"cooldown": "-1s"}}})},
		{"policy", up(map[string]any{"policy": "Cheap"})},
		{"joinTimeout", up(map[string]any{"joinTimeout": "1s"})},
		{"slots", up(map[string]any{"headroom": map[string]any{"slots": 0, "requests": map[string]any{"cpu": "1"}}})},
		{"requests", up(map[string]any{"headroom": map[string]any{"slots": 1, "requests": map[string]any{}}})},
		{"templates", up(map[string]any{"templates": []any{map[string]any{"name": "a"}, map[string]any{"name": "a"}}})},
	}
}

// TestI10FileAndAPIServerRefuseSameGroups checks the same NodeGroups as a file and at the API server.
func TestI10FileAndAPIServerRefuseSameGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "invalid-groups", 1)
	refused := func(change map[string]any) (byServer, byFile error) {
		object := map[string]any{
			"apiVersion": groups.GroupVersion().String(), "kind": "NodeGroup", "metadata": map[string]any{"name": "good"},
			"spec": map[string]any{
				"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "none"}},
				"cloud":        map[string]any{"provider": "azure", "group": "none"},
			},
		}
		for part, change := range change {
			for field, value := range change.(map[string]any) {
				object[part].(map[string]any)[field] = value
			}
		}
		raw, err := yaml.Marshal(object)
		f.check(err)
		sent := &unstructured.Unstructured{}
		f.check(yaml.Unmarshal(raw, &sent.Object))
		_, byServer = f.objects(groups).Create(f.ctx, sent, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		_, byFile = manager.ParseGroups(raw)
		return byServer, byFile
	}
	if byServer, byFile := refused(nil); byServer != nil || byFile != nil {
		t.Fatalf("a valid group is refused: %v; %v", byServer, byFile)
	}
	for _, tt := range invalidGroups() {
		byServer, byFile := refused(tt.change)
		for source, err := range map[string]error{"the API server": byServer, "the file": byFile} {
			if err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Errorf("%v: the error of %s is %v, want it to name %s", tt.change, source, err, tt.field)
			}
		}
	}
}
