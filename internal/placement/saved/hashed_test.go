package saved_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// collectAnswers returns all answers of placement about a cluster, as data.
func collectAnswers(t *rapid.T, o *saved.Objects) map[string]any {
	out := map[string]any{}
	put := func(question string, answer any, err error) {
		must.Not(t, err != nil, "%s: %v", question, err)
		text, err := json.Marshal(answer)
		must.Not(t, err != nil, "%s: %v", question, err)
		var data any
		if err := json.Unmarshal(text, &data); err != nil {
			t.Fatalf("%s: %v", question, err)
		}
		out[question] = data
	}
	now := time.Unix(0, 0)
	c, err := planner.NewCluster(o)
	must.NoError(t, err)
	for i, rules := range []planner.Options{{Now: now}, {Now: now, PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict).WithAction(podrules.RuleLocalStorage, podrules.Evict).WithAction(podrules.RuleHostPath, podrules.Evict)}} {
		for _, policy := range planner.Policies()[2*i : 2*i+2] {
			p, err := c.PlanLaunchesAndRemovals(planner.PlanOptions{MaxRemovals: -1, Policy: policy, Rules: rules})
			put(fmt.Sprintf("plan by %s, forced %t", policy, i > 0), p, err)
		}
		for _, n := range o.Nodes {
			e, err := c.PlanEvacuation(n.Name, planner.PlanOptions{Policy: planner.LeastDisruption, Rules: rules})
			put(fmt.Sprintf("why %s, forced %t", n.Name, i > 0), e, err)
		}
	}
	s, err := o.BuildSnapshot()
	must.NoError(t, err)
	for _, p := range o.Pods {
		if placementtest.IsFinished(p) {
			continue // excluded from the requests
		}
		key := placement.PodKey{Namespace: p.Namespace, Name: p.Name}
		pending, err := c.JudgePendingPod(key)
		put("why "+key.String(), pending, err)
		for _, n := range o.Nodes {
			verdict, err := s.JudgeRecreatedPod(key, n.Name)
			must.NoError(t, err)
			out[fmt.Sprintf("%s on %s", key, n.Name)] = verdict.String()
		}
	}
	packing, err := planner.PackPods(s, nil, planner.DeriveTemplates(s, o), planner.LeastCost)
	put("pack", packing, err)
	return out
}

// revealAnswers replaces hashed names by the original names in answers and their keys.
func revealAnswers(answers map[string]any, names saved.OriginalNames) map[string]any {
	var pairs []string
	for hidden, plain := range names {
		pairs = append(pairs, hidden, plain)
	}
	replace := strings.NewReplacer(pairs...).Replace
	prefixes := strings.NewReplacer("hashed/resource-", "resource-", "kubernetes.io/resource-", "resource-").Replace
	return replaceStrings(answers, func(s string) string { return replace(prefixes(s)) }).(map[string]any)
}

func replaceStrings(data any, replace func(string) string) any {
	switch data := data.(type) {
	case string:
		return replace(data)
	case []any:
		for i := range data {
			data[i] = replaceStrings(data[i], replace)
		}
	case map[string]any:
		out := map[string]any{}
		for key, value := range data {
			out[replace(key)] = replaceStrings(value, replace)
		}
		return out
	}
	return data
}

// sortLists sorts lists of reasons by text, because hashed names change their order.
func sortLists(data any) any {
	switch data := data.(type) {
	case string:
		if outcome, reasons, ok := strings.Cut(data, ": "); ok && strings.Contains(reasons, ", ") {
			list := strings.Split(reasons, ", ")
			slices.Sort(list)
			return outcome + ": " + strings.Join(list, ", ")
		}
	case []any:
		for i := range data {
			data[i] = sortLists(data[i])
		}
		if isReasonCounts(data) {
			slices.SortFunc(data, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	case map[string]any:
		for key, value := range data {
			data[key] = sortLists(value)
		}
	}
	return data
}

func isReasonCounts(list []any) bool {
	return len(list) > 0 && slices.ContainsFunc(list, func(item any) bool {
		m, ok := item.(map[string]any)
		return ok && (m["reason"] != nil || m["predicate"] != nil)
	})
}

// drawObjects returns a random cluster with all its pods, some pending, and with details that only real clusters
// have.
func drawObjects(t *rapid.T) *saved.Objects {
	c := placementtest.NewRandomCluster(rapid.Uint64().Draw(t, "seed"))
	for _, p := range c.Candidates {
		if p.Spec.NodeName == "" {
			c.Pods = append(c.Pods, p)
		}
	}
	yes := true
	kinds := []string{"ReplicaSet", "DaemonSet", "Node", "Rocket", ""}
	for i, p := range c.Pods {
		switch kind := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "owner")]; kind {
		case "":
		default:
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: kind, Name: "owner", UID: "owner", Controller: &yes}}
		}
		if note := rapid.SampledFrom(notes).Draw(t, "note"); note[0] != "" {
			p.Annotations = map[string]string{note[0]: note[1], "example.com/secret": "annotated"}
		}
		if i%5 == 0 {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: newGtSelector(rapid.SampledFrom([]string{"1", "2", "9"}).Draw(t, "generation")),
			}}
		}
		if i%9 == 0 && p.Spec.NodeName != "" {
			p.Namespace, p.Name = "kube-system", "kube-apiserver-"+p.Spec.NodeName
		}
	}
	budgets := rapid.IntRange(0, 3).Draw(t, "budgets")
	for i := range budgets {
		b := placementtest.NewPDB(string(rune('a'+i)), i)
		b.Namespace = rapid.SampledFrom([]string{"red", "green"}).Draw(t, "namespace")
		c.PDBs = append(c.PDBs, b)
	}
	for _, n := range c.Nodes {
		if note := rapid.SampledFrom(notes).Draw(t, "note"); note[0] != "" {
			n.Annotations = map[string]string{note[0]: note[1]}
		}
		if rapid.IntRange(0, 3).Draw(t, "pool") > 0 {
			n.Labels["karpenter.sh/nodepool"] = rapid.SampledFrom([]string{"shop", "shop-large", "shop.large"}).Draw(t, "name")
		}
		if rapid.Bool().Draw(t, "type") {
			n.Labels[corev1.LabelInstanceTypeStable] = rapid.SampledFrom([]string{"m7.large", "m7.xlarge"}).Draw(t, "kind")
		}
	}
	return dropDuplicates(&c.Objects)
}

// newGtSelector selects nodes of later generations than the given one.
func newGtSelector(than string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "generation", Operator: corev1.NodeSelectorOpGt, Values: []string{than}}},
	}}}
}

var notes = [][2]string{
	{"", ""},
	{"", ""},
	{"", ""},
	{"cluster-autoscaler.kubernetes.io/safe-to-evict", "True"},
	{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"},
	{"karpenter.sh/do-not-disrupt", "2h"},
	{"karpenter.sh/do-not-disrupt", "perhaps"},
	{"slipway.dev/do-not-evict", "true"},
	{"cluster-autoscaler.kubernetes.io/scale-down-disabled", "true"},
	{"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes", "v0,v1"},
	{corev1.MirrorPodAnnotationKey, "c0ffee"},
}

// dropDuplicates keeps one pod of each name.
func dropDuplicates(o *saved.Objects) *saved.Objects {
	seen := map[string]bool{}
	o.Pods = slices.DeleteFunc(o.Pods, func(p *corev1.Pod) bool {
		key := p.Namespace + "/" + p.Name
		again := seen[key]
		seen[key] = true
		return again || p.Status.Phase == corev1.PodSucceeded
	})
	return o
}

func TestHashedClusterGivesTheSameAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObjects(t)
		hidden, names := o.HashNames()
		want := sortLists(collectAnswers(t, o)).(map[string]any)
		got := sortLists(revealAnswers(collectAnswers(t, hidden), names)).(map[string]any)
		for question, answer := range want {
			if a, b := fmt.Sprint(got[question]), fmt.Sprint(answer); a != b {
				t.Fatalf("%s: hashed cluster\n%s\noriginal\n%s", question, a, b)
			}
		}
		must.Not(t, len(got) != len(want), "%d answers of the hashed cluster, %d of the original", len(got), len(want))
	})
}

// fillValue sets all fields of a value: strings to a secret, lists and maps to one entry. It leaves named string
// types empty, because their values are constants of the API.
func fillValue(v reflect.Value, depth int) {
	if depth > 14 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		switch v.Interface().(type) {
		case string, corev1.ResourceName, types.UID, types.NodeName:
			v.SetString("secret")
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillValue(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key, depth+1)
		fillValue(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		switch v.Interface().(type) {
		case metav1.Time, metav1.MicroTime, metav1.FieldsV1, runtime.RawExtension, time.Time, resource.Quantity:
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "DeclaredFeatures" { // these are names of Kubernetes features
				fillValue(v.Field(i), depth+1)
			}
		}
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

func TestHashedFileShowsNoName(t *testing.T) {
	var o saved.Objects
	fillValue(reflect.ValueOf(&o).Elem(), 0)
	plain, err := json.Marshal(&o)
	must.NoError(t, err)
	n := strings.Count(string(plain), "secret")
	must.Not(t, n < 1000, "only %d secrets", n)
	hidden, names := o.HashNames()
	text, err := json.Marshal(hidden)
	must.NoError(t, err)
	if i := strings.Index(string(text), "secret"); i >= 0 {
		t.Errorf("the file shows a secret: …%s…", text[max(0, i-200):min(len(text), i+50)])
	}
	for token, plain := range names {
		check.Not(t, plain != "secret", "hashed name %s maps to %q", token, plain)
	}
}

func TestHashedFilesOfOneClusterCannotBeMatched(t *testing.T) {
	o := &saved.Objects{Nodes: []*corev1.Node{placementtest.NewNode("node-a", "zone-a", 4, 16, 10)}}
	first, _ := o.HashNames()
	second, names := o.HashNames()
	check.Not(t, first.Nodes[0].Name == second.Nodes[0].Name, "both files have the name %s", first.Nodes[0].Name)
	n := second.Nodes[0]
	if names[n.Name] != "node-a" || n.Labels[corev1.LabelHostname] != n.Name || n.Labels[corev1.LabelOSStable] != "linux" ||
		names[n.Labels[corev1.LabelTopologyZone]] != "zone-a" {
		t.Errorf("node %s with labels %v, names %v", n.Name, n.Labels, names)
	}
	check.Not(t, o.Nodes[0].Name != "node-a" || o.Nodes[0].Labels[corev1.LabelTopologyZone] != "zone-a", "the original was changed: %+v", o.Nodes[0])
}

func TestI6HashedNodeIsRemovedByTheSameTools(t *testing.T) {
	for _, key := range []string{
		"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "remediator.kubernetes.azure.com/unschedulable",
		"node.remediator.kubernetes.azure.com/unschedulable", "remediator.aks.microsoft.com/unschedulable",
	} {
		n := placementtest.NewNode("node-a", "zone-a", 4, 16, 10)
		n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		hidden, _ := (&saved.Objects{Nodes: []*corev1.Node{n}}).HashNames()
		by := fromcorev1.NodeFacts(hidden.Nodes[0]).RemovedBy
		check.Not(t, len(by) != 1 || by[0] != fromcorev1.NodeFacts(n).RemovedBy[0], "%s: removing tool of the hashed node is %q", key, by)
	}
}

func TestHashedVirtualNodeStaysVirtual(t *testing.T) {
	for key, value := range map[string]string{"type": "virtual-kubelet", "eks.amazonaws.com/compute-type": "fargate"} {
		n := placementtest.NewNode("node-a", "zone-a", 4, 16, 10)
		n.Labels[key] = value
		hidden, _ := (&saved.Objects{Nodes: []*corev1.Node{n}}).HashNames()
		check.Not(t, !fromcorev1.NodeFacts(hidden.Nodes[0]).Virtual, "%s=%s: the hashed node has the labels %v", key, value, hidden.Nodes[0].Labels)
	}
}
