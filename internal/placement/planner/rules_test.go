package planner_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func planEvacuation(t *testing.T, c *placementtest.Cluster, o planner.Options) *planner.Evacuation {
	t.Helper()
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	e, err := planner.PlanEvacuation(s, "first", planner.LeastDisruption, o)
	must.NoError(t, err)
	return e
}

// TestRulesBlockNodeRemoval has each case for a node that must stay, and a similar case for a node that need not.
func TestRulesBlockNodeRemoval(t *testing.T) {
	annotate := func(key, value string) func(*placementtest.Cluster, *planner.Options) {
		return func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Annotations = map[string]string{key: value}
		}
	}
	taint := func(key string) func(*placementtest.Cluster, *planner.Options) {
		return func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	volume := func(v corev1.VolumeSource) func(*placementtest.Cluster, *planner.Options) {
		return func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: v}}
		}
	}
	one := 1
	cases := map[string]struct {
		change func(*placementtest.Cluster, *planner.Options)
		rule   string // empty if the node can be removed
	}{
		"an ordinary pod moves":                          {func(*placementtest.Cluster, *planner.Options) {}, ""},
		"cluster-autoscaler is removing the node":        {taint("ToBeDeletedByClusterAutoscaler"), "being-removed"},
		"Karpenter is removing the node":                 {taint("karpenter.sh/disrupted"), "being-removed"},
		"AKS is removing the node":                       {taint("remediator.kubernetes.azure.com/unschedulable"), "being-removed"},
		"AKS is removing the node, with a longer key":    {taint("node.remediator.kubernetes.azure.com/unschedulable"), "being-removed"},
		"AKS is removing the node, with the old key":     {taint("remediator.aks.microsoft.com/unschedulable"), "being-removed"},
		"another taint does not mean removal":            {taint("spot"), ""},
		"the pod is not safe to evict":                   {annotate("cluster-autoscaler.kubernetes.io/safe-to-evict", "False"), "protected"},
		"the pod must not be disrupted":                  {annotate("karpenter.sh/do-not-disrupt", "true"), "protected"},
		"the pod must not be evicted":                    {annotate("slipway.dev/do-not-evict", "true"), "protected"},
		"an annotation with false does not protect":      {annotate("karpenter.sh/do-not-disrupt", "false"), ""},
		"the pod must not be disrupted for another hour": {annotate("karpenter.sh/do-not-disrupt", "2h"), "protected"},
		"the protection of the pod has expired":          {annotate("karpenter.sh/do-not-disrupt", "30m"), ""},
		"the pod has an emptyDir":                        {volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), "local-storage"},
		"the pod has a hostPath":                         {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), "host-path"},
		"an emptyDir in memory does not block": {volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory,
		}}), ""},
		"local storage may be deleted": {func(c *placementtest.Cluster, o *planner.Options) {
			volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})(c, o)
			o.PodRules = o.PodRules.WithAction(podrules.RuleLocalStorage, podrules.Evict)
		}, ""},
		"nothing would recreate the pod": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].OwnerReferences = nil
		}, "unmanaged"},
		"an owner without the controller flag is no controller": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].OwnerReferences[0].Controller = nil
		}, "unmanaged"},
		"a pod of a DaemonSet stays": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].OwnerReferences[0].Kind = "DaemonSet"
			c.Nodes[1].Spec.Unschedulable = true
		}, ""},
		"a static pod stays": {func(c *placementtest.Cluster, o *planner.Options) {
			annotate(corev1.MirrorPodAnnotationKey, "x")(c, o)
			c.Nodes[1].Spec.Unschedulable = true
		}, ""},
		"the node is protected, in any case of true": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/scale-down-disabled": "True"}
		}, "protected"},
		"the pool protects the node": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{"cloudpool.slipway.dev/membership-status": `{"active":true,"evictable":false}`}
		}, "protected"},
		"the node was detached from its pool": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{"cloudpool.slipway.dev/detached": "true"}
		}, "protected"},
		"the protection of the pool is ignored": {func(c *placementtest.Cluster, o *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{"cloudpool.slipway.dev/membership-status": `{"active":true,"evictable":false}`}
			o.IgnoredAnnotations = map[string]string{"first": "cloudpool.slipway.dev/membership-status"}
		}, ""},
		"a second annotation still protects": {func(c *placementtest.Cluster, o *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{
				"cloudpool.slipway.dev/membership-status": `{"active":true,"evictable":false}`, "slipway.dev/do-not-evict": "true",
			}
			o.IgnoredAnnotations = map[string]string{"first": "cloudpool.slipway.dev/membership-status"}
		}, "protected"},
		"the node is protected only from cluster-autoscaler": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Annotations = map[string]string{
				"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
				"nodegroup.slipway.dev/holds-off-cluster-autoscaler":   "true",
			}
			c.Nodes[1].Spec.Unschedulable = true
		}, "no-room"},
		"the node runs an API server": {func(c *placementtest.Cluster, _ *planner.Options) {
			p := placementtest.NewPod("kube-apiserver", 0, "first", 100, 100)
			p.Namespace, p.Labels = "kube-system", map[string]string{"component": "kube-apiserver"}
			c.Pods = append(c.Pods, p)
		}, "control-plane"},
		"the node is labelled as control plane": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[0].Labels["node-role.kubernetes.io/control-plane"] = ""
		}, "control-plane"},
		"a pod of kube-system moves like any other": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Namespace = "kube-system"
			c.Nodes[1].Spec.Unschedulable = true
		}, "no-room"},
		"the instance is protected": {func(_ *placementtest.Cluster, o *planner.Options) {
			o.ExcludedNodes = map[string]string{"first": "machine is not evictable"}
		}, "excluded"},
		"the group is at its minimum": {func(_ *placementtest.Cluster, o *planner.Options) {
			o.Groups = []planner.Group{{Name: "g", Nodes: []string{"first", "second"}, MinSize: 2}}
		}, "group-minimum"},
		"a node that another tool removes does not count": {func(c *placementtest.Cluster, o *planner.Options) {
			third := placementtest.NewNode("third", "zone-a", 4, 16, 10)
			third.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
			c.Nodes = append(c.Nodes, third)
			o.Groups = []planner.Group{{Name: "g", Nodes: []string{"first", "second", "third"}, MinSize: 2}}
		}, "group-minimum"},
		"the zone is at its minimum": {func(_ *placementtest.Cluster, o *planner.Options) {
			o.Groups = []planner.Group{{Name: "g", Nodes: []string{"first", "second"}, MinPerZone: 2}}
		}, "zone-minimum"},
		"the group is at maxUnavailable": {func(c *placementtest.Cluster, o *planner.Options) {
			c.Nodes = append(c.Nodes, placementtest.NewNode("third", "zone-a", 4, 16, 10))
			c.Nodes[1].Spec.Unschedulable = true
			o.Groups = []planner.Group{{Name: "g", Nodes: []string{"first", "second"}, MaxUnavailable: &one}}
		}, "group-budget"},
		"the other node is not ready": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
		}, "no-room"},
		"a generic ephemeral volume is undecidable": {volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), "undecidable"},
		"a resource claim is undecidable": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		}, "no-room"},
		"nothing is allocatable elsewhere": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Nodes[1].Status.Allocatable = nil
		}, "no-room"},
		"a negative request counts as zero": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("-3")}
		}, ""},
		"a malformed selector is refused": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				TopologyKey: "zone", MaxSkew: 1,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}},
				},
			}}
		}, "no-room"},
		"an unknown operator of node affinity matches nothing": {func(c *placementtest.Cluster, _ *planner.Options) {
			c.Pods[0].Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Near"}},
				}}},
			}}
		}, "no-room"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster, o := placementtest.NewTwoNodeCluster(), planner.Options{Now: now}
			cluster.Pods[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
			c.change(cluster, &o)
			e := planEvacuation(t, cluster, o)
			var rules []string
			for _, r := range e.Refusals {
				rules = append(rules, r.Rule)
				check.Not(t, r.Message == "" || strings.Contains(r.String(), "%!"), "refusal without text: %+v", r)
			}
			if got := strings.Join(rules, " "); got != c.rule {
				t.Errorf("refused by %q (%v), want %q", got, e.Refusals, c.rule)
			}
		})
	}
}

func TestPDBsAreAppliedLikeEvictionAPI(t *testing.T) {
	everything, web := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	always := policyv1.AlwaysAllow
	budget := func(name string, selector *metav1.LabelSelector, change func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
		b := placementtest.NewPDB(name, 0)
		b.Spec.Selector = selector
		if change != nil {
			change(b)
		}
		return b
	}
	cases := map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		change  func(*corev1.Pod)
		refused string
	}{
		"no disruption is left":                          {[]*policyv1.PodDisruptionBudget{budget("b", web, nil)}, nil, "allows 0 disruptions, 1 needed"},
		"one disruption is left":                         {[]*policyv1.PodDisruptionBudget{budget("b", web, func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 })}, nil, ""},
		"an empty selector means every pod":              {[]*policyv1.PodDisruptionBudget{budget("b", everything, nil)}, nil, "allows 0 disruptions"},
		"a missing selector means none":                  {[]*policyv1.PodDisruptionBudget{budget("b", nil, nil)}, nil, ""},
		"a malformed selector means none":                {[]*policyv1.PodDisruptionBudget{budget("b", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}, nil)}, nil, ""},
		"a budget of another namespace is ignored":       {[]*policyv1.PodDisruptionBudget{budget("b", everything, func(b *policyv1.PodDisruptionBudget) { b.Namespace = "other" })}, nil, ""},
		"two budgets are an error":                       {[]*policyv1.PodDisruptionBudget{budget("a", web, nil), budget("b", everything, nil)}, nil, "2 disruption budgets"},
		"an old status blocks":                           {[]*policyv1.PodDisruptionBudget{budget("b", web, func(b *policyv1.PodDisruptionBudget) { b.Generation, b.Status.DisruptionsAllowed = 2, 5 })}, nil, "not up to date"},
		"a pod that has not started is free":             {[]*policyv1.PodDisruptionBudget{budget("b", web, nil)}, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, ""},
		"an unhealthy pod is free if others are healthy": {[]*policyv1.PodDisruptionBudget{budget("b", web, nil)}, func(p *corev1.Pod) { p.Status.Conditions = nil }, ""},
		"an unhealthy pod is blocked if no pod is healthy": {
			[]*policyv1.PodDisruptionBudget{budget("b", web, func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 0 })},
			func(p *corev1.Pod) { p.Status.Conditions = nil }, "allows 0 disruptions",
		},
		"an unhealthy pod is free with AlwaysAllow": {[]*policyv1.PodDisruptionBudget{budget("b", web, func(b *policyv1.PodDisruptionBudget) {
			b.Status.CurrentHealthy, b.Spec.UnhealthyPodEvictionPolicy = 0, &always
		})}, func(p *corev1.Pod) { p.Status.Conditions = nil }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := placementtest.NewTwoNodeCluster()
			cluster.PDBs = c.budgets
			if c.change != nil {
				c.change(cluster.Pods[0])
			}
			e := planEvacuation(t, cluster, planner.Options{})
			switch {
			case c.refused == "" && !e.IsFeasible():
				t.Errorf("refused: %v", e.Refusals)
			case c.refused != "" && (len(e.Refusals) != 1 || !strings.Contains(e.Refusals[0].Message, c.refused)):
				t.Errorf("refused by %v, want %q", e.Refusals, c.refused)
			}
		})
	}
}

// TestPodsMovedToANodeDoNotKeepIt moves a pod to the second node in a fork, as when its node is retiring.
func TestPodsMovedToANodeDoNotKeepIt(t *testing.T) {
	for name, change := range map[string]func(*placementtest.Cluster){
		"its budget allows nothing": func(c *placementtest.Cluster) {
			c.PDBs = []*policyv1.PodDisruptionBudget{placementtest.NewPDB("web", 0)}
		},
		"it is protected": func(c *placementtest.Cluster) {
			c.Pods[0].Annotations = map[string]string{"slipway.dev/do-not-evict": "true"}
		},
		"nothing would recreate it": func(c *placementtest.Cluster) { c.Pods[0].OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := placementtest.NewTwoNodeCluster()
			c.Nodes = append(c.Nodes, placementtest.NewNode("third", "zone-a", 4, 16, 10))
			change(c)
			s, err := c.BuildSnapshot()
			must.NoError(t, err)
			fork := s.Fork()
			defer fork.Rollback()
			must.NoError(t, fork.RemoveNamedNodeAndPods("first"))
			must.NoError(t, fork.MovePod(placement.PodKey{Namespace: "default", Name: "web-0"}, "second"))
			for _, r := range planner.RankNodes(s, planner.LeastDisruption, planner.Options{}) {
				check.Not(t, !r.Removable, "%s cannot be removed: %s, pod %s", r.Node, r.Rule, r.Pod)
			}
			for _, node := range []string{"second", "third"} {
				o := planner.Options{ExcludedNodes: map[string]string{"second": "stays", "third": "stays"}}
				delete(o.ExcludedNodes, node)
				selection, err := planner.SelectVictims(s, 1, planner.LeastDisruption, o)
				must.NoError(t, err)
				check.Is(t, 1, len(selection.Victims), node, selection.Skipped)
				if node == "second" { // I9: the pod does not vanish with it
					want := []planner.Move{{Pod: placement.PodKey{Namespace: "default", Name: "web-0"}, To: "third"}}
					check.Equal(t, want, selection.Victims[0].Moves)
				}
			}
		})
	}
}

func TestI9TwoNodesAreNotRemovedForEachOther(t *testing.T) {
	c := placementtest.NewTwoNodeCluster()
	c.Pods = append(c.Pods, placementtest.NewPod("web", 1, "second", 500, 512))
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	selection, err := planner.SelectVictims(s, 2, planner.LeastDisruption, planner.Options{})
	if err != nil || len(selection.Victims) != 1 {
		t.Fatalf("%d victims, want 1 of two nodes that need each other; %v", len(selection.Victims), err)
	}
}

func TestPDBIsSharedByAllVictims(t *testing.T) {
	c := &placementtest.Cluster{}
	c.PDBs = []*policyv1.PodDisruptionBudget{placementtest.NewPDB("web", 2)}
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		c.Nodes = append(c.Nodes, placementtest.NewNode(name, "zone-a", 4, 16, 10))
		c.Pods = append(c.Pods, placementtest.NewPod("web", i, name, 100, 128))
	}
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	selection, err := planner.SelectVictims(s, 5, planner.LeastDisruption, planner.Options{})
	if err != nil || len(selection.Victims) != 2 {
		t.Fatalf("%d victims, want 2 with a budget of 2; %v", len(selection.Victims), err)
	}
	for _, p := range selection.Skipped {
		check.Not(t, p.Refusals[0].Rule != "disruption-budget", "%s rejected by %s, want disruption-budget", p.Node, p.Refusals[0])
	}
}

func TestPoliciesOrderTheVictims(t *testing.T) {
	c := &placementtest.Cluster{}
	for i, name := range []string{"many-small", "one-large", "one-precious", "rest"} {
		n := placementtest.NewNode(name, "zone-a", 16, 64, 50)
		n.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(-i) * time.Hour))
		c.Nodes = append(c.Nodes, n)
	}
	for i := range 3 {
		c.Pods = append(c.Pods, placementtest.NewPod("small", i, "many-small", 10, 10))
	}
	c.Pods = append(c.Pods, placementtest.NewPod("large", 0, "one-large", 4000, 4096))
	precious := placementtest.NewPod("precious", 0, "one-precious", 1000, 1024)
	priority := int32(1_000_000)
	precious.Spec.Priority = &priority
	c.Pods = append(c.Pods, precious, placementtest.NewPod("huge", 0, "rest", 8000, 8192), placementtest.NewPod("huge", 1, "rest", 500, 512),
		placementtest.NewPod("huge", 2, "rest", 500, 512), placementtest.NewPod("huge", 3, "rest", 500, 512))
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	for policy, want := range map[planner.Policy]string{
		planner.LeastDisruption: "one-large many-small", planner.LeastPods: "one-precious one-large",
		planner.LeastLoaded: "many-small one-precious", planner.Oldest: "rest one-precious",
	} {
		selection, err := planner.SelectVictims(s, 2, policy, planner.Options{})
		must.NoError(t, err)
		var names []string
		for _, v := range selection.Victims {
			names = append(names, v.Node)
		}
		check.Is(t, want, strings.Join(names, " "), policy)
	}
	check.ErrorContains(t, check.Err(planner.ParsePolicy("Newest")), "LeastDisruption")
}

func TestNodesWithoutPodGroupsAreRemovedFirst(t *testing.T) {
	c := &placementtest.Cluster{}
	for _, name := range []string{"job", "replica", "plain", "rest"} {
		c.Nodes = append(c.Nodes, placementtest.NewNode(name, "zone-a", 16, 64, 50))
	}
	label := func(p *corev1.Pod, pairs ...string) *corev1.Pod {
		p.Labels = maps.Clone(p.Labels)
		for i := 0; i < len(pairs); i += 2 {
			p.Labels[pairs[i]] = pairs[i+1]
		}
		return p
	}
	job := []string{"jobset.sigs.k8s.io/jobset-name", "train", "jobset.sigs.k8s.io/replicatedjob-name", "workers", "jobset.sigs.k8s.io/job-index", "0"}
	for i := range 2 {
		c.Pods = append(c.Pods, label(placementtest.NewPod("job", i, "job", 10, 10), job...))
	}
	c.Pods = append(c.Pods, label(placementtest.NewPod("llm", 0, "replica", 10, 10),
		"leaderworkerset.sigs.k8s.io/name", "llm", "leaderworkerset.sigs.k8s.io/group-key", "k"))
	for i := range 5 {
		c.Pods = append(c.Pods, placementtest.NewPod("web", i, "plain", 10, 10))
	}
	finished := label(placementtest.NewPod("done", 0, "plain", 10, 10), job...)
	finished.Status.Phase = corev1.PodSucceeded
	lone := placementtest.NewPod("lone", 0, "rest", 10, 10)
	lone.OwnerReferences = nil // keeps its node
	c.Pods = append(c.Pods, finished, lone)
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	for _, policy := range planner.Policies() {
		var ranked []string
		for _, r := range planner.RankNodes(s, policy, planner.Options{}) {
			if r.Removable {
				ranked = append(ranked, fmt.Sprint(r.Node, r.Groups))
			}
		}
		check.Not(t, len(ranked) != 3 || ranked[0] != "plain0", "%s: ranks %v, want plain first", policy, ranked)
		selection, err := planner.SelectVictims(s, 1, policy, planner.Options{})
		must.NoError(t, err)
		check.Not(t, len(selection.Victims) != 1 || selection.Victims[0].Node != "plain" || selection.Victims[0].Groups != nil, "%s: %+v", policy, selection.Victims)
	}
	for node, want := range map[string]planner.PodGroup{
		"job": {Name: "default/JobSet/train/workers/0", Pods: 2}, "replica": {Name: "default/LeaderWorkerSet/llm/k", Pods: 1},
	} {
		e, err := planner.PlanEvacuation(s, node, planner.LeastDisruption, planner.Options{})
		must.NoError(t, err)
		check.Equal(t, []planner.PodGroup{want}, e.Groups)
	}
}

func TestPodGroupsWithModeSingleMakeNoNodeWorse(t *testing.T) {
	c := &placementtest.Cluster{}
	modes := map[string]*schedulingv1beta1.DisruptionMode{
		"all": {All: &schedulingv1beta1.AllDisruptionMode{}}, "default": nil, "later": {}, "single": {Single: &schedulingv1beta1.SingleDisruptionMode{}},
	}
	for i, name := range []string{"all", "default", "later", "missing", "single"} {
		c.Nodes = append(c.Nodes, placementtest.NewNode(name, "zone-a", 16, 64, 50))
		pod := placementtest.NewPod(name, i, name, 10, 10)
		pod.OwnerReferences = nil // where it would be scheduled is not known
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		c.Pods = append(c.Pods, pod)
		if mode, exists := modes[name]; exists {
			c.PodGroups = append(c.PodGroups, &schedulingv1beta1.PodGroup{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}, Spec: schedulingv1beta1.PodGroupSpec{DisruptionMode: mode},
			})
		}
	}
	worker := placementtest.NewPod("worker", 0, "single", 10, 10)
	worker.OwnerReferences = nil
	worker.Labels = map[string]string{"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-key": "k"}
	worker.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("single")}
	evictUnmanaged := planner.Options{PodRules: podrules.VoluntaryPolicy().WithAction(podrules.RuleUnmanaged, podrules.Evict)}
	rankNodes := func(s *snapshot.Snapshot) string {
		t.Helper()
		var ranked []string
		for _, r := range planner.RankNodes(s, planner.LeastPods, evictUnmanaged) {
			check.Is(t, true, r.Removable, r)
			ranked = append(ranked, fmt.Sprint(r.Node, r.Groups))
		}
		return strings.Join(ranked, " ")
	}
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	check.Is(t, "default0 single0 all1 later1 missing1", rankNodes(s))
	must.NoError(t, s.SetPod(worker)) // its labels count without the PodGroup
	check.Is(t, "default0 all1 later1 missing1 single1", rankNodes(s))
	e, err := planner.PlanEvacuation(s, "single", planner.LeastPods, evictUnmanaged)
	must.NoError(t, err)
	check.Equal(t, []planner.PodGroup{{Name: "default/LeaderWorkerSet/llm/k", Pods: 1}}, e.Groups)
	must.NoError(t, s.PodGroups.Delete(placement.PodKey{Namespace: "default", Name: "default"}))
	check.Is(t, "all1 default1 later1 missing1 single1", rankNodes(s))
}

func TestInvalidRequestsAreRejected(t *testing.T) {
	s, err := placementtest.NewTwoNodeCluster().BuildSnapshot()
	must.NoError(t, err)
	check.ErrorContains(t, check.Err(planner.SelectVictims(s, -1, planner.Oldest, planner.Options{})))
	check.ErrorContains(t, check.Err(planner.PlanEvacuation(s, "nowhere", planner.Oldest, planner.Options{})))
	check.ErrorContains(t, check.Err(planner.PackPods(s, []placement.PodKey{{Namespace: "default", Name: "web-0"}}, nil, planner.LeastCost)))
	check.ErrorContains(t, check.Err(planner.PackPods(s, nil, []planner.Template{{Name: "empty"}}, planner.LeastCost)))
	for _, err := range []error{
		s.SetNode(nil), s.SetPod(nil), s.SetNode(&corev1.Node{}), s.SetPod(&corev1.Pod{}), s.SetNamespace(nil), s.PodGroups.Set(nil),
		s.Storage.SetPersistentVolumeClaim(nil), s.Storage.SetPersistentVolume(nil), s.Storage.SetStorageClass(nil), s.Storage.SetCSINode(nil), s.Storage.SetCSIDriver(nil),
		s.Storage.SetVolumeAttachment(nil), s.Storage.SetDeviceClass(nil), s.PDBs.Set(nil),
	} {
		check.Not(t, err == nil, "a nil or nameless object is accepted")
	}
	fork := s.Fork()
	if err := s.SetPod(placementtest.NewPod("late", 0, "first", 1, 1)); !errors.Is(err, snapshot.ErrForked) {
		t.Errorf("event in a fork: %v", err)
	}
	for _, err := range []error{
		fork.MovePod(placement.PodKey{Namespace: "default", Name: "web-0"}, "nowhere"), fork.MovePod(placement.PodKey{Name: "nobody"}, "second"),
		fork.RemoveNamedNodeAndPods("nowhere"), fork.AddNewNode(nil), fork.AddNewNode(placementtest.NewNode("first", "zone-a", 4, 16, 10)),
	} {
		check.Not(t, err == nil, "a change with an unknown or duplicate object is accepted")
	}
	fork.Rollback()
}

func TestPackUsesFreeRoomAndListsUnschedulablePods(t *testing.T) {
	c := placementtest.NewTwoNodeCluster()
	c.Pods = append(c.Pods, placementtest.NewPod("fits", 0, "", 1000, 1024), placementtest.NewPod("large", 0, "", 9000, 1024),
		placementtest.NewPod("huge", 0, "", 99000, 1024))
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	packing, err := planner.PackPods(s, nil, []planner.Template{placementtest.NewTemplate()}, planner.LeastCost)
	must.NoError(t, err)
	if len(packing.Instances) != 1 || len(packing.Instances[0].Pods) != 1 || packing.Instances[0].Pods[0].Name != "large-0" || packing.Cost != 1 {
		t.Errorf("instances %+v", packing.Instances)
	}
	if len(packing.Unschedulable) != 1 || packing.Unschedulable[0].Reasons["standard"] != "blocked: insufficient cpu" {
		t.Errorf("unschedulable pods %+v", packing.Unschedulable)
	}
}

// TestOnlyThePendingPodHasItsEphemeralClaim has a pod with a generic ephemeral volume. Its claim exists, but not the claim of the
// pod that would replace it.
func TestOnlyThePendingPodHasItsEphemeralClaim(t *testing.T) {
	newCluster := func(node string, cpu int64) *placementtest.Cluster {
		c, wait, class, yes := placementtest.NewTwoNodeCluster(), storagev1.VolumeBindingWaitForFirstConsumer, "disk", true
		p := placementtest.NewPod("scratch", 0, node, cpu, 128)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name + "-data",
			OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		}}
		claim.Spec.StorageClassName = &class
		c.Pods, c.Claims = []*corev1.Pod{p}, []*corev1.PersistentVolumeClaim{claim}
		c.StorageClasses = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "csi.example.com", VolumeBindingMode: &wait}}
		return c
	}
	key := placement.PodKey{Namespace: "default", Name: "scratch-0"}
	pack := func(cpu int64) *planner.Packing {
		s, err := newCluster("", cpu).BuildSnapshot()
		must.NoError(t, err)
		packing, err := planner.PackPods(s, nil, []planner.Template{placementtest.NewTemplate()}, planner.LeastWaste)
		must.NoError(t, err)
		return packing
	}
	check.Equal(t, []planner.Move{{Pod: key, To: "first"}}, pack(1000).Moves)
	check.Len(t, 1, pack(8000).Instances)
	for node, want := range map[string]int{"": 0, "first": 1} {
		s, err := newCluster(node, 1000).BuildSnapshot()
		must.NoError(t, err)
		fork := s.Fork()
		left, err := planner.PlaceLikeScheduler(s, fork, []placement.PodKey{key})
		must.NoError(t, err)
		check.Len(t, want, left)
		fork.Rollback()
	}
	e := planEvacuation(t, newCluster("first", 1000), planner.Options{})
	check.Not(t, len(e.Refusals) != 1 || e.Refusals[0].Rule != "undecidable", "refused by %v", e.Refusals)
}

func TestPackRespectsMaxAndPrefersCheapTemplates(t *testing.T) {
	c := placementtest.NewPendingPodCluster(200)
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	two := 2
	cheap, dear := placementtest.NewTemplate(), placementtest.NewTemplate()
	cheap.Name, cheap.MaxLaunches, dear.Name, dear.Cost = "cheap", &two, "dear", 3
	packing, err := planner.PackPods(s, nil, []planner.Template{dear, cheap}, planner.LeastCost)
	must.NoError(t, err)
	count := map[string]int{}
	for _, m := range packing.Instances {
		count[m.Template]++
	}
	if count["cheap"] != 2 || count["dear"] != 2 || len(packing.Unschedulable) != 0 {
		t.Errorf("%v instances, %d unschedulable pods", count, len(packing.Unschedulable))
	}
}

// The tests of this file are named after faults of kubeaware-cloudpool-proxy. Package kubeaware has the full list.

// requireNodeAffinity sets the required node affinity of a pod to these terms.
func requireNodeAffinity(p *corev1.Pod, terms ...corev1.NodeSelectorTerm) {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

func newInRequirement(key string, values ...string) []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
}

func TestFaultAllNodeAffinityTermsMustMatch(t *testing.T) {
	elsewhere := corev1.NodeSelectorTerm{MatchExpressions: newInRequirement(corev1.LabelTopologyZone, "zone-z")}
	here := corev1.NodeSelectorTerm{MatchExpressions: newInRequirement(corev1.LabelTopologyZone, "zone-a")}
	for name, tt := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		goes  bool
	}{
		"the first of two terms":    {[]corev1.NodeSelectorTerm{here, elsewhere}, true},
		"the second of two terms":   {[]corev1.NodeSelectorTerm{elsewhere, here}, true},
		"no term of two":            {[]corev1.NodeSelectorTerm{elsewhere, elsewhere}, false},
		"one half of a term":        {[]corev1.NodeSelectorTerm{{MatchExpressions: append(newInRequirement(corev1.LabelTopologyZone, "zone-a"), newInRequirement("disk", "ssd")...)}}, false},
		"an empty term and another": {[]corev1.NodeSelectorTerm{{}, here}, true},
	} {
		c := placementtest.NewTwoNodeCluster()
		requireNodeAffinity(c.Pods[0], tt.terms...)
		e := planEvacuation(t, c, planner.Options{})
		check.Not(t, e.IsFeasible() != tt.goes, "%s matches: feasible is %t (%v), want %t", name, e.IsFeasible(), e.Refusals, tt.goes)
	}
}

// TestFaultMatchFieldsOfNodeAffinityAreUnknown has pods as a DaemonSet creates them since Kubernetes 1.12. With the
// fault, a node with such a pod could never be removed.
func TestFaultMatchFieldsOfNodeAffinityAreUnknown(t *testing.T) {
	to := func(node string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: newInRequirement("metadata.name", node)}
	}
	c := placementtest.NewTwoNodeCluster()
	daemon := placementtest.NewPod("daemon", 0, "first", 100, 128)
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	requireNodeAffinity(daemon, to("first"))
	c.Pods = append(c.Pods, daemon)
	if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() || len(e.DeletedPods) != 1 || len(e.Moves) != 1 {
		t.Errorf("the DaemonSet pod blocks its node: %v; %d pods move, %d stay", e.Refusals, len(e.Moves), len(e.DeletedPods))
	}
	for node, goes := range map[string]bool{"second": true, "third": false} { // the fields are evaluated
		c := placementtest.NewTwoNodeCluster()
		requireNodeAffinity(c.Pods[0], to(node))
		if e := planEvacuation(t, c, planner.Options{}); e.IsFeasible() != goes {
			t.Errorf("a pod that requires node %s: feasible is %t (%v), want %t", node, e.IsFeasible(), e.Refusals, goes)
		}
	}
}

func TestFaultFinishedPodsCountAsLoad(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		c := placementtest.NewTwoNodeCluster()
		c.Nodes = append(c.Nodes, placementtest.NewNode("third", "zone-a", 4, 16, 10))
		// Finished pods fill the only free node, and also the node with the least work.
		c.Pods = append(c.Pods, placementtest.NewPod("busy", 0, "third", 3900, 15<<10))
		over := placementtest.NewPod("job", 0, "second", 4000, 16<<10)
		over.Status.Phase = phase
		c.Pods = append(c.Pods, over)
		if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() {
			t.Errorf("%s: finished pods use capacity: %v", phase, e.Refusals)
		}
		s, err := c.BuildSnapshot()
		must.NoError(t, err)
		chosen, err := planner.SelectVictims(s, 1, planner.LeastLoaded, planner.Options{})
		if err != nil || len(chosen.Victims) != 1 || chosen.Victims[0].Node != "second" || chosen.Victims[0].Cost != 0 {
			t.Errorf("%s: %+v, %v; want the node without running pods, at cost 0", phase, chosen.Victims, err)
		}
		// A finished pod is not recreated, and needs no controller.
		over.Spec.NodeName, over.OwnerReferences = "first", nil
		if e := planEvacuation(t, c, planner.Options{}); !e.IsFeasible() || len(e.Moves) != 1 {
			t.Errorf("%s: a finished pod blocks its node: %v, %d moves", phase, e.Refusals, len(e.Moves))
		}
	}
}
