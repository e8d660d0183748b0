package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func crdsOf(wanted []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{}
	for _, w := range wanted {
		have := w.DeepCopy()
		have.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
		all[w.GetName()] = have
	}
	return all
}

// change is a cluster with something changed.
func change(f *Facts, with func(*Facts)) *Facts {
	with(f)
	return f
}

func forbidden(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
}

// budgets is a cluster with these, and two replicas of web.
func budgets(all ...*policyv1.PodDisruptionBudget) *Facts {
	return change(cluster(), func(f *Facts) {
		f.Budgets = all
		f.Pods = []*corev1.Pod{replica("web-1", "web"), replica("web-2", "web")}
	})
}

var (
	none, one, two = new(intstr.FromInt32(0)), new(intstr.FromInt32(1)), new(intstr.FromInt32(2))
	noPercent, all = new(intstr.FromString("0%")), new(intstr.FromString("100%"))
)

func daemon(name, image string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: appsv1.DaemonSetSpec{Template: template(image)},
	}
}

// written is the Lease of a node that the API server saw written at noon, with this time in it.
func written(renewed time.Time) *coordinationv1.Lease {
	l := lease("node-a", "node-a", renewed)
	l.ManagedFields = []metav1.ManagedFieldsEntry{{
		Time: &metav1.Time{Time: noon}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`),
	}}
	return l
}

func clocks(n *corev1.Node, l *coordinationv1.Lease) *Facts {
	return change(cluster(), func(f *Facts) {
		f.Nodes, f.NodeLeases = []*corev1.Node{n}, map[string]*coordinationv1.Lease{"node-a": l}
	})
}

func access(p Part, rights []Right, but ...string) []Access {
	var all []Access
	for _, r := range rights {
		all = append(all, Access{p, r, !slices.Contains(but, r.String())})
	}
	return all
}

func group(name string, labels map[string]string, accepted metav1.ConditionStatus, message string) v1alpha1.NodeGroup {
	g := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.NodeSelector.MatchLabels = labels
	if accepted != "" {
		g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: accepted, Message: message}}
	}
	return g
}

// standIn is the manager of an installation as one of the stand-ins, with its environment.
func standIn(f *Facts, replicas int32, env map[string]string, command ...string) *Part {
	d := deployment("kube-system", command[0], replicas)
	d.Spec.Template, d.Status.AvailableReplicas = template("example.com/slipway:v1", command...), replicas
	for name, value := range env {
		c := &d.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	f.Deployments, f.LeaderLeases = []*appsv1.Deployment{d}, nil
	return &f.installed(Manager)[0]
}

// lacking is an installation of a stand-in whose account has all rights but some.
func lacking(env map[string]string, command []string, but ...string) *Facts {
	return change(installed(), func(f *Facts) {
		p := standIn(f, 1, env, command...)
		for _, r := range needed(p) {
			r = r.in(p.home())
			f.Access = append(f.Access, Access{*p, r, !slices.Contains(but, r.String())})
		}
	})
}

// found is one case of a rule: the findings that it is to have, each as severity, object and a part of the message.
type found struct {
	facts *Facts
	want  []string
}

func cases() map[string]map[string]found {
	linux := map[string]string{"kubernetes.io/os": "linux"}
	return map[string]map[string]found{
		"caller-rights": {
			"a right to read is missing": {
				change(cluster(), func(f *Facts) { f.Unread[readNodes] = forbidden("nodes") }),
				[]string{"problem the cluster: you may not list nodes: "},
			},
			"a right of another command is missing": {
				change(cluster(), func(f *Facts) { f.Caller = []Access{{Right: viewerRights()[0]}} }),
				[]string{"note the cluster: you may not list namespaces: slipway plan"},
			},
			"every right is there": {change(cluster(), func(f *Facts) { f.Caller = access(Part{}, viewerRights(), "") }), nil},
		},
		"unreadable": {
			"the API server fails": {
				change(cluster(), func(f *Facts) { f.Unread[readPods] = errors.New("timeout") }),
				[]string{"problem the cluster: the pods could not be read: timeout"},
			},
			"only a right is missing": {change(cluster(), func(f *Facts) { f.Unread[readPods] = forbidden("pods") }), nil},
		},
		"installation": {
			"nothing is there":         {cluster(), []string{"note the cluster: no part of Slipway"}},
			"everything is there":      {installed(), nil},
			"a manager without agents": {change(installed(), func(f *Facts) { f.DaemonSets = nil }), []string{"warning the cluster: there is a manager and no agent"}},
			"two installations of the agent": {
				change(installed(), func(f *Facts) { f.DaemonSets = append(f.DaemonSets, daemon("mine", "slipway-agent")) }),
				[]string{"warning the cluster: there are agents in 2 DaemonSets"},
			},
		},
		"part-rights": {
			"all are there": {change(installed(), func(f *Facts) { f.Access = access(f.installed(Agent)[0], agentRights(), "") }), nil},
			"one is missing": {
				change(installed(), func(f *Facts) { f.Access = access(f.installed(Agent)[0], agentRights(), "create pods/eviction") }),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not create pods/eviction: to drain"},
			},
			"one that some leave out is missing": {
				change(installed(), func(f *Facts) { f.Access = access(f.installed(Agent)[0], agentRights(), "delete pods") }),
				[]string{"note ServiceAccount slipway/slipway-agent: the agent may not delete pods: "},
			},
			"one for a flag that is not given is missing": {
				change(installed(), func(f *Facts) {
					f.Access = access(f.installed(Agent)[0], agentRights(), "get persistentvolumeclaims")
				}), nil,
			},
			"one for a flag that is given is missing": {
				change(installed(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Containers[0].Args = []string{"--wait-for-detach"}
					f.Access = access(f.installed(Agent)[0], agentRights(), "get persistentvolumeclaims")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not get persistentvolumeclaims: --wait-for-detach"},
			},
			"a stand-in's own Lease": {
				lacking(nil, []string{"openstack-autoscaler", "-config", "/c"},
					"update leases.coordination.k8s.io slipway-openstack-autoscaler in namespace kube-system"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not update leases.coordination.k8s.io " +
					"slipway-openstack-autoscaler in namespace kube-system: leader election"},
			},
			"the Lease of a pool": {
				lacking(map[string]string{"FOCUS_NODEPOOL": "ci"}, []string{"vmss-pod-watcher", "--leader-elect"},
					"get leases.coordination.k8s.io slipway-vmss-pod-watcher-ci in namespace kube-system"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not get leases.coordination.k8s.io " +
					"slipway-vmss-pod-watcher-ci in namespace kube-system: leader election"},
			},
			"its Lease in the namespace that is given": {
				lacking(map[string]string{"POD_NAMESPACE": "tools"}, []string{"openstack-autoscaler"},
					"create leases.coordination.k8s.io in namespace tools"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not create leases.coordination.k8s.io in namespace tools"},
			},
			"no Lease where nobody is competed with": {
				lacking(nil, []string{"vmss-pod-watcher"}, "create leases.coordination.k8s.io in namespace kube-system"), nil,
			},
			"definitions that are installed by default": {
				lacking(nil, []string{"vmss-pod-watcher"}, "create customresourcedefinitions.apiextensions.k8s.io"),
				[]string{"note ServiceAccount kube-system/default: the manager may not create customresourcedefinitions.apiextensions.k8s.io: "},
			},
			"definitions that somebody asks to install": {
				lacking(nil, []string{"vmss-pod-watcher", "--install-crds"}, "create customresourcedefinitions.apiextensions.k8s.io"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not create customresourcedefinitions.apiextensions.k8s.io: "},
			},
			"definitions that are not to be installed": {
				lacking(nil, []string{"vmss-pod-watcher", "--install-crds=false"}, "create customresourcedefinitions.apiextensions.k8s.io"), nil,
			},
			"turns under the old name": {
				change(installed(), func(f *Facts) {
					c := &f.DaemonSets[0].Spec.Template.Spec.Containers[0]
					c.Image, c.Args = "slipway", []string{"aks-node-termination-handler", "-maxConcurrentDrains=2"}
					f.Access = access(f.installed(Agent)[0], agentRights(), "list leases.coordination.k8s.io in namespace .")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not list leases"},
			},
			"turns by the environment": {
				change(installed(), func(f *Facts) {
					c := &f.DaemonSets[0].Spec.Template.Spec.Containers[0]
					c.Image, c.Args = "slipway", []string{"aks-node-termination-handler"}
					c.Env = []corev1.EnvVar{{Name: "MAX_CONCURRENT_DRAINS", Value: "2"}}
					f.Access = access(f.installed(Agent)[0], agentRights(), "list leases.coordination.k8s.io in namespace .")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not list leases"},
			},
		},
		"part-not-ready": {
			"all are available": {installed(), nil},
			"one is not": {
				change(installed(), func(f *Facts) { f.Deployments[0].Status.AvailableReplicas = 1 }),
				[]string{"warning Deployment slipway/slipway-manager: 1 of its 2 pods are available"},
			},
			"none is": {
				change(installed(), func(f *Facts) { f.Deployments[0].Status.AvailableReplicas = 0 }),
				[]string{"problem Deployment slipway/slipway-manager: none of its 2 pods is available"},
			},
			"switched off": {
				change(installed(), func(f *Facts) { f.Deployments[0].Spec.Replicas = new(int32(0)) }),
				[]string{"warning Deployment slipway/slipway-manager: it is scaled to 0"},
			},
		},
		"crds": {
			"those of this build":         {installed(), nil},
			"none, and nobody needs them": {cluster(), nil},
			"one is missing": {
				change(installed(), func(f *Facts) { delete(f.CRDs, "nodegroups.slipway.dev") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is not there"},
			},
			"one is not served": {
				change(installed(), func(f *Facts) { delete(f.CRDs["nodegroups.slipway.dev"].Object, "status") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: the API server does not serve it"},
			},
			"one is older": {
				change(installed(), func(f *Facts) { delete(specSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway: the API server silently drops spec.maxSize"},
			},
			"one is newer": {
				change(installed(), func(f *Facts) {
					specSchema(f, "nodegroups.slipway.dev")["colour"] = map[string]any{"type": "string"}
				}),
				[]string{"note CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway, which does not know spec.colour"},
			},
			"one is older by its number alone": {
				numbered("0"),
				[]string{"warning CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway (it has no schema generation, this slipway's is "},
			},
			"one is older by its number, and lacks a field": {
				change(numbered(""), func(f *Facts) { delete(specSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway (it has no schema generation, this slipway's is "},
			},
			"one is newer by its number alone": {
				numbered("999"),
				[]string{"note CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway (schema generation 999, this slipway's is "},
			},
			"one is newer, and a field is no more there": {
				change(numbered("999"), func(f *Facts) { delete(specSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway (schema generation 999, this slipway's is "},
			},
			"another version": {
				change(installed(), func(f *Facts) {
					versions, _, _ := unstructured.NestedSlice(f.CRDs["nodegroups.slipway.dev"].Object, "spec", "versions")
					versions[0].(map[string]any)["name"] = "v9"
					_ = unstructured.SetNestedSlice(f.CRDs["nodegroups.slipway.dev"].Object, versions, "spec", "versions")
				}),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it does not serve version v1alpha1"},
			},
		},
		"leader": {
			"one leads":     {installed(), nil},
			"there is none": {change(installed(), func(f *Facts) { f.LeaderLeases = nil }), []string{"problem Lease slipway/slipway-manager: there is no such Lease"}},
			"it was let go": {led(lease("slipway-manager", "", noon)), []string{"problem Lease slipway/slipway-manager: nobody holds it"}},
			"it is stale":   {led(lease("slipway-manager", "m-1", noon.Add(-5*time.Minute))), []string{"problem Lease slipway/slipway-manager: m-1 has not renewed it for 5m0s"}},
			"no one is asked": {
				change(installed(), func(f *Facts) {
					f.LeaderLeases, f.Deployments[0].Spec.Template.Spec.Containers[0].Args = nil, []string{"manager", "--leader-elect=false"}
				}), nil,
			},
		},
		"agent-coverage": {
			"every taint is tolerated": {change(installed(), func(f *Facts) { tainted(f.Nodes[0], "spot", corev1.TaintEffectNoSchedule) }), nil},
			"a taint keeps it off": {
				change(installed(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Tolerations = nil
					tainted(f.Nodes[0], "spot", corev1.TaintEffectNoSchedule)
				}),
				[]string{"problem Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: it does not tolerate the taint spot:NoSchedule)"},
			},
			"taints that DaemonSets tolerate anyway, or that only deter": {
				change(installed(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Tolerations = nil
					tainted(f.Nodes[0], corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
					tainted(f.Nodes[0], "rather-not", corev1.TaintEffectPreferNoSchedule)
				}), nil,
			},
			"another operating system": {
				change(installed(), func(f *Facts) { f.Nodes[0].Labels["kubernetes.io/os"] = "windows" }),
				[]string{"problem Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: its nodeSelector or node affinity does not match: it wants kubernetes.io/os=linux)"},
			},
			"a node without a machine": {
				change(installed(), func(f *Facts) { f.Nodes[0].Labels = map[string]string{"type": "virtual-kubelet"} }), nil,
			},
		},
		"agent-down": {
			"it runs":       {installed(), nil},
			"there is none": {change(installed(), func(f *Facts) { f.Pods = nil }), []string{"problem Node node-a: there is no agent's pod on it"}},
			"it is pending": {
				change(installed(), func(f *Facts) { f.Pods[0].Status.Phase = corev1.PodPending }),
				[]string{"problem Node node-a: the agent's pod on it is pending"},
			},
		},
		"metadata-endpoint": {
			"the agent has read the notices": {installed(), nil},
			"the agent has not": {
				change(installed(), func(f *Facts) { f.Pods[0] = agentPod("node-a", false) }),
				[]string{"problem Node node-a: its agent runs and has not read the notices since it started"},
			},
			"the agent has just begun": {
				change(installed(), func(f *Facts) {
					f.Pods[0] = agentPod("node-a", false)
					f.Pods[0].Status.StartTime.Time = noon.Add(-time.Minute)
				}),
				[]string{"note Node node-a: its agent has just started"},
			},
			"the agent's pod is ready as soon as it runs": {
				unprobed(installed()),
				[]string{"note Node node-a: whether it reaches the metadata service cannot be seen: its agent's pod has no readiness probe"},
			},
			"the agent's pod is ready as soon as it runs, and says that it has read them": {
				unprobed(told(LastRead{At: noon.Add(-time.Second)})), nil,
			},
			"the agent's pod is ready as soon as it runs, and says that it never has": {
				unprobed(told(LastRead{})),
				[]string{"problem Node node-a: its agent runs and has not read the notices since it started"},
			},
			"no agent": {
				change(cluster(), func(f *Facts) { f.Nodes = []*corev1.Node{azureNode("node-a")} }),
				[]string{"note Node node-a: whether it reaches the metadata service cannot be seen from outside"},
			},
			"a node that is not Azure's":                      {change(cluster(), func(f *Facts) { f.Nodes = []*corev1.Node{node("node-a")} }), nil},
			"the agent was asked, and has read them just now": {told(LastRead{At: noon.Add(-time.Second)}), nil},
			"the agent was asked, and is cut off": {
				told(LastRead{At: noon.Add(-time.Hour)}),
				[]string{"problem Node node-a: its agent has not been able to read the notices since 2026-05-04T11:00:00Z"},
			},
			"the agent could not be asked": {
				told(LastRead{Err: errors.New("connection refused")}),
				[]string{"warning Node node-a: its agent could not be asked for its metrics: connection refused"},
			},
		},
		"group-not-accepted": {
			"it is": {change(cluster(), func(f *Facts) { f.NodeGroups = []v1alpha1.NodeGroup{group("g", linux, metav1.ConditionTrue, "")} }), nil},
			"it is not": {
				change(cluster(), func(f *Facts) {
					f.NodeGroups = []v1alpha1.NodeGroup{group("g", linux, metav1.ConditionFalse, "no such cloud")}
				}),
				[]string{"problem NodeGroup g: it is not acted on: no such cloud"},
			},
			"nobody has looked": {
				change(cluster(), func(f *Facts) { f.NodeGroups = []v1alpha1.NodeGroup{group("g", linux, "", "")} }),
				[]string{"warning NodeGroup g: no manager has looked at it yet"},
			},
		},
		"node-without-group": {
			"no manager and no group":     {change(cluster(), func(f *Facts) { f.Nodes = []*corev1.Node{node("node-a")} }), nil},
			"a manager, and no group yet": {installed(), []string{"note the cluster: there is no NodeGroup"}},
			"another's node, and one of the control plane": {
				change(installed(), func(f *Facts) {
					f.NodeGroups = []v1alpha1.NodeGroup{group("g", map[string]string{"pool": "ci"}, metav1.ConditionTrue, "")}
					f.Nodes = append(f.Nodes, node("cp"), node("ci-1"))
					f.Nodes[1].Labels["node-role.kubernetes.io/control-plane"], f.Nodes[2].Labels["pool"] = "", "ci"
				}),
				[]string{"warning Node node-a: no NodeGroup selects it"},
			},
			"a stand-in, whose group is within it": {change(installed(), func(f *Facts) { standIn(f, 1, nil, "openstack-autoscaler") }), nil},
			"a stand-in beside groups": {
				change(installed(), func(f *Facts) {
					standIn(f, 1, nil, "vmss-pod-watcher")
					f.NodeGroups = []v1alpha1.NodeGroup{group("g", map[string]string{"pool": "ci"}, metav1.ConditionTrue, "")}
				}), nil,
			},
		},
		"pdb-never-allows": {
			"maxUnavailable 0":  {budgets(budget("b", "web", nil, none)), []string{"problem PodDisruptionBudget shop/b: maxUnavailable is 0: "}},
			"maxUnavailable 0%": {budgets(budget("b", "web", nil, noPercent)), []string{"problem PodDisruptionBudget shop/b: maxUnavailable is 0%: "}},
			"minAvailable 100%": {budgets(budget("b", "web", all, nil)), []string{"problem PodDisruptionBudget shop/b: minAvailable is 100%: "}},
			"minAvailable is all there are": {
				budgets(counted(budget("b", "web", two, nil), 2, 2, 2, 0)),
				[]string{"problem PodDisruptionBudget shop/b: 2 pods must be healthy, and there are to be 2: "},
			},
			"it cannot be worked out": {
				budgets(change2(counted(budget("b", "web", nil, one), 0, 0, 0, 0), func(b *policyv1.PodDisruptionBudget) {
					b.Status.Conditions = []metav1.Condition{{
						Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.SyncFailedReason, Message: "no scale",
					}}
				})),
				[]string{"problem PodDisruptionBudget shop/b: the disruption controller cannot work it out (no scale): "},
			},
			"it does":                    {budgets(counted(budget("b", "web", one, nil), 2, 1, 2, 1)), nil},
			"not healthy now, but could": {budgets(counted(budget("b", "web", one, nil), 1, 1, 2, 0)), nil},
			"counted for an older spec":  {budgets(change2(counted(budget("b", "web", one, nil), 2, 2, 2, 0), func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })), nil},
			"it has no pods":             {budgets(budget("b", "other", nil, none)), nil},
		},
		"pdb-blocks-now": {
			"too few are healthy": {
				budgets(counted(budget("b", "web", one, nil), 1, 1, 2, 0)),
				[]string{"warning PodDisruptionBudget shop/b: 1 of 2 pods are healthy and 1 must be"},
			},
			"it never allows":        {budgets(counted(budget("b", "web", two, nil), 1, 2, 2, 0)), nil},
			"an eviction is allowed": {budgets(counted(budget("b", "web", one, nil), 2, 1, 2, 1)), nil},
			"one is just being evicted": {
				budgets(change2(counted(budget("b", "web", one, nil), 1, 1, 2, 0), func(b *policyv1.PodDisruptionBudget) {
					b.Status.DisruptedPods = map[string]metav1.Time{"web-1": {Time: noon}}
				})), nil,
			},
		},
		"pdb-overlap": {
			"two select a pod": {
				budgets(budget("b", "web", nil, one), budget("a", "web", nil, one)),
				[]string{"problem Deployment shop/web: its pods are selected by 2 disruption budgets (a, b)"},
			},
			"one does": {budgets(budget("b", "web", nil, one), budget("a", "db", nil, one)), nil},
		},
		"pdb-matches-nothing": {
			"a selector with a slip": {
				budgets(budget("b", "wbe", nil, one)), []string{"warning PodDisruptionBudget shop/b: its selector (app=wbe) matches no pod"},
			},
			"no selector": {
				budgets(change2(budget("b", "web", nil, one), func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })),
				[]string{"warning PodDisruptionBudget shop/b: its selector (<none>) matches no pod"},
			},
			"an empty one selects all": {
				budgets(change2(budget("b", "web", nil, one), func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })), nil,
			},
		},
		"single-replica": {
			"one, said and unsaid": {
				change(cluster(), func(f *Facts) {
					f.Deployments = []*appsv1.Deployment{deployment("shop", "web", 1), deployment("shop", "api", 2)}
					f.StatefulSets = []*appsv1.StatefulSet{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}}
				}),
				[]string{"warning Deployment shop/web: it has one replica", "warning StatefulSet shop/db: it has one replica"},
			},
			"one that competes with nobody": {change(installed(), func(f *Facts) { standIn(f, 1, nil, "vmss-pod-watcher") }), nil},
			"one that could compete": {
				change(installed(), func(f *Facts) { standIn(f, 1, nil, "vmss-pod-watcher", "--leader-elect") }),
				[]string{"warning Deployment kube-system/vmss-pod-watcher: it has one replica"},
			},
		},
		"pod-without-controller": {
			"one, and others that are not meant": {
				change(cluster(), func(f *Facts) {
					over, mirror := pod("shop", "over", nil), pod("kube-system", "etcd", nil)
					over.Status.Phase, mirror.Annotations = corev1.PodSucceeded, map[string]string{corev1.MirrorPodAnnotationKey: "x"}
					f.Pods = []*corev1.Pod{pod("shop", "debug", nil), over, mirror, replica("web-1", "web")}
				}),
				[]string{"warning Pod shop/debug: no controller would create it anew"},
			},
		},
		"other-tool": {
			"an image": {
				change(installed(), func(f *Facts) { f.DaemonSets = append(f.DaemonSets, daemon("x", "ghcr.io/kubereboot/kured:1.20")) }),
				[]string{"warning DaemonSet kube-system/x: kured, by its image ghcr.io/kubereboot/kured:1.20: "},
			},
			"a name, with the agent beside it": {
				change(installed(), func(f *Facts) {
					f.DaemonSets = append(f.DaemonSets, daemon("aks-node-termination-handler", "mirror.example.com/nth"))
				}),
				[]string{"problem DaemonSet kube-system/aks-node-termination-handler: aks-node-termination-handler, by its name: "},
			},
			"a name, before the agent is installed": {
				change(cluster(), func(f *Facts) { f.DaemonSets = []*appsv1.DaemonSet{daemon("mechanic", "example.com/m")} }),
				[]string{"note DaemonSet kube-system/mechanic: mechanic, by its name: "},
			},
			"our own under another's name": {
				change(installed(), func(f *Facts) {
					d := daemon("mechanic", "example.com/slipway:v1")
					d.Spec.Template.Spec.Containers[0].Args = []string{"mechanic"}
					f.DaemonSets = []*appsv1.DaemonSet{d}
				}), nil,
			},
			"a ConfigMap of one out of sight": {
				change(installed(), func(f *Facts) { f.Marks = map[Key]bool{{"kube-system", "cluster-autoscaler-status"}: true} }),
				[]string{"warning ConfigMap kube-system/cluster-autoscaler-status: cluster-autoscaler, by its ConfigMap: "},
			},
			"an API group": {
				change(installed(), func(f *Facts) { f.Groups = []string{"apps", "karpenter.sh"} }),
				[]string{"warning APIGroup karpenter.sh: Karpenter, by its API group: "},
			},
			"an annotation": {
				change(installed(), func(f *Facts) {
					f.Nodes[0].Annotations = map[string]string{"weave.works/kured-reboot-in-progress": "now"}
				}),
				[]string{"warning Node node-a: kured, by its annotation weave.works/kured-reboot-in-progress: "},
			},
			"AKS's own": {
				change(installed(), func(f *Facts) { f.Marks = map[Key]bool{{"kube-system", "remediator-config"}: true} }),
				[]string{"note ConfigMap kube-system/remediator-config: AKS node auto-drain, by its ConfigMap: "},
			},
			"AKS's own, which is in every cluster of AKS": {
				change(installed(), func(f *Facts) {
					for _, name := range []string{"node-b", "node-c"} {
						n := azureNode(name)
						n.Labels["kubernetes.azure.com/cluster"] = "MC_group_cluster_westeurope"
						f.Nodes = append(f.Nodes, n)
					}
				}),
				[]string{"note the cluster: AKS node auto-drain, by its nodes' label kubernetes.azure.com/cluster: "},
			},
			"AKS's own at work": {
				change(installed(), func(f *Facts) {
					tainted(f.Nodes[0], "remediator.kubernetes.azure.com/unschedulable", corev1.TaintEffectNoSchedule)
				}),
				[]string{"note Node node-a: AKS node auto-drain, by its taint remediator.kubernetes.azure.com/unschedulable: "},
			},
			"machines of Azure without AKS": {installed(), nil},
		},
		"other-tool-at-work": {
			"taints of three": {
				change(cluster(), func(f *Facts) {
					f.Nodes = []*corev1.Node{
						tainted(node("a"), "ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule),
						tainted(node("b"), "karpenter.sh/disrupted", corev1.TaintEffectNoSchedule),
						tainted(node("c"), "remediator.kubernetes.azure.com/unschedulable", corev1.TaintEffectNoSchedule),
						tainted(node("d"), "example.com/other", corev1.TaintEffectNoSchedule),
					}
				}),
				[]string{"note Node c: AKS node auto-drain (taint ", "note Node b: Karpenter (taint ", "note Node a: cluster-autoscaler (taint "},
			},
		},
		"clock-here": {
			"the same": {cluster(), nil},
			"ahead": {
				change(cluster(), func(f *Facts) { f.Clock.Here = noon.Add(time.Minute) }),
				[]string{"warning the cluster: the clock of this machine is 1m0s ahead of that of the API server"},
			},
			"behind by less than can be told apart": {
				change(cluster(), func(f *Facts) { f.Clock.Here, f.Clock.Error = noon.Add(-10*time.Second), 8*time.Second }), nil,
			},
		},
		"clock-node": {
			"the same":        {clocks(node("node-a"), written(noon.Add(700*time.Millisecond))), nil},
			"a little ahead":  {clocks(node("node-a"), written(noon.Add(5*time.Second))), []string{"warning Node node-a: its clock is 5s ahead of that of the API server: "}},
			"far behind":      {clocks(node("node-a"), written(noon.Add(-time.Minute))), []string{"problem Node node-a: its clock is 1m0s behind that of the API server: "}},
			"in the future":   {clocks(node("node-a"), lease("node-a", "", noon.Add(time.Hour))), []string{"problem Node node-a: its clock is 1h0m0s ahead"}},
			"old, and Ready":  {clocks(node("node-a"), lease("node-a", "", noon.Add(-time.Hour))), []string{"problem Node node-a: its clock is 1h0m0s behind"}},
			"a while ago":     {clocks(node("node-a"), lease("node-a", "", noon.Add(-20*time.Second))), nil},
			"old, and silent": {clocks(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, lease("node-a", "", noon.Add(-time.Hour))), nil},
		},
	}
}

func change2(b *policyv1.PodDisruptionBudget, with func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	with(b)
	return b
}

func led(l *coordinationv1.Lease) *Facts {
	return change(installed(), func(f *Facts) { f.LeaderLeases[Key{"slipway", "slipway-manager"}] = l })
}

// unprobed is a cluster whose agents' pods have no readiness probe.
func unprobed(f *Facts) *Facts {
	return change(f, func(f *Facts) { f.Pods[0].Spec.Containers[0].ReadinessProbe = nil })
}

func told(l LastRead) *Facts {
	return change(installed(), func(f *Facts) { f.LastRead = map[Key]LastRead{{"slipway", "slipway-agent-node-a"}: l} })
}

// numbered is a cluster whose definition of NodeGroups has another schema generation.
func numbered(generation string) *Facts {
	return change(installed(), func(f *Facts) {
		f.CRDs["nodegroups.slipway.dev"].SetAnnotations(map[string]string{crds.GenerationAnnotation: generation})
	})
}

// specSchema is the properties of spec in a definition.
func specSchema(f *Facts, name string) map[string]any {
	versions := f.CRDs[name].Object["spec"].(map[string]any)["versions"].([]any)
	root := versions[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	return root["properties"].(map[string]any)["spec"].(map[string]any)["properties"].(map[string]any)
}

func TestEachRuleFindsOnlyItsOwnFault(t *testing.T) {
	for _, rule := range Rules() {
		if cases()[rule.Name] == nil {
			t.Errorf("the rule %s has no case", rule.Name)
		}
	}
	for rule, all := range cases() {
		for name, c := range all {
			t.Run(rule+"/"+name, func(t *testing.T) {
				var got []Finding
				for _, f := range Diagnose(c.facts).Findings {
					if f.Rule == rule {
						got = append(got, f)
					}
				}
				if len(got) != len(c.want) {
					t.Fatalf("got %+v, want %q", got, c.want)
				}
				for i, f := range got {
					if line := fmt.Sprintf("%s %s: %s", f.Severity, f.Object, f.Message); !strings.HasPrefix(line, c.want[i]) {
						t.Errorf("got  %q\nwant %q", line, c.want[i])
					}
					if f.Remedy == "" {
						t.Errorf("%s says not what to do", rule)
					}
				}
			})
		}
	}
}

func TestHealthyInstallationHasNoFindings(t *testing.T) {
	if r := Diagnose(installed()); r.Count(Problem)+r.Count(Warning) > 0 || len(r.Unchecked) > 0 || len(r.Parts) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestRuleWithUnreadableObjectsIsNotChecked(t *testing.T) {
	for _, rule := range Rules() {
		for _, reading := range rule.needs {
			f := installed()
			f.Unread[reading] = forbidden("x")
			r := Diagnose(f)
			if !slices.ContainsFunc(r.Unchecked, func(u Unchecked) bool {
				return u.Rule == rule.Name && strings.Contains(u.Because, string(reading))
			}) {
				t.Errorf("without %s %s was checked", reading, rule.Name)
			}
			if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == rule.Name }) {
				t.Errorf("without %s %s has found something", reading, rule.Name)
			}
		}
	}
}

func TestRuleWithPartlyUnreadableObjectsSaysSo(t *testing.T) {
	for _, reading := range []Reading{readMarks, readGroups} {
		f := change(installed(), func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, daemon("mechanic", "example.com/mechanic:v1"))
			f.Unread[reading] = forbidden("x")
		})
		r := Diagnose(f)
		if want := (Unchecked{"other-tool", "in part; not read: " + string(reading)}); !slices.Contains(r.Unchecked, want) {
			t.Errorf("without %s, not checked are %v", reading, r.Unchecked)
		}
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == "other-tool" }) {
			t.Errorf("without %s nothing was found", reading)
		}
	}
}

func TestEveryReadThatNeedsARightHasOne(t *testing.T) {
	for _, rule := range Rules() {
		for _, reading := range slices.Concat(rule.needs, rule.also) {
			if _, ok := readRights[reading]; !ok && reading != readClock {
				t.Errorf("%s needs %s, of which no right is known", rule.Name, reading)
			}
		}
	}
}

func TestFindingNamesTheOwnersOfAPDB(t *testing.T) {
	r := Diagnose(budgets(budget("b", "web", nil, none)))
	want := []Object{{"Deployment", "shop", "web"}}
	for _, f := range r.Findings {
		if f.Rule == "pdb-never-allows" {
			check.Equal(t, want, f.Owners)
			return
		}
	}
	t.Error("nothing was found")
}

func TestPartsAreKnownByWhatTheyRun(t *testing.T) {
	for name, c := range map[string]struct {
		image   string
		command []string
		args    []string
		labels  map[string]string
		want    PartKind
	}{
		"small agent":             {image: "r.example.com:5000/slipway-agent:v1", want: Agent},
		"whole agent":             {image: "slipway@sha256:00", args: []string{"agent", "--listen=:1"}, want: Agent},
		"manager by its command":  {image: "x", command: []string{"/usr/bin/slipway", "manager"}, want: Manager},
		"on Windows":              {image: "x", command: []string{`C:\slipway-agent.exe`}, want: Agent},
		"a personality":           {image: "slipway", args: []string{"kubeaware-cloudpool-proxy"}, want: Cloudpool},
		"own image, by its label": {image: "x", labels: map[string]string{"app.kubernetes.io/name": "slipway-cloudpool"}, want: Cloudpool},
		"own command, by its label": {
			image: "slipway", args: []string{"--listen=:1"}, want: Manager, labels: map[string]string{"app.kubernetes.io/name": "slipway-manager"},
		},
		"chart's labels": {
			image: "x", want: Manager,
			labels: map[string]string{"app.kubernetes.io/name": "slipway", "app.kubernetes.io/component": "manager"},
		},
		"a command for people": {image: "slipway", args: []string{"plan"}},
		"somebody else":        {image: "slipway-fan:v1", args: []string{"agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := template(c.image, c.args...)
			tmpl.Labels, tmpl.Spec.Containers[0].Command = c.labels, c.command
			got, _ := partOf("Deployment", metav1.ObjectMeta{}, &tmpl)
			check.Is(t, c.want, got.Kind)
			if got.standsIn() {
				t.Errorf("%q stands in for another tool", got.Command)
			}
		})
	}
}

func TestFlagsOfAPartAreReadAsWritten(t *testing.T) {
	p := Part{Args: []string{"--native", "a,b", "--authorize", "--wait-for-detach=false"}}
	got := map[string]bool{}
	for _, flag := range []string{"native", "authorize", "wait-for-detach", "install-crds"} {
		got[flag] = p.has(flag)
	}
	want := map[string]bool{"native": true, "authorize": true, "wait-for-detach": false, "install-crds": false}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
