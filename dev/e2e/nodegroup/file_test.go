package nodegroup_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/manager"
)

// nonsense returns invalid NodeGroups, by the changed part. The definition contains the API server's messages.
func nonsense() map[string]map[string]any {
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
	return map[string]map[string]any{
		"name":                   {"metadata": map[string]any{"name": "Bad Name!"}},
		"label":                  {"metadata": map[string]any{"name": "good", "labels": map[string]any{"a b": "c"}}},
		"provider":               spec(map[string]any{"cloud": map[string]any{"provider": "AZ URE", "group": "ci"}}),
		"no group":               spec(map[string]any{"cloud": map[string]any{"provider": "azure"}}),
		"selector":               spec(map[string]any{"nodeSelector": map[string]any{}}),
		"control plane":          spec(map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"node-role.kubernetes.io/master": ""}}}),
		"minimum":                spec(map[string]any{"minSize": -1}),
		"minimum above maximum":  spec(map[string]any{"minSize": 3, "maxSize": 2}),
		"maximum":                spec(map[string]any{"maxSize": -1}),
		"replacement":            spec(map[string]any{"replacement": "never"}),
		"scaleUp":                spec(map[string]any{"scaleUp": map[string]any{}}),
		"grace of 0":             drain(map[string]any{"graceSeconds": 0}),
		"grace below 0":          drain(map[string]any{"graceSeconds": -4}),
		"protection":             drain(map[string]any{"protection": "evict"}),
		"drain timeout":          drain(map[string]any{"timeout": "10ms"}),
		"placeholders":           drain(map[string]any{"placeholderPods": map[string]any{}}),
		"afterScaleUp":           cooldowns(map[string]any{"afterScaleUp": "-1s"}),
		"afterFailure":           cooldowns(map[string]any{"afterFailure": "-1s"}),
		"percentage":             budget(map[string]any{"nodes": "200%"}),
		"count":                  budget(map[string]any{"nodes": -1}),
		"reason":                 budget(map[string]any{"reasons": []any{"idle pods"}}),
		"reason twice":           budget(map[string]any{"reasons": []any{"Idle", "Idle"}}),
		"zone alone":             budget(map[string]any{"timeZone": "UTC"}),
		"zone":                   budget(map[string]any{"timeZone": "Mo on", "schedule": "@daily", "duration": "1h"}),
		"schedule alone":         budget(map[string]any{"schedule": "@daily"}),
		"duration alone":         budget(map[string]any{"duration": "1h"}),
		"short window":           budget(map[string]any{"schedule": "@daily", "duration": "1s"}),
		"schedule":               budget(map[string]any{"schedule": "sometimes", "duration": "1h"}),
		"podSelector":            idle(map[string]any{"podSelector": map[string]any{}}),
		"cooldown":               idle(map[string]any{"cooldown": "-1s"}),
		"checkEvery":             idle(map[string]any{"checkEvery": "10ms"}),
		"checks alone":           idle(map[string]any{"checks": 2}),
		"checks":                 idle(map[string]any{"checks": 101, "checkEvery": "1m"}),
		"namespace twice":        idle(map[string]any{"namespaces": []any{"a", "a"}}),
		"cpuBelow":               spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"cpuBelow": 101}}}),
		"podsAtMost":             spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"podsAtMost": -1}}}),
		"underutilized cooldown": spec(map[string]any{"scaleDown": map[string]any{"underutilized": map[string]any{"cooldown": "-1s"}}}),
		"policy":                 up(map[string]any{"policy": "Cheap"}),
		"joinTimeout":            up(map[string]any{"joinTimeout": "1s"}),
		"no slots":               up(map[string]any{"headroom": map[string]any{"slots": 0, "requests": map[string]any{"cpu": "1"}}}),
		"no requests":            up(map[string]any{"headroom": map[string]any{"slots": 1, "requests": map[string]any{}}}),
		"template twice":         up(map[string]any{"templates": []any{map[string]any{"name": "a"}, map[string]any{"name": "a"}}}),
	}
}

// TestI10AFileIsRefusedWhereTheAPIServerRefuses checks the same NodeGroups as a file and at the API server.
func TestI10AFileIsRefusedWhereTheAPIServerRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nonsense", 1)
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
		t.Fatalf("what is good is refused: %v; %v", byServer, byFile)
	}
	for name, change := range nonsense() {
		if byServer, byFile := refused(change); byServer == nil || byFile == nil {
			t.Errorf("%s: the API server says %v, and of the file it is said %v", name, byServer, byFile)
		}
	}
}
