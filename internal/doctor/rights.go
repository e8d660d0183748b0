package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// partNamespace is a placeholder for a part's own namespace in a [Permission].
const partNamespace = "."

// Permission is a permission that an account needs, and what the account needs it for.
type Permission struct {
	Verb string `json:"verb"`
	// Group is the API group. Empty means the core group.
	Group string `json:"group,omitempty"`
	// Resource can have a subresource, as in pods/eviction.
	Resource string `json:"resource"`
	// Name restricts the permission to one object.
	Name string `json:"name,omitempty"`
	// Namespace restricts the permission to one namespace. Empty means all.
	Namespace string `json:"namespace,omitempty"`
	// Purpose says what the permission is needed for.
	Purpose string `json:"for"`

	// flag is the flag that makes the permission necessary.
	flag string
	// optional permissions are needed only for some users.
	optional bool
}

// String returns the permission as text, such as "list poddisruptionbudgets.policy in namespace slipway".
func (r Permission) String() string {
	s := r.Verb + " " + r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Namespace != "" {
		s += " in namespace " + r.Namespace
	}
	return s
}

// withPartNamespace returns the permission with the given namespace instead of the placeholder partNamespace.
func (r Permission) withPartNamespace(namespace string) Permission {
	if r.Namespace == partNamespace {
		r.Namespace = namespace
	}
	return r
}

// newRights returns one permission for each verb in verbs.
func newRights(group, resource, verbs, what string) []Permission {
	var all []Permission
	for verb := range strings.SplitSeq(verbs, " ") {
		all = append(all, Permission{Verb: verb, Group: group, Resource: resource, Purpose: what})
	}
	return all
}

// changeRights returns the permissions after a call of change for each of them.
func changeRights(rights []Permission, change func(*Permission)) []Permission {
	for i := range rights {
		change(&rights[i])
	}
	return rights
}

func setPartNamespace(r *Permission)         { r.Namespace = partNamespace }
func setOptional(r *Permission)              { r.optional = true }
func withName(name string) func(*Permission) { return func(r *Permission) { r.Name = name } }

// withFlag returns a change for changeRights. After the change, the permission is needed only if the flag is set.
func withFlag(flag string) func(*Permission) { return func(r *Permission) { r.flag = flag } }

const (
	coordinationGroup = "coordination.k8s.io"
	slipwayGroup      = "slipway.dev" //nolint:gosec // an API group, not a credential
	storageGroup      = "storage.k8s.io"
)

// listPartRights returns the permissions that a part's account needs. They equal the roles in deploy/.
func listPartRights(p *Part) []Permission {
	switch p.Kind {
	case Agent:
		return listAgentRights()
	case Manager:
		return listManagerRights(p)
	case Cloudpool:
		return listCloudpoolRights()
	}
	return nil
}

func listAgentRights() []Permission {
	return slices.Concat(
		newRights("", "nodes", "get list watch", "to read its node, and the other nodes of a notice"),
		newRights("", "nodes", "patch", "to cordon and restore its node"),
		changeRights(newRights("", "nodes/status", "patch", "to set the node's lifecycle conditions"), setOptional),
		newRights("", "pods", "list watch", "to read the pods on its node"),
		newRights("", "pods/eviction", "create", "to drain"),
		changeRights(newRights("", "pods", "delete", "to delete a pod at the deadline if a disruption budget blocks its eviction; otherwise it is killed with the instance"), setOptional),
		changeRights(newRights("", "pods/status", "patch", "to set the condition DisruptionTarget of a deleted pod; otherwise its Job counts a failure"), setOptional),
		newRights("policy", "poddisruptionbudgets", "list watch", "to name the blocking disruption budget, and to continue when it allows evictions"),
		changeRights(newRights("scheduling.k8s.io", "podgroups", "get", "to read whether the pods of a PodGroup lose their work together; otherwise each PodGroup counts so"), setOptional),
		listEvictionRequestRights(),
		newRights("", "events", "create", "to write events"),
		changeRights(newRights("", "persistentvolumeclaims", "get", "--wait-for-detach"), withFlag("wait-for-detach")),
		changeRights(newRights(storageGroup, "volumeattachments", "list", "--wait-for-detach"), withFlag("wait-for-detach")),
		listDrainSlotRights(),
		listSurgeRights(),
	)
}

// listSurgeRights returns the permissions of an agent that starts successors of pods.
func listSurgeRights() []Permission {
	const owner, size = "--surge: to read a pod's owner", "--surge: to start the successor of a pod"
	return changeRights(slices.Concat(
		newRights("apps", "deployments", "get", owner), newRights("apps", "replicasets", "get", owner),
		newRights("apps", "deployments/scale", "update", size), newRights("apps", "replicasets/scale", "update", size),
		newRights("", "replicationcontrollers", "get", owner), newRights("", "replicationcontrollers/scale", "update", size),
		newRights("argoproj.io", "rollouts", "get", owner), newRights("argoproj.io", "rollouts/scale", "update", size),
		newRights("apps.kruise.io", "clonesets", "get", owner), newRights("apps.kruise.io", "clonesets/scale", "update", size),
		newRights("autoscaling", "horizontalpodautoscalers", "get list patch", size), newRights("keda.sh", "scaledobjects", "get patch", size),
		newRights("", "pods", "get patch", "--surge: to set the deletion cost of a pod"),
		newRights("discovery.k8s.io", "endpointslices", "list", "--surge: to wait until the successor gets traffic"),
		newRights("", "persistentvolumeclaims", "get", "--surge: to find volumes that only one node can use"),
		changeRights(newRights(coordinationGroup, "leases", "get list create update delete", "--surge: to record surges, and to restore those of crashed agents"), setPartNamespace),
	), withFlag(surgeFlag))
}

// listEvictionRequestRights returns the permissions to ask the responders of pods. Without them the pods are evicted.
func listEvictionRequestRights() []Permission {
	const group = "lifecycle.k8s.io"
	return changeRights(slices.Concat(
		newRights(group, "evictionrequests", "list watch create patch delete", "to ask the responders of a pod before its eviction"),
		newRights(group, "evictions", "list watch", "to read what the responders of a pod answer"),
	), setOptional)
}

func listDrainSlotRights() []Permission {
	return changeRights(slices.Concat(
		changeRights(newRights(coordinationGroup, "leases", "list create", "--max-concurrent-drains"), setPartNamespace),
		changeRights(changeRights(newRights(coordinationGroup, "leases", "update", "--max-concurrent-drains"), setPartNamespace), withName("slipway-drain-0")),
	), withFlag(maxConcurrentDrains))
}

func listManagerRights(p *Part) []Permission {
	return slices.Concat(
		newRights(slipwayGroup, "nodegroups", "get list watch", "to read the groups"),
		newRights(slipwayGroup, "nodegroups/status", "update patch", "to write the status of the groups"),
		newRights(slipwayGroup, "noderetirements", "get list watch create update delete", "to take nodes out of service"),
		newRights(slipwayGroup, "noderetirements/status", "update", "to record the progress of a retirement"),
		newRights("", "nodes", "get list watch patch delete", "to cordon nodes, and to delete Nodes of removed instances"),
		changeRights(newRights("", "nodes/status", "patch", "to set the node's lifecycle conditions"), setOptional),
		newRights("", "pods", "list watch", "to read the pods of retired and of idle nodes"),
		newRights("", "pods/eviction", "create", "to drain"),
		listEvictionRequestRights(),
		newRights("policy", "poddisruptionbudgets", "list watch", "to name the blocking disruption budget"),
		changeRights(newRights("scheduling.k8s.io", "podgroups", "get", "to read whether the pods of a PodGroup lose their work together; otherwise each PodGroup counts so"), setOptional),
		newRights("", "persistentvolumeclaims", "get list watch", "to know whether pods with volumes fit elsewhere"),
		newRights(storageGroup, "volumeattachments", "list watch", "to know whether volumes are detached, and the volume limits of nodes"),
		newRights(storageGroup, "storageclasses", "list watch", "to know whether pods with volumes fit elsewhere"),
		newRights(storageGroup, "csinodes", "list watch", "to know the volume limits of nodes"),
		newRights(storageGroup, "csidrivers", "list watch", "to know whether pods with volumes fit elsewhere"),
		newRights("", "persistentvolumes", "list watch", "to know which nodes reach a volume"),
		newRights("resource.k8s.io", "deviceclasses", "list watch", "to know whether pods with devices fit elsewhere"),
		newRights("apps", "daemonsets", "list watch", "to know the DaemonSet pods of a new node"),
		newRights("", "namespaces", "list watch", "to evaluate namespace selectors of pod affinity"),
		newRights("events.k8s.io", "events", "create patch", "to write events"),
		listLeaderRights(p),
		listCRDInstallRights(p),
		listQueueRights(),
	)
}

// listQueueRights returns the permissions of a manager that drains nodes for the notices of a queue.
func listQueueRights() []Permission {
	return changeRights(slices.Concat(
		newRights("", "pods", "delete", "--aws-queue-url: to delete a pod at the deadline if a disruption budget blocks its eviction"),
		newRights("", "pods/status", "patch", "--aws-queue-url: to set the condition DisruptionTarget of a deleted pod"),
		newRights("", "events", "create", "--aws-queue-url: to write the Events of a drain"),
	), withFlag(queueURL))
}

func listLeaderRights(p *Part) []Permission {
	all := slices.Concat(
		changeRights(newRights("", "events", "create patch", "to write leader election events"), setPartNamespace),
		changeRights(newRights("events.k8s.io", "events", "create patch", "to write leader election events"), setPartNamespace),
		changeRights(newRights(coordinationGroup, "leases", "create", "leader election"), setPartNamespace),
	)
	if name := p.findLeaseName(); name != "" {
		all = append(all, changeRights(changeRights(newRights(coordinationGroup, "leases", "get update", "leader election"), setPartNamespace), withName(name))...)
	}
	return changeRights(all, withFlag(leaderElect))
}

// listCRDInstallRights returns the permissions to install the CRDs. A compatibility command installs the CRDs by
// default. Without permission it uses the installed CRDs.
func listCRDInstallRights(p *Part) []Permission {
	const definitions = "customresourcedefinitions"
	all := newRights(extensionsGroup, definitions, "create", "--install-crds")
	for _, name := range []string{"nodegroups.slipway.dev", "noderetirements.slipway.dev", "poolupdates.slipway.dev"} {
		all = append(all, changeRights(newRights(extensionsGroup, definitions, "get patch", "--install-crds"), withName(name))...)
	}
	if _, given := p.flagValue(installCRDs); p.isCompatibilityCommand() && !given {
		changeRights(all, setOptional)
	}
	return changeRights(all, withFlag(installCRDs))
}

func listCloudpoolRights() []Permission {
	return slices.Concat(
		newRights(slipwayGroup, "nodegroups", "get list watch", "to read the groups of the pools"),
		newRights(slipwayGroup, "noderetirements", "get list watch create delete", "to remove instances by retirements"),
		newRights("", "nodes", "list watch", "to match instances and nodes"),
		newRights("", "pods", "list watch", "to choose instances with pods that fit elsewhere"),
		newRights("", "namespaces", "list watch", "to evaluate namespace selectors of pod affinity"),
		newRights("", "persistentvolumeclaims", "list watch", "to know whether pods with volumes fit elsewhere"),
		newRights("", "persistentvolumes", "list watch", "to know which nodes reach a volume"),
		newRights("policy", "poddisruptionbudgets", "list watch", "to choose instances with pods that may be evicted"),
		newRights(storageGroup, "storageclasses", "list watch", "to know whether pods with volumes fit elsewhere"),
		newRights(storageGroup, "csinodes", "list watch", "to know the volume limits of nodes"),
		newRights(storageGroup, "csidrivers", "list watch", "to know whether pods with volumes fit elsewhere"),
		newRights(storageGroup, "volumeattachments", "list watch", "to know the volume limits of nodes"),
		newRights("resource.k8s.io", "deviceclasses", "list watch", "to know whether pods with devices fit elsewhere"),
		changeRights(newRights(coordinationGroup, "leases", "list create update", "so that one process at a time changes a pool"), setPartNamespace),
		changeRights(newRights(slipwayGroup, "poolupdates", "get list watch create delete", "to record the updates of a pool"), setPartNamespace),
		changeRights(newRights(slipwayGroup, "poolupdates/status", "update", "to record the progress of an update"), setPartNamespace),
		changeRights(newRights("", "configmaps", "get create update", "to record whether a pool is started, and to read the data of older versions"), setPartNamespace),
		changeRights(newRights("", "nodes", "patch", "--native: to store the states of an instance as annotations of its Node"), withFlag("native")),
		changeRights(newRights(slipwayGroup, "nodegroups/status", "patch", "--native: to record a launch before the request to the cloud"), withFlag("native")),
		changeRights(newRights("authentication.k8s.io", "tokenreviews", "create", "--authorize: to authenticate clients"), withFlag("authorize")),
		changeRights(newRights("authorization.k8s.io", "subjectaccessreviews", "create", "--authorize: to authorize clients"), withFlag("authorize")),
	)
}

// checkPartRights finds permissions that the accounts of installed parts lack.
func checkPartRights(f *Facts) []Finding {
	var found []Finding
	for _, a := range f.PartAccess {
		if a.Allowed || a.Permission.flag != "" && !a.Part.isFlagEnabled(a.Permission.flag) {
			continue
		}
		finding := Finding{
			Severity: Problem, Object: Object{"ServiceAccount", a.Part.namespace(), a.Part.ServiceAccount}, Owners: []Object{a.Part.Object},
			Message: fmt.Sprintf("the %s may not %s: %s", a.Part.Kind, a.Permission, a.Permission.Purpose),
			Remedy:  fmt.Sprintf("bind it to the roles of deploy/%s/rbac.yaml", a.Part.Kind),
		}
		switch {
		case a.Permission.flag == installCRDs:
			finding.Remedy = "bind it to the ClusterRole of deploy/manager/install-crds.yaml"
		case a.Permission.flag == surgeFlag:
			finding.Remedy = "add the component deploy/agent/surge to its kustomization, or set agent.config.surge of the chart"
		case a.Permission.flag == queueURL:
			finding.Remedy = "add the component deploy/manager/queue to its kustomization, or set manager.awsQueue.url of the chart instead of the argument"
		case a.Permission.Name != "" && a.Permission.flag == leaderElect && a.Part.isCompatibilityCommand():
			finding.Remedy = fmt.Sprintf("add this Lease to its Role, as docs/moving-from-%s.md says", a.Part.Command)
		}
		if a.Permission.optional {
			finding.Severity = Note
			finding.Remedy += ", unless this is intended"
		}
		found = append(found, finding)
	}
	return found
}

// rightsByReading holds the permission that the doctor needs for each reading.
var rightsByReading = map[Reading]Permission{
	nodesReading:        {Verb: "list", Resource: "nodes", Purpose: "to find nodes without an agent"},
	podsReading:         {Verb: "list", Resource: "pods", Purpose: "to find agents, pods without a controller, and the pods of budgets"},
	pdbsReading:         {Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", Purpose: "to find budgets that never allow an eviction"},
	deploymentsReading:  {Verb: "list", Group: "apps", Resource: "deployments", Purpose: "to find the manager, other tools, and single replicas"},
	statefulSetsReading: {Verb: "list", Group: "apps", Resource: "statefulsets", Purpose: "to find single replicas"},
	daemonSetsReading:   {Verb: "list", Group: "apps", Resource: "daemonsets", Purpose: "to find the agents, and other tools"},
	nodeLeasesReading: {
		Verb: "list", Group: coordinationGroup, Resource: "leases", Namespace: nodeLeaseNamespace, Purpose: "to compare the nodes' clocks",
	},
	leaderLeasesReading:   {Verb: "get", Group: coordinationGroup, Resource: "leases", Name: managerLeaseName, Purpose: "to check the leader"},
	toolConfigMapsReading: {Verb: "get", Resource: "configmaps", Namespace: "kube-system", Purpose: "to find tools in a managed control plane"},
	crdsReading: {
		Verb: "get", Group: extensionsGroup, Resource: "customresourcedefinitions", Purpose: "to compare Slipway's CRDs with this binary",
	},
	nodeGroupsReading: {Verb: "list", Group: slipwayGroup, Resource: "nodegroups", Purpose: "to find nodes without a group"},
	partAccessReading: {
		Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews", Purpose: "to check the permissions of the installed parts; it stores nothing",
	},
	callerAccessReading: {
		Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews", Purpose: "to check your permissions; it stores nothing",
	},
	apiGroupsReading: {Verb: "get", Resource: "/apis", Purpose: "to find other tools by their API groups"},
	metricsReading:   {Verb: "get", Resource: "pods/proxy", Purpose: "--ask-agents: to read the agents' metrics"},
}

// listViewerRights returns the permissions that other commands of slipway need, in addition to rightsByReading.
func listViewerRights() []Permission {
	return slices.Concat(
		newRights("", "namespaces", "list", "slipway plan and why"),
		newRights("", "persistentvolumeclaims", "list", "slipway plan and why"),
		newRights("", "persistentvolumes", "list", "slipway plan and why"),
		newRights(storageGroup, "storageclasses", "list", "slipway plan and why"),
		newRights(storageGroup, "csinodes", "list", "slipway plan and why"),
		newRights(storageGroup, "csidrivers", "list", "slipway plan and why"),
		newRights(storageGroup, "volumeattachments", "list", "slipway plan and why"),
		newRights("resource.k8s.io", "deviceclasses", "list", "slipway plan and why"),
		changeRights(newRights("scheduling.k8s.io", "podgroups", "list", "slipway plan and why; otherwise each PodGroup counts as disruptionMode all"), setOptional),
		newRights(slipwayGroup, "noderetirements", "list", "slipway status"),
	)
}

// checkCallerRights finds permissions that the user of this command lacks.
func checkCallerRights(f *Facts) []Finding {
	var found []Finding
	for reading, err := range f.ReadErrors {
		right, ok := rightsByReading[reading]
		if !ok || !apierrors.IsForbidden(err) {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Message: fmt.Sprintf("you may not %s: %s", right, right.Purpose),
			Remedy: "bind the ClusterRole slipway-doctor of deploy/viewer to yourself",
		})
	}
	for _, a := range f.CallerAccess {
		if !a.Allowed {
			found = append(found, Finding{
				Severity: Note, Message: fmt.Sprintf("you may not %s: %s", a.Permission, a.Permission.Purpose),
				Remedy: "bind the ClusterRole slipway-viewer of deploy/viewer to yourself, to use these commands",
			})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	return found
}
