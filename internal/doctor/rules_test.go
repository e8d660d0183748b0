package doctor

import (
	"errors"
	"fmt"
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
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func newEstablishedCRDs(wanted []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{}
	for _, w := range wanted {
		have := w.DeepCopy()
		have.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
		all[w.GetName()] = have
	}
	return all
}

// changeFacts changes a cluster and returns it.
func changeFacts(f *Facts, with func(*Facts)) *Facts {
	with(f)
	return f
}

func newForbiddenError(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
}

// newClusterWithPDBs returns a cluster with these budgets and two replicas of web.
func newClusterWithPDBs(all ...*policyv1.PodDisruptionBudget) *Facts {
	return changeFacts(newEmptyCluster(), func(f *Facts) {
		f.PDBs = all
		f.Pods = []*corev1.Pod{newReplica("web-1", "web"), newReplica("web-2", "web")}
	})
}

var (
	none, one, two = new(intstr.FromInt32(0)), new(intstr.FromInt32(1)), new(intstr.FromInt32(2))
	noPercent, all = new(intstr.FromString("0%")), new(intstr.FromString("100%"))
)

func newDaemonSet(name, image string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: appsv1.DaemonSetSpec{Template: newTemplate(image)},
	}
}

// requireLabels sets a node affinity with one term for each set of labels.
func requireLabels(d *appsv1.DaemonSet, terms ...map[string]string) {
	var required corev1.NodeSelector
	for _, labels := range terms {
		var term corev1.NodeSelectorTerm
		for key, value := range labels {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
			})
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &required}}
}

// newInstallationWithSpotNode returns an installation with a second node, which is in the pool spot and has an agent.
func newInstallationWithSpotNode() *Facts {
	return changeFacts(newInstallation(), func(f *Facts) {
		f.Nodes = append(f.Nodes, newNode("node-spot"))
		f.Nodes[1].Labels["pool"], f.Nodes[1].Labels[corev1.LabelArchStable] = "spot", "arm64"
	})
}

// newInstallationBesideMechanic returns an installation with agents in the pool spot only, and mechanic on the node of
// another pool.
func newInstallationBesideMechanic() *Facts {
	return changeFacts(newInstallation(), func(f *Facts) {
		mechanic := newDaemonSet("mechanic", "example.com/m")
		mechanic.Spec.Template.Spec.NodeSelector = map[string]string{"drainer": "mechanic"}
		f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot"
		f.DaemonSets = append(f.DaemonSets, mechanic)
		f.Nodes = append(f.Nodes, newNode("node-b"))
		f.Nodes[0].Labels["pool"], f.Nodes[1].Labels["drainer"] = "spot", "mechanic"
	})
}

// newDatedLease returns a node Lease with a renewal time that the API server recorded at noon.
func newDatedLease(renewed time.Time) *coordinationv1.Lease {
	l := newLease("node-a", "node-a", renewed)
	l.ManagedFields = []metav1.ManagedFieldsEntry{{
		Time: &metav1.Time{Time: noon}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`),
	}}
	return l
}

func newClusterWithLease(n *corev1.Node, l *coordinationv1.Lease) *Facts {
	return changeFacts(newEmptyCluster(), func(f *Facts) {
		f.Nodes, f.NodeLeases = []*corev1.Node{n}, map[string]*coordinationv1.Lease{"node-a": l}
	})
}

func newAccess(p Part, rights []Permission, but ...string) []PermissionCheck {
	var all []PermissionCheck
	for _, r := range rights {
		all = append(all, PermissionCheck{p, r, !slices.Contains(but, r.String())})
	}
	return all
}

func newGroup(name string, labels map[string]string, accepted metav1.ConditionStatus, message string) v1alpha1.NodeGroup {
	g := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.NodeSelector.MatchLabels = labels
	if accepted != "" {
		g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupAccepted, Status: accepted, Message: message}}
	}
	return g
}

// installCompatibilityManager replaces the manager by a compatibility command with this environment.
func installCompatibilityManager(f *Facts, replicas int32, env map[string]string, command ...string) *Part {
	d := newDeployment("kube-system", command[0], replicas)
	d.Spec.Template, d.Status.AvailableReplicas = newTemplate("example.com/slipway:v1", command...), replicas
	for name, value := range env {
		c := &d.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	f.Deployments, f.LeaderLeases = []*appsv1.Deployment{d}, nil
	return &f.partsOfKind(Manager)[0]
}

// newInstallationLackingRights returns an installation of a compatibility command. Its account has all permissions
// except some.
func newInstallationLackingRights(env map[string]string, command []string, but ...string) *Facts {
	return changeFacts(newInstallation(), func(f *Facts) {
		p := installCompatibilityManager(f, 1, env, command...)
		for _, r := range listPartRights(p) {
			r = r.withPartNamespace(p.leaseNamespace())
			f.PartAccess = append(f.PartAccess, PermissionCheck{*p, r, !slices.Contains(but, r.String())})
		}
	})
}

// newInstallationWithManagerPod returns an installation with a NodeGroup of all Linux nodes. A pod of the manager is on
// one of its nodes.
func newInstallationWithManagerPod(with func(*Facts)) *Facts {
	return changeFacts(newInstallation(), func(f *Facts) {
		f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", map[string]string{"kubernetes.io/os": "linux"}, metav1.ConditionTrue, "")}
		p := newReplica("slipway-manager-1", "slipway-manager")
		p.Namespace, p.Spec.NodeName = "slipway", f.Nodes[0].Name
		f.Pods = append(f.Pods, p)
		with(f)
	})
}

// ruleCase is one case of a rule, with the wanted findings: severity, object and start of the message.
type ruleCase struct {
	facts *Facts
	want  []string
}

func newRuleCases() map[string]map[string]ruleCase {
	linux := map[string]string{"kubernetes.io/os": "linux"}
	return map[string]map[string]ruleCase{
		"caller-rights": {
			"a permission for reading is missing": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.ReadErrors[nodesReading] = newForbiddenError("nodes") }),
				[]string{"problem the cluster: you may not list nodes: "},
			},
			"a permission of another command is missing": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.CallerAccess = []PermissionCheck{{Permission: listViewerRights()[0]}} }),
				[]string{"note the cluster: you may not list namespaces: slipway plan"},
			},
			"no permission is missing": {changeFacts(newEmptyCluster(), func(f *Facts) { f.CallerAccess = newAccess(Part{}, listViewerRights(), "") }), nil},
		},
		"unreadable": {
			"the API server fails": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.ReadErrors[podsReading] = errors.New("timeout") }),
				[]string{"problem the cluster: the pods could not be read: timeout"},
			},
			"only a permission is missing": {changeFacts(newEmptyCluster(), func(f *Facts) { f.ReadErrors[podsReading] = newForbiddenError("pods") }), nil},
		},
		"installation": {
			"nothing is installed":     {newEmptyCluster(), []string{"note the cluster: no part of Slipway"}},
			"everything is installed":  {newInstallation(), nil},
			"a manager without agents": {changeFacts(newInstallation(), func(f *Facts) { f.DaemonSets = nil }), []string{"warning the cluster: there is a manager and no agent"}},
			"a manager without agents on OpenStack": {changeFacts(newInstallation(), func(f *Facts) {
				f.DaemonSets, f.Pods = nil, nil
				f.Nodes[0].Spec.ProviderID = "openstack:///2a3b9f0e-3f0b-4d26-9f5a-3ad6d3a7a111"
			}), nil},
			"a manager of a queue without agents": {changeFacts(newInstallation(), func(f *Facts) {
				f.DaemonSets, f.Pods = nil, nil
				container := &f.Deployments[0].Spec.Template.Spec.Containers[0]
				container.Args = append(container.Args, "--aws-queue-url=https://sqs.eu-west-1.amazonaws.com/1/q")
			}), nil},
			"two installations of the agent": {
				changeFacts(newInstallation(), func(f *Facts) { f.DaemonSets = append(f.DaemonSets, newDaemonSet("mine", "slipway-agent")) }),
				[]string{"warning the cluster: there are agents in 2 DaemonSets"},
			},
		},
		"part-rights": {
			"no permission is missing": {changeFacts(newInstallation(), func(f *Facts) { f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "") }), nil},
			"one is missing": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "create pods/eviction")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not create pods/eviction: to drain"},
			},
			"an optional one is missing": {
				changeFacts(newInstallation(), func(f *Facts) { f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "delete pods") }),
				[]string{"note ServiceAccount slipway/slipway-agent: the agent may not delete pods: "},
			},
			"one for an unset flag is missing": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "get persistentvolumeclaims")
				}), nil,
			},
			"one for a set flag is missing": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Containers[0].Args = []string{"--wait-for-detach"}
					f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "get persistentvolumeclaims")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not get persistentvolumeclaims: --wait-for-detach"},
			},
			"the Lease of a compatibility command": {
				newInstallationLackingRights(nil, []string{"openstack-autoscaler", "-config", "/c"},
					"update leases.coordination.k8s.io slipway-openstack-autoscaler in namespace kube-system"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not update leases.coordination.k8s.io " +
					"slipway-openstack-autoscaler in namespace kube-system: leader election"},
			},
			"the Lease of a pool": {
				newInstallationLackingRights(map[string]string{"FOCUS_NODEPOOL": "ci"}, []string{"vmss-pod-watcher", "--leader-elect"},
					"get leases.coordination.k8s.io slipway-vmss-pod-watcher-ci in namespace kube-system"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not get leases.coordination.k8s.io " +
					"slipway-vmss-pod-watcher-ci in namespace kube-system: leader election"},
			},
			"the Lease in a configured namespace": {
				newInstallationLackingRights(map[string]string{"POD_NAMESPACE": "tools"}, []string{"openstack-autoscaler"},
					"create leases.coordination.k8s.io in namespace tools"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not create leases.coordination.k8s.io in namespace tools"},
			},
			"no Lease without leader election": {
				newInstallationLackingRights(nil, []string{"vmss-pod-watcher"}, "create leases.coordination.k8s.io in namespace kube-system"), nil,
			},
			"CRDs are installed by default": {
				newInstallationLackingRights(nil, []string{"vmss-pod-watcher"}, "create customresourcedefinitions.apiextensions.k8s.io"),
				[]string{"note ServiceAccount kube-system/default: the manager may not create customresourcedefinitions.apiextensions.k8s.io: "},
			},
			"CRDs are installed by flag": {
				newInstallationLackingRights(nil, []string{"vmss-pod-watcher", "--install-crds"}, "create customresourcedefinitions.apiextensions.k8s.io"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not create customresourcedefinitions.apiextensions.k8s.io: "},
			},
			"CRDs are not installed": {
				newInstallationLackingRights(nil, []string{"vmss-pod-watcher", "--install-crds=false"}, "create customresourcedefinitions.apiextensions.k8s.io"), nil,
			},
			"deletions of pods for a queue": {
				newInstallationLackingRights(nil, []string{"manager", "--aws-queue-url=https://sqs.eu-west-1.amazonaws.com/1/q"}, "delete pods"),
				[]string{"problem ServiceAccount kube-system/default: the manager may not delete pods: --aws-queue-url"},
			},
			"deletions of pods without a queue": {newInstallationLackingRights(nil, []string{"manager"}, "delete pods"), nil},
			"drain slots by the legacy flag": {
				changeFacts(newInstallation(), func(f *Facts) {
					c := &f.DaemonSets[0].Spec.Template.Spec.Containers[0]
					c.Image, c.Args = "slipway", []string{"aks-node-termination-handler", "-maxConcurrentDrains=2"}
					f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "list leases.coordination.k8s.io in namespace .")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not list leases"},
			},
			"drain slots by the environment": {
				changeFacts(newInstallation(), func(f *Facts) {
					c := &f.DaemonSets[0].Spec.Template.Spec.Containers[0]
					c.Image, c.Args = "slipway", []string{"aks-node-termination-handler"}
					c.Env = []corev1.EnvVar{{Name: "MAX_CONCURRENT_DRAINS", Value: "2"}}
					f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "list leases.coordination.k8s.io in namespace .")
				}),
				[]string{"problem ServiceAccount slipway/slipway-agent: the agent may not list leases"},
			},
		},
		"part-not-ready": {
			"all are available": {newInstallation(), nil},
			"one pod is not available": {
				changeFacts(newInstallation(), func(f *Facts) { f.Deployments[0].Status.AvailableReplicas = 1 }),
				[]string{"warning Deployment slipway/slipway-manager: 1 of its 2 pods are available"},
			},
			"no pod is available": {
				changeFacts(newInstallation(), func(f *Facts) { f.Deployments[0].Status.AvailableReplicas = 0 }),
				[]string{"problem Deployment slipway/slipway-manager: none of its 2 pods is available"},
			},
			"scaled to zero": {
				changeFacts(newInstallation(), func(f *Facts) { f.Deployments[0].Spec.Replicas = new(int32(0)) }),
				[]string{"warning Deployment slipway/slipway-manager: it is scaled to 0"},
			},
		},
		"crds": {
			"all CRDs of this build": {newInstallation(), nil},
			"none, and none needed":  {newEmptyCluster(), nil},
			"one is missing": {
				changeFacts(newInstallation(), func(f *Facts) { delete(f.CRDs, "nodegroups.slipway.dev") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is missing"},
			},
			"one is not served": {
				changeFacts(newInstallation(), func(f *Facts) { delete(f.CRDs["nodegroups.slipway.dev"].Object, "status") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: the API server does not serve it"},
			},
			"one is older": {
				changeFacts(newInstallation(), func(f *Facts) { delete(getSpecSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway: the API server drops without an error spec.maxSize"},
			},
			"one is newer": {
				changeFacts(newInstallation(), func(f *Facts) {
					getSpecSchema(f, "nodegroups.slipway.dev")["colour"] = map[string]any{"type": "string"}
				}),
				[]string{"note CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway, which does not know spec.colour"},
			},
			"one is older by generation only": {
				newInstallationWithGeneration("0"),
				[]string{"warning CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway (it has no schema generation, this slipway's is "},
			},
			"one is older by generation and lacks a field": {
				changeFacts(newInstallationWithGeneration(""), func(f *Facts) { delete(getSpecSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is older than this slipway (it has no schema generation, this slipway's is "},
			},
			"one is newer by generation only": {
				newInstallationWithGeneration("999"),
				[]string{"note CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway (schema generation 999, this slipway's is "},
			},
			"one is newer and lacks a field": {
				changeFacts(newInstallationWithGeneration("999"), func(f *Facts) { delete(getSpecSchema(f, "nodegroups.slipway.dev"), "maxSize") }),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it is newer than this slipway (schema generation 999, this slipway's is "},
			},
			"another version": {
				changeFacts(newInstallation(), func(f *Facts) {
					versions, _, _ := unstructured.NestedSlice(f.CRDs["nodegroups.slipway.dev"].Object, "spec", "versions")
					versions[0].(map[string]any)["name"] = "v9"
					_ = unstructured.SetNestedSlice(f.CRDs["nodegroups.slipway.dev"].Object, versions, "spec", "versions")
				}),
				[]string{"problem CustomResourceDefinition nodegroups.slipway.dev: it does not serve version v1alpha1"},
			},
		},
		"leader": {
			"one leads":         {newInstallation(), nil},
			"it does not exist": {changeFacts(newInstallation(), func(f *Facts) { f.LeaderLeases = nil }), []string{"problem Lease slipway/slipway-manager: the Lease does not exist"}},
			"it has no holder":  {newInstallationWithLease(newLease("slipway-manager", "", noon)), []string{"problem Lease slipway/slipway-manager: it has no holder"}},
			"it is stale":       {newInstallationWithLease(newLease("slipway-manager", "m-1", noon.Add(-5*time.Minute))), []string{"problem Lease slipway/slipway-manager: its holder m-1 has not renewed it for 5m0s"}},
			"leader election is off": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.LeaderLeases, f.Deployments[0].Spec.Template.Spec.Containers[0].Args = nil, []string{"manager", "--leader-elect=false"}
				}), nil,
			},
			"the namespace of the Lease is in a variable": {
				changeFacts(newInstallation(), func(f *Facts) {
					c := &f.Deployments[0].Spec.Template.Spec.Containers[0]
					c.Args = []string{"manager", "--leader-election-namespace=$(LEASE_NAMESPACE)"}
					c.Env = []corev1.EnvVar{
						{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
						{Name: "LEASE_NAMESPACE", Value: "$(POD_NAMESPACE)"},
					}
				}), nil,
			},
			"the namespace of the Lease is in a ConfigMap": {
				changeFacts(newInstallation(), func(f *Facts) {
					c := &f.Deployments[0].Spec.Template.Spec.Containers[0]
					c.Args = []string{"manager", "--leader-election-namespace=$(LEASE_NAMESPACE)"}
					c.Env = []corev1.EnvVar{{Name: "LEASE_NAMESPACE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "namespace"}}}}
				}), nil,
			},
		},
		"agent-coverage": {
			"every taint is tolerated": {changeFacts(newInstallation(), func(f *Facts) { addTaint(f.Nodes[0], "spot", corev1.TaintEffectNoSchedule) }), nil},
			"a taint is not tolerated": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Tolerations = nil
					addTaint(f.Nodes[0], "spot", corev1.TaintEffectNoSchedule)
				}),
				[]string{"problem Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: it does not tolerate the taint spot:NoSchedule)"},
			},
			"default tolerations and PreferNoSchedule taints": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.Tolerations = nil
					addTaint(f.Nodes[0], corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
					addTaint(f.Nodes[0], "rather-not", corev1.TaintEffectPreferNoSchedule)
				}), nil,
			},
			"another operating system": {
				changeFacts(newInstallation(), func(f *Facts) { f.Nodes[0].Labels["kubernetes.io/os"] = "windows" }),
				[]string{"problem Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: its nodeSelector or node affinity does not match: missing kubernetes.io/os=linux)"},
			},
			"a virtual node": {
				changeFacts(newInstallation(), func(f *Facts) { f.Nodes[0].Labels = map[string]string{"type": "virtual-kubelet"} }), nil,
			},
			"a node of EKS Fargate": {
				changeFacts(newInstallation(), func(f *Facts) { f.Nodes[0].Labels = map[string]string{"eks.amazonaws.com/compute-type": "fargate"} }), nil,
			},
			"agents of one pool": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) { f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot" }),
				[]string{"warning Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: its nodeSelector or node affinity does not match: missing pool=spot)"},
			},
			"agents of a pool that does not exist": {
				changeFacts(newInstallation(), func(f *Facts) { f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot" }),
				[]string{"problem Node node-a: no agent can run on it (DaemonSet slipway/slipway-agent: its nodeSelector or node affinity does not match: missing pool=spot)"},
			},
			"agents of one pool, with an intolerable taint of the other node": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot"
					f.DaemonSets[0].Spec.Template.Spec.Tolerations = nil
					addTaint(f.Nodes[0], "gpu", corev1.TaintEffectNoSchedule)
				}),
				[]string{"warning Node node-a: no agent can run on it "},
			},
			"agents of one pool, and a node with another operating system": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot"
					f.Nodes[0].Labels[corev1.LabelOSStable] = "windows"
				}),
				[]string{"problem Node node-a: no agent can run on it "},
			},
			"agents of one pool, and agents of another operating system": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot"
					windows := newAgentDaemonSet()
					windows.Name, windows.Spec.Template.Spec.NodeSelector[corev1.LabelOSStable] = "slipway-agent-windows", "windows"
					f.DaemonSets = append(f.DaemonSets, windows)
				}),
				[]string{"warning Node node-a: no agent can run on it "},
			},
			"agents of one pool, and agents that do not tolerate a taint": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					f.DaemonSets[0].Spec.Template.Spec.NodeSelector["pool"] = "spot"
					other := newAgentDaemonSet()
					other.Name, other.Spec.Template.Spec.Tolerations = "slipway-agent-other", nil
					f.DaemonSets = append(f.DaemonSets, other)
					addTaint(f.Nodes[0], "gpu", corev1.TaintEffectNoSchedule)
				}),
				[]string{"problem Node node-a: no agent can run on it "},
			},
			"agents of one pool by affinity": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) { requireLabels(f.DaemonSets[0], map[string]string{"pool": "spot"}) }),
				[]string{"warning Node node-a: no agent can run on it "},
			},
			"agents of another architecture by affinity": {
				changeFacts(newInstallation(), func(f *Facts) { requireLabels(f.DaemonSets[0], map[string]string{corev1.LabelArchStable: "arm64"}) }),
				[]string{"problem Node node-a: no agent can run on it "},
			},
			"agents of one pool and of another architecture by affinity": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					requireLabels(f.DaemonSets[0], map[string]string{corev1.LabelArchStable: "arm64", "pool": "spot"})
				}),
				[]string{"problem Node node-a: no agent can run on it "},
			},
			"agents of one pool or of another architecture by affinity": {
				changeFacts(newInstallationWithSpotNode(), func(f *Facts) {
					requireLabels(f.DaemonSets[0], map[string]string{corev1.LabelArchStable: "arm64"}, map[string]string{"pool": "spot"})
				}),
				[]string{"warning Node node-a: no agent can run on it "},
			},
		},
		"agent-down": {
			"it runs":           {newInstallation(), nil},
			"it does not exist": {changeFacts(newInstallation(), func(f *Facts) { f.Pods = nil }), []string{"problem Node node-a: it has no agent pod"}},
			"it is pending": {
				changeFacts(newInstallation(), func(f *Facts) { f.Pods[0].Status.Phase = corev1.PodPending }),
				[]string{"problem Node node-a: its agent pod is pending"},
			},
		},
		"metadata-endpoint": {
			"the agent has read the notices": {newInstallation(), nil},
			"the agent has not read the notices": {
				changeFacts(newInstallation(), func(f *Facts) { f.Pods[0] = newAgentPod("node-a", false) }),
				[]string{"problem Node node-a: its agent runs and has not read the notices since it started"},
			},
			"the agent has just started": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.Pods[0] = newAgentPod("node-a", false)
					f.Pods[0].Status.StartTime.Time = noon.Add(-time.Minute)
				}),
				[]string{"note Node node-a: its agent has just started"},
			},
			"no readiness probe": {
				removeReadinessProbe(newInstallation()),
				[]string{"note Node node-a: it is unknown whether it reaches the metadata service: its agent pod has no readiness probe"},
			},
			"no readiness probe, metrics show a read": {
				removeReadinessProbe(newInstallationWithLastRead(LastRead{At: noon.Add(-time.Second)})), nil,
			},
			"no readiness probe, metrics show no read": {
				removeReadinessProbe(newInstallationWithLastRead(LastRead{})),
				[]string{"problem Node node-a: its agent runs and has not read the notices since it started"},
			},
			"no agent": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.Nodes = []*corev1.Node{newAzureNode("node-a")} }),
				[]string{"note Node node-a: it is unknown whether it reaches the metadata service: no agent"},
			},
			"no agent on AWS": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					n := newNode("node-a")
					n.Spec.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
					f.Nodes = []*corev1.Node{n}
				}),
				[]string{"note Node node-a: it is unknown whether it reaches the metadata service: no agent"},
			},
			"no cloud":                   {changeFacts(newEmptyCluster(), func(f *Facts) { f.Nodes = []*corev1.Node{newNode("node-a")} }), nil},
			"metrics show a recent read": {newInstallationWithLastRead(LastRead{At: noon.Add(-time.Second)}), nil},
			"metrics show an old read": {
				newInstallationWithLastRead(LastRead{At: noon.Add(-time.Hour)}),
				[]string{"problem Node node-a: its agent has not read the notices since 2026-05-04T11:00:00Z"},
			},
			"metrics show a source that was never read": {
				newInstallationWithLastRead(LastRead{Source: "aws-events"}),
				[]string{"problem Node node-a: its agent runs and has not read the notices of aws-events since it started"},
			},
			"metrics cannot be read": {
				newInstallationWithLastRead(LastRead{Err: errors.New("connection refused")}),
				[]string{"warning Node node-a: the metrics of its agent could not be read: connection refused"},
			},
		},
		"group-not-accepted": {
			"it is accepted": {changeFacts(newEmptyCluster(), func(f *Facts) { f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", linux, metav1.ConditionTrue, "")} }), nil},
			"it is not accepted": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", linux, metav1.ConditionFalse, "no such cloud")}
				}),
				[]string{"problem NodeGroup g: the manager does not act on it: no such cloud"},
			},
			"it is not observed yet": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", linux, "", "")} }),
				[]string{"warning NodeGroup g: no manager has observed it yet"},
			},
		},
		"manager-placement": {
			"on a node of a NodeGroup": {
				newInstallationWithManagerPod(func(*Facts) {}),
				[]string{"warning Pod slipway/slipway-manager-1: it runs on a node of the NodeGroup g: "},
			},
			"on another node": {
				newInstallationWithManagerPod(func(f *Facts) { f.Nodes[0].Labels = nil }), nil,
			},
			"on a node of the control plane": {
				newInstallationWithManagerPod(func(f *Facts) { f.Nodes[0].Labels["node-role.kubernetes.io/control-plane"] = "" }), nil,
			},
			"finished": {
				newInstallationWithManagerPod(func(f *Facts) { f.Pods[1].Status.Phase = corev1.PodFailed }), nil,
			},
			"not on a node yet": {
				newInstallationWithManagerPod(func(f *Facts) { f.Pods[1].Spec.NodeName = "" }), nil,
			},
			"of another Deployment": {
				newInstallationWithManagerPod(func(f *Facts) { f.Pods[1].OwnerReferences[0].Name = "web-5d5" }), nil,
			},
			"of a compatibility command": {
				newInstallationWithManagerPod(func(f *Facts) {
					installCompatibilityManager(f, 1, nil, "vmss-pod-watcher")
					p := newReplica("vmss-pod-watcher-1", "vmss-pod-watcher")
					p.Namespace, p.Spec.NodeName = "kube-system", f.Nodes[0].Name
					f.Pods[1] = p
				}), nil,
			},
		},
		"node-without-group": {
			"no manager and no group":     {changeFacts(newEmptyCluster(), func(f *Facts) { f.Nodes = []*corev1.Node{newNode("node-a")} }), nil},
			"a manager, and no group yet": {newInstallation(), []string{"note the cluster: there is no NodeGroup"}},
			"control plane and selected nodes are ignored": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", map[string]string{"pool": "ci"}, metav1.ConditionTrue, "")}
					f.Nodes = append(f.Nodes, newNode("cp"), newNode("ci-1"))
					f.Nodes[1].Labels["node-role.kubernetes.io/control-plane"], f.Nodes[2].Labels["pool"] = "", "ci"
				}),
				[]string{"warning Node node-a: no NodeGroup selects it"},
			},
			"a compatibility command without NodeGroups": {changeFacts(newInstallation(), func(f *Facts) { installCompatibilityManager(f, 1, nil, "openstack-autoscaler") }), nil},
			"a compatibility command and NodeGroups": {
				changeFacts(newInstallation(), func(f *Facts) {
					installCompatibilityManager(f, 1, nil, "vmss-pod-watcher")
					f.NodeGroups = []v1alpha1.NodeGroup{newGroup("g", map[string]string{"pool": "ci"}, metav1.ConditionTrue, "")}
				}), nil,
			},
		},
		"pdb-never-allows": {
			"maxUnavailable 0":  {newClusterWithPDBs(newPDB("b", "web", nil, none)), []string{"problem PodDisruptionBudget shop/b: maxUnavailable is 0: "}},
			"maxUnavailable 0%": {newClusterWithPDBs(newPDB("b", "web", nil, noPercent)), []string{"problem PodDisruptionBudget shop/b: maxUnavailable is 0%: "}},
			"minAvailable 100%": {newClusterWithPDBs(newPDB("b", "web", all, nil)), []string{"problem PodDisruptionBudget shop/b: minAvailable is 100%: "}},
			"minAvailable equals the replicas": {
				newClusterWithPDBs(setPDBStatus(newPDB("b", "web", two, nil), 2, 2, 2, 0)),
				[]string{"problem PodDisruptionBudget shop/b: 2 pods must be healthy, and 2 are expected: "},
			},
			"the controller reports an error": {
				newClusterWithPDBs(changePDB(setPDBStatus(newPDB("b", "web", nil, one), 0, 0, 0, 0), func(b *policyv1.PodDisruptionBudget) {
					b.Status.Conditions = []metav1.Condition{{
						Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.SyncFailedReason, Message: "no scale",
					}}
				})),
				[]string{"problem PodDisruptionBudget shop/b: the disruption controller cannot compute it (no scale): "},
			},
			"it allows evictions":              {newClusterWithPDBs(setPDBStatus(newPDB("b", "web", one, nil), 2, 1, 2, 1)), nil},
			"it allows evictions when healthy": {newClusterWithPDBs(setPDBStatus(newPDB("b", "web", one, nil), 1, 1, 2, 0)), nil},
			"the status is not current":        {newClusterWithPDBs(changePDB(setPDBStatus(newPDB("b", "web", one, nil), 2, 2, 2, 0), func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })), nil},
			"it has no pods":                   {newClusterWithPDBs(newPDB("b", "other", nil, none)), nil},
		},
		"pdb-blocks-now": {
			"too few are healthy": {
				newClusterWithPDBs(setPDBStatus(newPDB("b", "web", one, nil), 1, 1, 2, 0)),
				[]string{"warning PodDisruptionBudget shop/b: 1 of 2 pods are healthy and 1 must be"},
			},
			"it never allows":        {newClusterWithPDBs(setPDBStatus(newPDB("b", "web", two, nil), 1, 2, 2, 0)), nil},
			"an eviction is allowed": {newClusterWithPDBs(setPDBStatus(newPDB("b", "web", one, nil), 2, 1, 2, 1)), nil},
			"an eviction is in progress": {
				newClusterWithPDBs(changePDB(setPDBStatus(newPDB("b", "web", one, nil), 1, 1, 2, 0), func(b *policyv1.PodDisruptionBudget) {
					b.Status.DisruptedPods = map[string]metav1.Time{"web-1": {Time: noon}}
				})), nil,
			},
		},
		"pdb-overlap": {
			"two budgets select a pod": {
				newClusterWithPDBs(newPDB("b", "web", nil, one), newPDB("a", "web", nil, one)),
				[]string{"problem Deployment shop/web: its pods are selected by 2 disruption budgets (a, b)"},
			},
			"one budget selects a pod": {newClusterWithPDBs(newPDB("b", "web", nil, one), newPDB("a", "db", nil, one)), nil},
		},
		"pdb-matches-nothing": {
			"a selector with a typing error": {
				newClusterWithPDBs(newPDB("b", "wbe", nil, one)), []string{"warning PodDisruptionBudget shop/b: its selector (app=wbe) matches no pod"},
			},
			"no selector": {
				newClusterWithPDBs(changePDB(newPDB("b", "web", nil, one), func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })),
				[]string{"warning PodDisruptionBudget shop/b: its selector (<none>) matches no pod"},
			},
			"an empty selector": {
				newClusterWithPDBs(changePDB(newPDB("b", "web", nil, one), func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })), nil,
			},
		},
		"single-replica": {
			"explicit and default replicas": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					f.Deployments = []*appsv1.Deployment{newDeployment("shop", "web", 1), newDeployment("shop", "api", 2)}
					f.StatefulSets = []*appsv1.StatefulSet{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}}
				}),
				[]string{"warning Deployment shop/web: it has one replica", "warning StatefulSet shop/db: it has one replica"},
			},
			"a manager without leader election": {changeFacts(newInstallation(), func(f *Facts) { installCompatibilityManager(f, 1, nil, "vmss-pod-watcher") }), nil},
			"a manager with leader election": {
				changeFacts(newInstallation(), func(f *Facts) { installCompatibilityManager(f, 1, nil, "vmss-pod-watcher", "--leader-elect") }),
				[]string{"warning Deployment kube-system/vmss-pod-watcher: it has one replica"},
			},
		},
		"pod-without-controller": {
			"finished, static and controlled pods are ignored": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					over, mirror := newPod("shop", "over", nil), newPod("kube-system", "etcd", nil)
					over.Status.Phase, mirror.Annotations = corev1.PodSucceeded, map[string]string{corev1.MirrorPodAnnotationKey: "x"}
					f.Pods = []*corev1.Pod{newPod("shop", "debug", nil), over, mirror, newReplica("web-1", "web")}
				}),
				[]string{"warning Pod shop/debug: no controller would recreate it"},
			},
			"pods that a voluntary drain evicts or awaits are ignored": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					safe, terminating := newPod("shop", "safe", nil), newPod("shop", "terminating", nil)
					safe.Annotations = map[string]string{drainability.SafeToEvict: "true"}
					terminating.DeletionTimestamp = &metav1.Time{Time: noon}
					f.Pods = []*corev1.Pod{safe, terminating}
				}), nil,
			},
			"a protected pod": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					p := newPod("shop", "protected", nil)
					p.Annotations = map[string]string{drainability.SafeToEvict: "false"}
					f.Pods = []*corev1.Pod{p}
				}),
				[]string{"warning Pod shop/protected: no controller would recreate it"},
			},
		},
		"other-tool": {
			"an image": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.DaemonSets = append(f.DaemonSets, newDaemonSet("x", "ghcr.io/kubereboot/kured:1.20"))
				}),
				[]string{"warning DaemonSet kube-system/x: kured, by its image ghcr.io/kubereboot/kured:1.20: "},
			},
			"a name, and an agent": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.DaemonSets = append(f.DaemonSets, newDaemonSet("aks-node-termination-handler", "mirror.example.com/nth"))
				}),
				[]string{"problem DaemonSet kube-system/aks-node-termination-handler: aks-node-termination-handler, by its name: "},
			},
			"a DaemonSet on other nodes than the agents": {
				newInstallationBesideMechanic(),
				[]string{"warning DaemonSet kube-system/mechanic: mechanic, by its name: it cordons and drains for the same Azure notices as the agent; " +
					"now it and the agents run on different nodes"},
			},
			"a DaemonSet on other nodes than the agents, and on one node with an agent": {
				changeFacts(newInstallationBesideMechanic(), func(f *Facts) { f.Nodes[1].Labels["pool"] = "spot" }),
				[]string{"problem DaemonSet kube-system/mechanic: mechanic, by its name: it cordons and drains for the same Azure notices as the agent"},
			},
			"a DaemonSet, and agents that select no node": {
				changeFacts(newInstallationBesideMechanic(), func(f *Facts) { f.Nodes[0].Labels["pool"] = "other" }),
				[]string{"problem DaemonSet kube-system/mechanic: mechanic, by its name: it cordons and drains for the same Azure notices as the agent"},
			},
			"a Deployment, and agents of one pool": {
				changeFacts(newInstallationBesideMechanic(), func(f *Facts) {
					f.DaemonSets = f.DaemonSets[:1]
					f.Deployments = append(f.Deployments, newDeployment("kube-system", "draino", 1))
				}),
				[]string{"problem Deployment kube-system/draino: draino, by its name: "},
			},
			"a DaemonSet on other nodes than the agents, and an agent in a Deployment": {
				changeFacts(newInstallationBesideMechanic(), func(f *Facts) {
					d := newDeployment("kube-system", "queue", 1)
					d.Spec.Template = newTemplate("example.com/slipway:v1", "aws-node-termination-handler")
					f.Deployments = append(f.Deployments, d)
				}),
				[]string{"problem DaemonSet kube-system/mechanic: mechanic, by its name: "},
			},
			"a name, and no agent": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.DaemonSets = []*appsv1.DaemonSet{newDaemonSet("mechanic", "example.com/m")} }),
				[]string{"note DaemonSet kube-system/mechanic: mechanic, by its name: "},
			},
			"a compatibility command of Slipway": {
				changeFacts(newInstallation(), func(f *Facts) {
					d := newDaemonSet("mechanic", "example.com/slipway:v1")
					d.Spec.Template.Spec.Containers[0].Args = []string{"mechanic"}
					f.DaemonSets = []*appsv1.DaemonSet{d}
				}), nil,
			},
			"a ConfigMap of a managed control plane": {
				changeFacts(newInstallation(), func(f *Facts) { f.ToolConfigMaps = map[Key]bool{{"kube-system", "cluster-autoscaler-status"}: true} }),
				[]string{"warning ConfigMap kube-system/cluster-autoscaler-status: cluster-autoscaler, by its ConfigMap: "},
			},
			"an API group": {
				changeFacts(newInstallation(), func(f *Facts) { f.APIGroups = []string{"apps", "karpenter.sh"} }),
				[]string{"warning APIGroup karpenter.sh: Karpenter, by its API group: "},
			},
			"an annotation": {
				changeFacts(newInstallation(), func(f *Facts) {
					f.Nodes[0].Annotations = map[string]string{"weave.works/kured-reboot-in-progress": "now"}
				}),
				[]string{"warning Node node-a: kured, by its annotation weave.works/kured-reboot-in-progress: "},
			},
			"AKS node auto-drain": {
				changeFacts(newInstallation(), func(f *Facts) { f.ToolConfigMaps = map[Key]bool{{"kube-system", "remediator-config"}: true} }),
				[]string{"note ConfigMap kube-system/remediator-config: AKS node auto-drain, by its ConfigMap: "},
			},
			"AKS node auto-drain by a node label": {
				changeFacts(newInstallation(), func(f *Facts) {
					for _, name := range []string{"node-b", "node-c"} {
						n := newAzureNode(name)
						n.Labels["kubernetes.azure.com/cluster"] = "MC_group_cluster_westeurope"
						f.Nodes = append(f.Nodes, n)
					}
				}),
				[]string{"note the cluster: AKS node auto-drain, by its nodes' label kubernetes.azure.com/cluster: "},
			},
			"AKS node auto-drain by a taint": {
				changeFacts(newInstallation(), func(f *Facts) {
					addTaint(f.Nodes[0], "remediator.kubernetes.azure.com/unschedulable", corev1.TaintEffectNoSchedule)
				}),
				[]string{"note Node node-a: AKS node auto-drain, by its taint remediator.kubernetes.azure.com/unschedulable: "},
			},
			"Azure nodes without AKS": {newInstallation(), nil},
		},
		"other-tool-at-work": {
			"taints of three tools": {
				changeFacts(newEmptyCluster(), func(f *Facts) {
					f.Nodes = []*corev1.Node{
						addTaint(newNode("a"), "ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule),
						addTaint(newNode("b"), "karpenter.sh/disrupted", corev1.TaintEffectNoSchedule),
						addTaint(newNode("c"), "remediator.kubernetes.azure.com/unschedulable", corev1.TaintEffectNoSchedule),
						addTaint(newNode("d"), "example.com/other", corev1.TaintEffectNoSchedule),
					}
				}),
				[]string{"note Node c: AKS node auto-drain (taint ", "note Node b: Karpenter (taint ", "note Node a: cluster-autoscaler (taint "},
			},
		},
		"clock-here": {
			"equal": {newEmptyCluster(), nil},
			"ahead": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.Clock.Local = noon.Add(time.Minute) }),
				[]string{"warning the cluster: the local clock is 1m0s ahead of the API server's clock"},
			},
			"behind by less than the error": {
				changeFacts(newEmptyCluster(), func(f *Facts) { f.Clock.Local, f.Clock.MaxError = noon.Add(-10*time.Second), 8*time.Second }), nil,
			},
		},
		"clock-node": {
			"equal":                   {newClusterWithLease(newNode("node-a"), newDatedLease(noon.Add(700*time.Millisecond))), nil},
			"a little ahead":          {newClusterWithLease(newNode("node-a"), newDatedLease(noon.Add(5*time.Second))), []string{"warning Node node-a: its clock is 5s ahead of the API server's clock: "}},
			"far behind":              {newClusterWithLease(newNode("node-a"), newDatedLease(noon.Add(-time.Minute))), []string{"problem Node node-a: its clock is 1m0s behind the API server's clock: "}},
			"in the future":           {newClusterWithLease(newNode("node-a"), newLease("node-a", "", noon.Add(time.Hour))), []string{"problem Node node-a: its clock is 1h0m0s ahead"}},
			"expired, node Ready":     {newClusterWithLease(newNode("node-a"), newLease("node-a", "", noon.Add(-time.Hour))), []string{"problem Node node-a: its clock is 1h0m0s behind"}},
			"renewed a while ago":     {newClusterWithLease(newNode("node-a"), newLease("node-a", "", noon.Add(-20*time.Second))), nil},
			"expired, node not Ready": {newClusterWithLease(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, newLease("node-a", "", noon.Add(-time.Hour))), nil},
		},
	}
}

func changePDB(b *policyv1.PodDisruptionBudget, with func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	with(b)
	return b
}

func newInstallationWithLease(l *coordinationv1.Lease) *Facts {
	return changeFacts(newInstallation(), func(f *Facts) { f.LeaderLeases[Key{"slipway", "slipway-manager"}] = l })
}

// removeReadinessProbe removes the readiness probe of the agent pod.
func removeReadinessProbe(f *Facts) *Facts {
	return changeFacts(f, func(f *Facts) { f.Pods[0].Spec.Containers[0].ReadinessProbe = nil })
}

func newInstallationWithLastRead(l LastRead) *Facts {
	return changeFacts(newInstallation(), func(f *Facts) { f.LastReads = map[Key]LastRead{{"slipway", "slipway-agent-node-a"}: l} })
}

// newInstallationWithGeneration returns an installation with another schema generation of the NodeGroup CRD.
func newInstallationWithGeneration(generation string) *Facts {
	return changeFacts(newInstallation(), func(f *Facts) {
		f.CRDs["nodegroups.slipway.dev"].SetAnnotations(map[string]string{crds.GenerationAnnotation: generation})
	})
}

// getSpecSchema returns the properties of spec in a CRD.
func getSpecSchema(f *Facts, name string) map[string]any {
	versions := f.CRDs[name].Object["spec"].(map[string]any)["versions"].([]any)
	root := versions[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	return root["properties"].(map[string]any)["spec"].(map[string]any)["properties"].(map[string]any)
}

func TestEachRuleFindsItsCases(t *testing.T) {
	for _, rule := range ListRules() {
		if newRuleCases()[rule.Name] == nil {
			t.Errorf("rule %s has no case", rule.Name)
		}
	}
	for rule, all := range newRuleCases() {
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
						t.Errorf("%s has no remedy", rule)
					}
				}
			})
		}
	}
}

func TestHealthyInstallationHasNoFindings(t *testing.T) {
	if r := Diagnose(newInstallation()); r.CountFindings(Problem)+r.CountFindings(Warning) > 0 || len(r.Unchecked) > 0 || len(r.Parts) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestRuleWithUnreadableObjectsIsNotChecked(t *testing.T) {
	for _, rule := range ListRules() {
		for _, reading := range rule.requires {
			f := newInstallation()
			f.ReadErrors[reading] = newForbiddenError("x")
			r := Diagnose(f)
			if !slices.ContainsFunc(r.Unchecked, func(u UncheckedRule) bool {
				return u.Rule == rule.Name && strings.Contains(u.Reason, string(reading))
			}) {
				t.Errorf("without %s, %s was checked", reading, rule.Name)
			}
			if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == rule.Name }) {
				t.Errorf("without %s, %s has findings", reading, rule.Name)
			}
		}
	}
}

func TestPartlyReadRuleIsReported(t *testing.T) {
	for _, reading := range []Reading{toolConfigMapsReading, apiGroupsReading} {
		f := changeFacts(newInstallation(), func(f *Facts) {
			f.DaemonSets = append(f.DaemonSets, newDaemonSet("mechanic", "example.com/mechanic:v1"))
			f.ReadErrors[reading] = newForbiddenError("x")
		})
		r := Diagnose(f)
		if want := (UncheckedRule{"other-tool", "partly; not read: " + string(reading)}); !slices.Contains(r.Unchecked, want) {
			t.Errorf("without %s, unchecked rules are %v", reading, r.Unchecked)
		}
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == "other-tool" }) {
			t.Errorf("without %s, other-tool has no finding", reading)
		}
	}
}

func TestEveryReadingHasARight(t *testing.T) {
	for _, rule := range ListRules() {
		for _, reading := range slices.Concat(rule.requires, rule.optionalReadings) {
			if _, ok := rightsByReading[reading]; !ok && reading != clockReading {
				t.Errorf("rule %s needs %s, which has no permission", rule.Name, reading)
			}
		}
	}
}

func TestPDBFindingNamesPodOwners(t *testing.T) {
	r := Diagnose(newClusterWithPDBs(newPDB("b", "web", nil, none)))
	want := []Object{{"Deployment", "shop", "web"}}
	for _, f := range r.Findings {
		if f.Rule == "pdb-never-allows" {
			check.Equal(t, want, f.Owners)
			return
		}
	}
	t.Error("no finding of pdb-never-allows")
}

func TestPartsAreFoundByCommandOrLabel(t *testing.T) {
	for name, c := range map[string]struct {
		image   string
		command []string
		args    []string
		labels  map[string]string
		want    PartKind
	}{
		"small agent":            {image: "r.example.com:5000/slipway-agent:v1", want: Agent},
		"agent in slipway":       {image: "slipway@sha256:00", args: []string{"agent", "--listen=:1"}, want: Agent},
		"manager by its command": {image: "x", command: []string{"/usr/bin/slipway", "manager"}, want: Manager},
		"on Windows":             {image: "x", command: []string{`C:\slipway-agent.exe`}, want: Agent},
		"compatibility command":  {image: "slipway", args: []string{"kubeaware-cloudpool-proxy"}, want: Cloudpool},
		"custom image, by label": {image: "x", labels: map[string]string{"app.kubernetes.io/name": "slipway-cloudpool"}, want: Cloudpool},
		"custom command, by label": {
			image: "slipway", args: []string{"--listen=:1"}, want: Manager, labels: map[string]string{"app.kubernetes.io/name": "slipway-manager"},
		},
		"chart's labels": {
			image: "x", want: Manager,
			labels: map[string]string{"app.kubernetes.io/name": "slipway", "app.kubernetes.io/component": "manager"},
		},
		"another command": {image: "slipway", args: []string{"plan"}},
		"another program": {image: "slipway-fan:v1", args: []string{"agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := newTemplate(c.image, c.args...)
			tmpl.Labels, tmpl.Spec.Containers[0].Command = c.labels, c.command
			got, _ := partOfWorkload("Deployment", metav1.ObjectMeta{}, &tmpl)
			check.Is(t, c.want, got.Kind)
			if got.isCompatibilityCommand() {
				t.Errorf("%q is taken as a compatibility command", got.Command)
			}
		})
	}
}

func TestFlagsOfPartAreParsed(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want bool
	}{
		"not there":                  {[]string{"--other"}, false},
		"without a value":            {[]string{"--flag"}, true},
		"before another flag":        {[]string{"--flag", "--other"}, true},
		"with the next argument":     {[]string{"--flag", "a,b"}, true},
		"one dash":                   {[]string{"-flag"}, true},
		"false":                      {[]string{"--flag=false"}, false},
		"false in another form":      {[]string{"--flag=False"}, false},
		"f":                          {[]string{"--flag=f"}, false},
		"true in another form":       {[]string{"--flag=T"}, true},
		"the number 0":               {[]string{"--flag", "0"}, false},
		"a number":                   {[]string{"--flag=3"}, true},
		"never":                      {[]string{"--flag=never"}, false},
		"another word":               {[]string{"--flag=annotated"}, true},
		"an empty value":             {[]string{"--flag="}, false},
		"twice, the last is on":      {[]string{"--flag=false", "--flag"}, true},
		"twice, the last is off":     {[]string{"--flag", "--other", "--flag=false"}, false},
		"a value in a ConfigMap":     {[]string{"--flag=$(UNKNOWN)"}, false},
		"an argument in a ConfigMap": {[]string{"--flag", "$(UNKNOWN)"}, false},
	} {
		p := Part{Args: c.args}
		if got := p.isFlagEnabled("flag"); got != c.want {
			t.Errorf("%s: %q is %t, want %t", name, c.args, got, c.want)
		}
	}
}

func TestVariablesInArgumentsAreExpanded(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": ""}
	for in, want := range map[string]string{
		"--x=$(A)": "--x=1", "$(A)$(A)": "11", "--x=$(EMPTY)": "--x=", "$(UNKNOWN)": "$(UNKNOWN)", "$$(A)": "$(A)", "$$$(A)": "$1", "$A $": "$A $", "$(A": "$(A",
	} {
		check.Is(t, want, expandVariables(in, env))
	}
}
