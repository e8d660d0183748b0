package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// PartKind is which of its processes a part of Slipway runs.
type PartKind string

// The parts.
const (
	Agent     PartKind = "agent"
	Manager   PartKind = "manager"
	Cloudpool PartKind = "cloudpool"
)

// commands are the subcommands of slipway by the part that they are, personalities included.
var commands = map[string]PartKind{
	"agent": Agent, "aks-node-termination-handler": Agent, "mechanic": Agent,
	"manager": Manager, "vmss-pod-watcher": Manager, "openstack-autoscaler": Manager,
	"cloudpool": Cloudpool, "kubeaware-cloudpool-proxy": Cloudpool,
}

// defaults are the values of flags that a part asks about and that are on, or off, without having been given.
var defaults = map[string]map[string]string{
	"manager":              {leaderElect: "true"},
	"openstack-autoscaler": {leaderElect: "true", installCRDs: "true"},
	"vmss-pod-watcher":     {leaderElect: "false", installCRDs: "true"},
}

// old are the names that a flag has with the tool that a part stands in for: the flag's and the environment's.
var old = map[string]map[string][2]string{
	"aks-node-termination-handler": {maxConcurrentDrains: {"maxConcurrentDrains", "MAX_CONCURRENT_DRAINS"}},
}

// Flags that rules go by.
const (
	leaderElect         = "leader-elect"
	installCRDs         = "install-crds"
	maxConcurrentDrains = "max-concurrent-drains"
)

// Part is a part of Slipway that is installed.
type Part struct {
	Kind           PartKind
	Object         Object
	ServiceAccount string
	// Args are those of its container, the subcommand left out.
	Args []string
	// Command is the subcommand that it runs.
	Command string

	env        map[string]string // of its container, as far as the template says
	daemonSet  *appsv1.DaemonSet
	deployment *appsv1.Deployment
}

// namespace is the one that the part runs in.
func (p *Part) namespace() string { return p.Object.Namespace }

// has reports that the part is given a flag, or has it by default, with any value but false.
func (p *Part) has(flag string) bool {
	v, ok := p.value(flag)
	if !ok {
		v, ok = defaults[cmp.Or(p.Command, string(p.Kind))][flag]
	}
	return ok && v != "false" && v != "0"
}

// standsIn reports that the part is a manager with a NodeGroup of its own, made of the configuration of the tool that it stands
// in for.
func (p *Part) standsIn() bool { return p.Kind == Manager && p.Command != "" && p.Command != "manager" }

// value is that of a flag as it is written on the command line; empty where it stands alone. Some commands take one dash.
func (p *Part) value(flag string) (string, bool) {
	also := old[p.Command][flag]
	for i, arg := range p.Args {
		name, value, with := strings.Cut(arg, "=")
		name = strings.TrimPrefix(strings.TrimPrefix(name, "-"), "-")
		switch {
		case !strings.HasPrefix(arg, "-") || name != flag && (name != also[0] || name == ""):
		case with:
			return value, true
		case i+1 < len(p.Args) && !strings.HasPrefix(p.Args[i+1], "-"):
			return p.Args[i+1], true
		default:
			return "", true
		}
	}
	value, ok := p.env[also[1]]
	return value, ok && value != ""
}

// Parts finds Slipway in the DaemonSets and Deployments, by what their containers run, or by what they are called where
// the image is somebody's own.
func (f *Facts) Parts() []Part {
	if f.parts != nil {
		return f.parts
	}
	f.parts = []Part{}
	for _, d := range f.DaemonSets {
		if p, ok := partOf("DaemonSet", d.ObjectMeta, &d.Spec.Template); ok {
			p.daemonSet = d
			f.parts = append(f.parts, p)
		}
	}
	for _, d := range f.Deployments {
		if p, ok := partOf("Deployment", d.ObjectMeta, &d.Spec.Template); ok {
			p.deployment = d
			f.parts = append(f.parts, p)
		}
	}
	slices.SortFunc(f.parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareObjects(a.Object, b.Object))
	})
	return f.parts
}

// installed are the parts of a kind.
func (f *Facts) installed(kind PartKind) []Part {
	var found []Part
	for _, p := range f.Parts() {
		if p.Kind == kind {
			found = append(found, p)
		}
	}
	return found
}

func partOf(kind string, meta metav1.ObjectMeta, template *corev1.PodTemplateSpec) (Part, bool) {
	for i := range template.Spec.Containers {
		c := &template.Spec.Containers[i]
		which, command, args := runs(c)
		if which == "" {
			which, command = labelled(template.Labels), ""
			if which == "" || len(template.Spec.Containers) > 1 {
				continue
			}
		}
		return Part{
			Kind: which, Object: Object{kind, meta.Namespace, meta.Name}, Command: command, Args: args, env: environmentOf(c, meta.Namespace),
			ServiceAccount: cmp.Or(template.Spec.ServiceAccountName, "default"),
		}, true
	}
	return Part{}, false
}

// environmentOf is a container's, as far as its template says: not what comes of ConfigMaps and Secrets.
func environmentOf(c *corev1.Container, namespace string) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = e.Value
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			env[e.Name] = namespace
		}
	}
	return env
}

// runs tells which part a container runs, with which subcommand and arguments.
func runs(c *corev1.Container) (PartKind, string, []string) {
	program, args := imageName(c.Image), c.Args
	if len(c.Command) > 0 {
		program = strings.TrimSuffix(path.Base(strings.ReplaceAll(c.Command[0], `\`, "/")), ".exe")
		args = slices.Concat(c.Command[1:], c.Args)
	}
	switch program {
	case "slipway-agent":
		return Agent, "agent", args
	case "slipway", "kubectl-slipway":
		if len(args) > 0 {
			return commands[args[0]], args[0], args[1:]
		}
	}
	return "", "", c.Args
}

func labelled(labels map[string]string) PartKind {
	name := labels["app.kubernetes.io/name"]
	if name == "slipway" {
		name += "-" + labels["app.kubernetes.io/component"]
	}
	for _, kind := range []PartKind{Agent, Manager, Cloudpool} {
		if name == "slipway-"+string(kind) {
			return kind
		}
	}
	return ""
}

// imageName is the last word of an image's name: without registry, folders, tag and digest.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name, _, _ := strings.Cut(path.Base(image), ":")
	return name
}

// installation says what of Slipway is missing as a whole.
func installation(f *Facts) []Finding {
	agents, managers := len(f.installed(Agent)), len(f.installed(Manager))
	switch {
	case len(f.Parts()) == 0:
		return []Finding{{
			Severity: Note, Message: "no part of Slipway was found; what follows is what an installation would meet",
			Remedy: "kubectl apply -k deploy/agent, and deploy/manager where machines are to come and go",
		}}
	case agents == 0 && managers > 0:
		return []Finding{{
			Severity: Warning, Message: "there is a manager and no agent: nobody on the nodes hears that a machine is to be taken away",
			Remedy: "install the agent too: kubectl apply -k deploy/agent",
		}}
	case agents > 0 && len(agentAccounts(f)) > 1:
		return []Finding{{
			Severity: Warning,
			Message:  fmt.Sprintf("there are agents in %d DaemonSets with %d ServiceAccounts: is this one installation or two?", agents, len(agentAccounts(f))),
			Remedy:   "see that no node has two agents, and remove the installation that is not wanted",
		}}
	}
	return nil
}

func agentAccounts(f *Facts) map[Key]bool {
	accounts := map[Key]bool{}
	for _, p := range f.installed(Agent) {
		accounts[Key{p.namespace(), p.ServiceAccount}] = true
	}
	return accounts
}

// partNotReady tells of Deployments of Slipway that nobody serves.
func partNotReady(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.Parts() {
		if p.deployment == nil {
			continue
		}
		replicas := 2
		if p.Kind == Manager && !p.has(leaderElect) {
			replicas = 1
		}
		switch s, want := p.deployment.Status, ptr.Deref(p.deployment.Spec.Replicas, 1); {
		case want == 0:
			found = append(found, Finding{
				Severity: Warning, Object: p.Object, Message: "it is scaled to 0, so that this part of Slipway is switched off",
				Remedy: fmt.Sprintf("kubectl scale it to %d, if that was not meant", replicas),
			})
		case s.AvailableReplicas == 0:
			found = append(found, Finding{
				Severity: Problem, Object: p.Object,
				Message: fmt.Sprintf("none of its %d pods is available, so that this part of Slipway does nothing", want),
				Remedy:  "kubectl describe its pods, and kubectl logs says why it does not get ready",
			})
		case s.AvailableReplicas < want:
			found = append(found, Finding{
				Severity: Warning, Object: p.Object,
				Message: fmt.Sprintf("%d of its %d pods are available: the next loss may leave none", s.AvailableReplicas, want),
				Remedy:  "kubectl describe the pods that are not",
			})
		}
	}
	return found
}
