package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// home is the namespace of a right that a part has to have where it is installed.
const home = "."

// Right is one that an account has to have, and what for.
type Right struct {
	Verb string `json:"verb"`
	// Group is the API group; empty is the core one.
	Group string `json:"group,omitempty"`
	// Resource may have a subresource, as in pods/eviction.
	Resource string `json:"resource"`
	// Name restricts it to one object.
	Name string `json:"name,omitempty"`
	// Namespace restricts it to one; empty is all.
	Namespace string `json:"namespace,omitempty"`
	// For is what it is needed for.
	For string `json:"for"`

	// option is the flag without which it is not needed.
	option string
	// optional rights are missed only where somebody wants what they are for.
	optional bool
}

// String is the right as RBAC spells it, such as "list poddisruptionbudgets.policy in namespace slipway".
func (r Right) String() string {
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

// in is the right in the namespace of a part.
func (r Right) in(namespace string) Right {
	if r.Namespace == home {
		r.Namespace = namespace
	}
	return r
}

// grants makes a right of each verb.
func grants(group, resource, verbs, what string) []Right {
	var all []Right
	for verb := range strings.SplitSeq(verbs, " ") {
		all = append(all, Right{Verb: verb, Group: group, Resource: resource, For: what})
	}
	return all
}

// with changes each right.
func with(rights []Right, change func(*Right)) []Right {
	for i := range rights {
		change(&rights[i])
	}
	return rights
}

func atHome(r *Right)                { r.Namespace = home }
func optional(r *Right)              { r.optional = true }
func named(name string) func(*Right) { return func(r *Right) { r.Name = name } }

// asking is a right that is needed with a flag only.
func asking(flag string) func(*Right) { return func(r *Right) { r.option = flag } }

const (
	coordination = "coordination.k8s.io"
	slipwayGroup = "slipway.dev" //nolint:gosec // no credential, but the name of an API group
	storage      = "storage.k8s.io"
)

// needed are the rights of a part's account: those of the roles in deploy/.
func needed(p *Part) []Right {
	switch p.Kind {
	case Agent:
		return agentRights()
	case Manager:
		return managerRights(p)
	case Cloudpool:
		return cloudpoolRights()
	}
	return nil
}

func agentRights() []Right {
	return slices.Concat(
		grants("", "nodes", "get list watch", "to know its node, and the other machines of a notice"),
		grants("", "nodes", "patch", "to cordon its node and give it back"),
		with(grants("", "nodes/status", "patch", "the node's lifecycle conditions"), optional),
		grants("", "pods", "list watch", "to see the pods on its node"),
		grants("", "pods/eviction", "create", "to drain"),
		with(grants("", "pods", "delete", "a pod that a disruption budget blocks when its time to stop must begin; without it the pod dies with the machine"), optional),
		with(grants("", "pods/status", "patch", "the condition DisruptionTarget of a pod that is deleted; without it its Job counts a failure"), optional),
		grants("policy", "poddisruptionbudgets", "list watch", "to say which disruption budget blocks, and to go on when it does not"),
		grants("", "events", "create", "to say what it does"),
		with(grants("", "persistentvolumeclaims", "get", "--wait-for-detach"), asking("wait-for-detach")),
		with(grants(storage, "volumeattachments", "list", "--wait-for-detach"), asking("wait-for-detach")),
		slotRights(),
	)
}

func slotRights() []Right {
	return with(slices.Concat(
		with(grants(coordination, "leases", "list create", "--max-concurrent-drains"), atHome),
		with(with(grants(coordination, "leases", "update", "--max-concurrent-drains"), atHome), named("slipway-drain-0")),
	), asking(maxConcurrentDrains))
}

func managerRights(p *Part) []Right {
	return slices.Concat(
		grants(slipwayGroup, "nodegroups", "get list watch", "to know the groups"),
		grants(slipwayGroup, "nodegroups/status", "update patch", "to say how the groups are"),
		grants(slipwayGroup, "noderetirements", "get list watch create update delete", "to take nodes out of service"),
		grants(slipwayGroup, "noderetirements/status", "update", "to remember how far a retirement is"),
		grants("", "nodes", "get list watch patch delete", "to cordon nodes, and to delete the Node of a machine that goes"),
		with(grants("", "nodes/status", "patch", "the node's lifecycle conditions"), optional),
		grants("", "pods", "list watch", "to see the pods of leaving nodes, and of idle ones"),
		grants("", "pods/eviction", "create", "to drain"),
		grants("policy", "poddisruptionbudgets", "list watch", "to say which disruption budget blocks"),
		grants("", "persistentvolumeclaims", "get list watch", "whether pods with volumes have room elsewhere"),
		grants(storage, "volumeattachments", "list watch", "whether volumes are detached, and how many a node takes"),
		grants(storage, "storageclasses", "list watch", "whether pods with volumes have room elsewhere"),
		grants(storage, "csinodes", "list watch", "how many volumes a node takes"),
		grants(storage, "csidrivers", "list watch", "whether pods with volumes have room elsewhere"),
		grants("", "persistentvolumes", "list watch", "where volumes can be reached from"),
		grants("resource.k8s.io", "deviceclasses", "list watch", "whether pods with devices have room elsewhere"),
		grants("apps", "daemonsets", "list watch", "what comes to a new machine by itself"),
		grants("", "namespaces", "list watch", "affinity to pods of namespaces with certain labels"),
		grants("events.k8s.io", "events", "create patch", "to say what it does"),
		leaderRights(p),
		definitionRights(p),
	)
}

func leaderRights(p *Part) []Right {
	all := slices.Concat(
		with(grants("", "events", "create patch", "to say who leads"), atHome),
		with(grants("events.k8s.io", "events", "create patch", "to say who leads"), atHome),
		with(grants(coordination, "leases", "create", "leader election"), atHome),
	)
	if name := p.leaseName(); name != "" {
		all = append(all, with(with(grants(coordination, "leases", "get update", "leader election"), atHome), named(name))...)
	}
	return with(all, asking(leaderElect))
}

// definitionRights are those to install the definitions. Without them a stand-in that does so by default begins with those that
// are there.
func definitionRights(p *Part) []Right {
	const definitions = "customresourcedefinitions"
	all := grants(extensions, definitions, "create", "--install-crds")
	for _, name := range []string{"nodegroups.slipway.dev", "noderetirements.slipway.dev", "poolupdates.slipway.dev"} {
		all = append(all, with(grants(extensions, definitions, "get patch", "--install-crds"), named(name))...)
	}
	if _, given := p.value(installCRDs); p.standsIn() && !given {
		with(all, optional)
	}
	return with(all, asking(installCRDs))
}

func cloudpoolRights() []Right {
	return slices.Concat(
		grants(slipwayGroup, "nodegroups", "get list watch", "to know the groups behind pools"),
		grants(slipwayGroup, "noderetirements", "get list watch create delete", "to have machines leave by retirements"),
		grants("", "nodes", "list watch", "to know which machine is which node"),
		grants("", "pods", "list watch", "to choose the machines whose pods have room elsewhere"),
		grants("", "namespaces", "list watch", "affinity to pods of namespaces with certain labels"),
		grants("", "persistentvolumeclaims", "list watch", "whether pods with volumes have room elsewhere"),
		grants("", "persistentvolumes", "list watch", "where volumes can be reached from"),
		grants("policy", "poddisruptionbudgets", "list watch", "to choose the machines whose pods may be evicted"),
		grants(storage, "storageclasses", "list watch", "whether pods with volumes have room elsewhere"),
		grants(storage, "csinodes", "list watch", "how many volumes a node takes"),
		grants(storage, "csidrivers", "list watch", "whether pods with volumes have room elsewhere"),
		grants(storage, "volumeattachments", "list watch", "how many volumes a node takes"),
		grants("resource.k8s.io", "deviceclasses", "list watch", "whether pods with devices have room elsewhere"),
		with(grants(coordination, "leases", "list create update", "one process works on a pool at a time"), atHome),
		with(grants(slipwayGroup, "poolupdates", "get list watch create delete", "to write down what is asked of a pool"), atHome),
		with(grants(slipwayGroup, "poolupdates/status", "update", "to write down how far an update is"), atHome),
		with(grants("", "configmaps", "get create update", "whether a pool is started, and what an older version has left"), atHome),
		with(grants("", "nodes", "patch", "--native: a machine's states are annotations of its Node"), asking("native")),
		with(grants(slipwayGroup, "nodegroups/status", "patch", "--native: to write a launch before the cloud is asked"), asking("native")),
		with(grants("authentication.k8s.io", "tokenreviews", "create", "--authorize: to ask who clients are"), asking("authorize")),
		with(grants("authorization.k8s.io", "subjectaccessreviews", "create", "--authorize: to ask what clients may"), asking("authorize")),
	)
}

// partRights tells which rights the accounts of installed parts lack.
func partRights(f *Facts) []Finding {
	var found []Finding
	for _, a := range f.Access {
		if a.Allowed || a.Right.option != "" && !a.Part.has(a.Right.option) {
			continue
		}
		finding := Finding{
			Severity: Problem, Object: Object{"ServiceAccount", a.Part.namespace(), a.Part.ServiceAccount}, Owners: []Object{a.Part.Object},
			Message: fmt.Sprintf("the %s may not %s: %s", a.Part.Kind, a.Right, a.Right.For),
			Remedy:  fmt.Sprintf("bind it to the roles of deploy/%s (rbac.yaml has them all)", a.Part.Kind),
		}
		switch {
		case a.Right.option == installCRDs:
			finding.Remedy = "bind it to the ClusterRole of deploy/manager/install-crds.yaml"
		case a.Right.Name != "" && a.Right.option == leaderElect && a.Part.standsIn():
			finding.Remedy = fmt.Sprintf("add this Lease to its Role, as docs/moving-from-%s.md says", a.Part.Command)
		}
		if a.Right.optional {
			finding.Severity = Note
			finding.Remedy += ", unless this is meant"
		}
		found = append(found, finding)
	}
	return found
}

// readRights are those by which the doctor itself reads, and what it cannot say without.
var readRights = map[Reading]Right{
	readNodes:        {Verb: "list", Resource: "nodes", For: "to see which nodes nobody guards"},
	readPods:         {Verb: "list", Resource: "pods", For: "to see agents, pods without a controller, and what budgets select"},
	readBudgets:      {Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", For: "to see budgets that never allow an eviction"},
	readDeployments:  {Verb: "list", Group: "apps", Resource: "deployments", For: "to find the manager, other tools, and single replicas"},
	readStatefulSets: {Verb: "list", Group: "apps", Resource: "statefulsets", For: "to see single replicas"},
	readDaemonSets:   {Verb: "list", Group: "apps", Resource: "daemonsets", For: "to find the agents, and other tools"},
	readNodeLeases: {
		Verb: "list", Group: coordination, Resource: "leases", Namespace: nodeLeaseNamespace, For: "to compare the nodes' clocks",
	},
	readLeaderLeases: {Verb: "get", Group: coordination, Resource: "leases", Name: leaseName, For: "to see who leads"},
	readMarks:        {Verb: "get", Resource: "configmaps", Namespace: "kube-system", For: "to know tools that run out of sight"},
	readCRDs: {
		Verb: "get", Group: extensions, Resource: "customresourcedefinitions", For: "to compare Slipway's definitions with this program's",
	},
	readNodeGroups: {Verb: "list", Group: slipwayGroup, Resource: "nodegroups", For: "to see which nodes are in no group"},
	readAccess: {
		Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews", For: "to ask what the installed parts may; it stores nothing",
	},
	readCaller: {
		Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews", For: "to ask what you may; it stores nothing",
	},
	readGroups:  {Verb: "get", Resource: "/apis", For: "to know other tools by the API groups that they bring"},
	readMetrics: {Verb: "get", Resource: "pods/proxy", For: "--ask-agents: to read the agents' metrics"},
}

// viewerRights are those that the other commands for people have to have beyond readRights.
func viewerRights() []Right {
	return slices.Concat(
		grants("", "namespaces", "list", "slipway plan and why"),
		grants("", "persistentvolumeclaims", "list", "slipway plan and why"),
		grants("", "persistentvolumes", "list", "slipway plan and why"),
		grants(storage, "storageclasses", "list", "slipway plan and why"),
		grants(storage, "csinodes", "list", "slipway plan and why"),
		grants(storage, "csidrivers", "list", "slipway plan and why"),
		grants(storage, "volumeattachments", "list", "slipway plan and why"),
		grants("resource.k8s.io", "deviceclasses", "list", "slipway plan and why"),
		grants(slipwayGroup, "noderetirements", "list", "slipway status"),
	)
}

// callerRights tells which rights whoever asks lacks.
func callerRights(f *Facts) []Finding {
	var found []Finding
	for reading, err := range f.Unread {
		right, ok := readRights[reading]
		if !ok || !apierrors.IsForbidden(err) {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Message: fmt.Sprintf("you may not %s: %s", right, right.For),
			Remedy: "bind the ClusterRole slipway-doctor of deploy/viewer to yourself",
		})
	}
	for _, a := range f.Caller {
		if !a.Allowed {
			found = append(found, Finding{
				Severity: Note, Message: fmt.Sprintf("you may not %s: %s", a.Right, a.Right.For),
				Remedy: "bind the ClusterRole slipway-viewer of deploy/viewer to yourself, if you want these commands",
			})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	return found
}
