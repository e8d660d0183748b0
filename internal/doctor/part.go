package doctor

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/surge"
)

// PartKind is the kind of a part of Slipway: agent, manager or cloudpool.
type PartKind string

const (
	Agent     PartKind = "agent"
	Manager   PartKind = "manager"
	Cloudpool PartKind = "cloudpool"
)

// partsBySubcommand maps each subcommand of slipway to a kind of part. It includes the compatibility commands.
var partsBySubcommand = map[string]PartKind{
	"agent": Agent, "aks-node-termination-handler": Agent, "aws-node-termination-handler": Agent, "mechanic": Agent,
	"manager": Manager, "vmss-pod-watcher": Manager, "openstack-autoscaler": Manager,
	"cloudpool": Cloudpool, "kubeaware-cloudpool-proxy": Cloudpool,
}

// flagDefaults are the defaults of the flags that rules read, by subcommand.
var flagDefaults = map[string]map[string]string{
	"manager":              {leaderElect: "true"},
	"openstack-autoscaler": {leaderElect: "true", installCRDs: "true"},
	"vmss-pod-watcher":     {leaderElect: "false", installCRDs: "true"},
}

// legacyFlags maps a subcommand and a flag to the replaced tool's flag and environment variable.
var legacyFlags = map[string]map[string][2]string{
	"aks-node-termination-handler": {maxConcurrentDrains: {"maxConcurrentDrains", "MAX_CONCURRENT_DRAINS"}},
	"aws-node-termination-handler": {maxConcurrentDrains: {maxConcurrentDrains, "MAX_CONCURRENT_DRAINS"}},
}

// The names of the flags that rules read.
const (
	leaderElect         = "leader-elect"
	installCRDs         = "install-crds"
	maxConcurrentDrains = "max-concurrent-drains"
	surgeFlag           = "surge"
	queueURL            = "aws-queue-url"
)

// Part is one workload of Slipway that is installed in the cluster.
type Part struct {
	Kind           PartKind
	Object         Object
	ServiceAccount string
	// Args are the arguments of the container without the subcommand, with the values of their variables.
	Args []string
	// Command is the subcommand.
	Command string

	env        map[string]string // of the container, as far as the template defines it
	daemonSet  *appsv1.DaemonSet
	deployment *appsv1.Deployment
}

func (p *Part) namespace() string { return p.Object.Namespace }

// isFlagEnabled reports whether a flag is true, or has another value than "", 0 and never, on the command line or by
// default.
func (p *Part) isFlagEnabled(flag string) bool {
	v, ok := p.flagValue(flag)
	if !ok {
		v, ok = flagDefaults[cmp.Or(p.Command, string(p.Kind))][flag]
	}
	if on, err := strconv.ParseBool(v); err == nil { // as pflag parses it; also 0 and 1 of --max-concurrent-drains
		return on
	}
	return ok && v != "" && v != string(surge.Off)
}

// isCompatibilityCommand reports whether the part is a manager that runs a compatibility command. Its NodeGroup comes
// from the replaced tool's configuration.
func (p *Part) isCompatibilityCommand() bool {
	return p.Kind == Manager && p.Command != "" && p.Command != "manager"
}

// flagValue returns the value of a flag on the command line, and whether the flag is there. As in pflag, the last one of
// repeated flags counts, and a flag without a value is true. A flag with a variable that the pod template does not
// define is not there. Flags with one dash count too, because some commands use them.
func (p *Part) flagValue(flag string) (value string, given bool) {
	also := legacyFlags[p.Command][flag]
	for i, arg := range slices.Backward(p.Args) {
		name, value, with := strings.Cut(arg, "=")
		name = strings.TrimPrefix(strings.TrimPrefix(name, "-"), "-")
		if !strings.HasPrefix(arg, "-") || name != flag && (name != also[0] || name == "") {
			continue
		}
		switch {
		case with:
		case i+1 < len(p.Args) && !strings.HasPrefix(p.Args[i+1], "-"):
			value = p.Args[i+1]
		default:
			value = "true"
		}
		if strings.Contains(value, "$(") {
			return "", false
		}
		return value, true
	}
	value, ok := p.env[also[1]]
	return value, ok && value != ""
}

// FindParts returns the installed parts of Slipway. It recognizes a part by the command of its container. It recognizes
// a custom image by the labels of its workload.
func (f *Facts) FindParts() []Part {
	if f.parts != nil {
		return f.parts
	}
	f.parts = []Part{}
	for _, d := range f.DaemonSets {
		if p, ok := partOfWorkload("DaemonSet", d.ObjectMeta, &d.Spec.Template); ok {
			p.daemonSet = d
			f.parts = append(f.parts, p)
		}
	}
	for _, d := range f.Deployments {
		if p, ok := partOfWorkload("Deployment", d.ObjectMeta, &d.Spec.Template); ok {
			p.deployment = d
			f.parts = append(f.parts, p)
		}
	}
	slices.SortFunc(f.parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareObjects(a.Object, b.Object))
	})
	return f.parts
}

func (f *Facts) partsOfKind(kind PartKind) []Part {
	var found []Part
	for _, p := range f.FindParts() {
		if p.Kind == kind {
			found = append(found, p)
		}
	}
	return found
}

func partOfWorkload(kind string, meta metav1.ObjectMeta, template *corev1.PodTemplateSpec) (part Part, found bool) {
	for i := range template.Spec.Containers {
		c := &template.Spec.Containers[i]
		which, command, args := parseCommand(c)
		if which == "" {
			which, command = kindFromLabels(template.Labels), ""
			if which == "" || len(template.Spec.Containers) > 1 {
				continue
			}
		}
		env := readEnvironment(c, meta.Namespace)
		args = slices.Clone(args)
		for i := range args {
			args[i] = expandVariables(args[i], env)
		}
		return Part{
			Kind: which, Object: Object{kind, meta.Namespace, meta.Name}, Command: command, Args: args, env: env,
			ServiceAccount: cmp.Or(template.Spec.ServiceAccountName, "default"),
		}, true
	}
	return Part{}, false
}

// readEnvironment returns the environment variables with a value in the pod template. It omits variables from
// ConfigMaps and Secrets.
func readEnvironment(c *corev1.Container, namespace string) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = expandVariables(e.Value, env)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			env[e.Name] = namespace
		}
	}
	return env
}

var variableReference = regexp.MustCompile(`\$\$|\$\([^)]*\)`)

// expandVariables replaces each $(NAME) by the variable's value, and each $$ by $. A reference to an unknown variable
// stays. The kubelet does the same (k8s.io/kubernetes/third_party/forked/golang/expansion).
func expandVariables(s string, env map[string]string) string {
	return variableReference.ReplaceAllStringFunc(s, func(reference string) string {
		if reference == "$$" {
			return "$"
		}
		if value, ok := env[reference[len("$("):len(reference)-len(")")]]; ok {
			return value
		}
		return reference
	})
}

// parseCommand returns the kind of part that a container runs, the subcommand, and the other arguments.
func parseCommand(c *corev1.Container) (kind PartKind, subcommand string, args []string) {
	program, args := parseImageName(c.Image), c.Args
	if len(c.Command) > 0 {
		program = strings.TrimSuffix(path.Base(strings.ReplaceAll(c.Command[0], `\`, "/")), ".exe")
		args = slices.Concat(c.Command[1:], c.Args)
	}
	switch program {
	case "slipway-agent":
		return Agent, "agent", args
	case "slipway", "kubectl-slipway":
		if len(args) > 0 {
			return partsBySubcommand[args[0]], args[0], args[1:]
		}
	}
	return "", "", c.Args
}

const nameLabel = "app.kubernetes.io/name"

func kindFromLabels(labels map[string]string) PartKind {
	name := labels[nameLabel]
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

// parseImageName returns the last part of an image name, without registry, path, tag and digest.
func parseImageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name, _, _ := strings.Cut(path.Base(image), ":")
	return name
}

// checkInstallation finds parts of Slipway that are missing or installed twice.
func checkInstallation(f *Facts) []Finding {
	agents, managers := len(f.partsOfKind(Agent)), len(f.partsOfKind(Manager))
	switch {
	case len(f.FindParts()) == 0:
		return []Finding{{
			Severity: Note, Message: "no part of Slipway was found; the other findings show what an installation would meet",
			Remedy: "install the agents with Helm, or with a kustomization that names your images (docs/install.md); " +
				"add the manager for autoscaling and retirements",
		}}
	case agents == 0 && managers > 0 && needsAgents(f):
		return []Finding{{
			Severity: Warning, Message: "there is a manager and no agent: nothing on the nodes reads the notices of the cloud",
			Remedy: "install the agents too: with agent.enabled of the chart, or with deploy/agent in your kustomization (docs/install.md)",
		}}
	case agents > 0 && len(listAgentAccounts(f)) > 1:
		return []Finding{{
			Severity: Warning,
			Message:  fmt.Sprintf("there are agents in %d DaemonSets with %d ServiceAccounts: this is probably a second installation", agents, len(listAgentAccounts(f))),
			Remedy:   "check that no node has two agents, and remove the second installation",
		}}
	}
	return nil
}

// needsAgents reports whether only agents can read notices of the cloud. OpenStack announces nothing to its instances, and a manager
// with a queue reads the notices of AWS there.
func needsAgents(f *Facts) bool {
	if slices.ContainsFunc(f.partsOfKind(Manager), func(p Part) bool { return p.isFlagEnabled(queueURL) }) {
		return false
	}
	return len(f.Nodes) == 0 || slices.ContainsFunc(f.Nodes, func(n *corev1.Node) bool { return !strings.HasPrefix(n.Spec.ProviderID, "openstack://") })
}

func listAgentAccounts(f *Facts) map[Key]bool {
	accounts := map[Key]bool{}
	for _, p := range f.partsOfKind(Agent) {
		accounts[Key{p.namespace(), p.ServiceAccount}] = true
	}
	return accounts
}

// checkPartReady finds Deployments of Slipway that have no available pod.
func checkPartReady(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.FindParts() {
		if p.deployment == nil {
			continue
		}
		replicas := 2
		if p.Kind == Manager && !p.isFlagEnabled(leaderElect) {
			replicas = 1
		}
		switch s, want := p.deployment.Status, ptr.Deref(p.deployment.Spec.Replicas, 1); {
		case want == 0:
			found = append(found, Finding{
				Severity: Warning, Object: p.Object, Message: "it is scaled to 0: this part of Slipway is off",
				Remedy: fmt.Sprintf("kubectl scale it to %d, unless this is intended", replicas),
			})
		case s.AvailableReplicas == 0:
			found = append(found, Finding{
				Severity: Problem, Object: p.Object,
				Message: fmt.Sprintf("none of its %d pods is available: this part of Slipway does nothing", want),
				Remedy:  "read kubectl describe and kubectl logs of its pods",
			})
		case s.AvailableReplicas < want:
			found = append(found, Finding{
				Severity: Warning, Object: p.Object,
				Message: fmt.Sprintf("%d of its %d pods are available: one more failure can leave none", s.AvailableReplicas, want),
				Remedy:  "kubectl describe the other pods",
			})
		}
	}
	return found
}
