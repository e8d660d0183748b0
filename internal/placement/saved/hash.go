package saved

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// Names holds the plain name by the one that stands for it. A name that is made of two, such as that of a claim that is
// made for a pod, is not in it; its parts are.
type Names map[string]string

// Hashed returns the cluster with what things are called hidden, fit to be handed to others, and what each name in it
// stands for. The answers of placement about it are those about the plain one, name for name. The plain cluster is not
// changed.
//
// Hidden are the names of nodes, namespaces, pods, owners, budgets, claims, volumes, storage classes, drivers, devices,
// containers and disks; keys and values of labels and taints; names of extended resources, scheduling gates and
// schedulers; addresses and UIDs. In the open stay numbers (requests, capacities, priorities, budgets), times, kinds,
// phases and effects, ports, the namespace kube-system, the keys, operating systems and architectures that every cluster
// has, drivers that Kubernetes itself knows, and integers that node affinity compares as numbers.
//
// A name becomes its kind, its place in the alphabetical order of its kind, and a keyed hash of it, such as
// "node-0017-8c2f19ab". The order is kept because ties are broken by name. The key is drawn anew for each cluster and
// forgotten, so that neither can names be guessed, nor two files be laid side by side.
func (o *Objects) Hashed() (*Objects, Names) {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // It never fails; see crypto/rand.
	r := renamer{made: map[claimKey]podVolume{}, nameTables: nameTables{
		tables: map[kind]table{}, compared: map[string]bool{}, integers: map[string]map[string]bool{}, open: map[string]bool{},
	}}
	r.cluster(o) // All names are gathered first, since each is given its place among them.
	names := r.seal(key)
	return r.cluster(o), names
}

// kind is what a name is of. Names of different kinds are hidden apart from each other, so that a pod that is called like
// a node does not show it.
type kind string

const (
	nodes          kind = "node"
	namespaces     kind = "namespace"
	pods           kind = "pod"
	budgets        kind = "budget"
	claims         kind = "claim"
	volumes        kind = "volume"
	podVolumes     kind = "mount"
	storageClasses kind = "class"
	drivers        kind = "driver"
	handles        kind = "handle"
	attachments    kind = "attachment"
	deviceClasses  kind = "device"
	keys           kind = "key"
	values         kind = "value"
	resources      kind = "resource"
	containers     kind = "container"
	disks          kind = "disk"
	owners         kind = "owner"
	ownerKinds     kind = "kind"
	gates          kind = "gate"
	schedulers     kind = "scheduler"
	requests       kind = "request"
	addresses      kind = "address"
	uids           kind = "uid"
)

// table holds the names of one kind and, once they are sealed, what stands for each.
type table map[string]string

// renamer copies what placement reads of a cluster: the zero renamer as it is, another first to gather all names and then,
// sealed, with each of them replaced.
type renamer struct {
	nameTables
	made map[claimKey]podVolume // claims that are called after a pod and its volume
}

// nameTables holds all names; the zero one replaces none.
type nameTables struct {
	tables   map[kind]table
	sealed   bool
	compared map[string]bool            // label keys whose values some node affinity compares as integers
	integers map[string]map[string]bool // values of labels that are integers, by key
	open     map[string]bool            // label values that stay
}

// separator is in no name, and lower than all that is, so that pairs are in order.
const separator = "\x00"

// name replaces a name of a kind; empty stays empty.
func (n *nameTables) name(k kind, s string) string { return n.within(k, "", s) }

// within replaces a name that is one of a namespace.
func (n *nameTables) within(k kind, namespace, s string) string {
	if s == "" || n.tables == nil {
		return s
	}
	id := s
	if namespace != "" {
		id = namespace + separator + s
	}
	if n.sealed {
		return n.tables[k][id]
	}
	if n.tables[k] == nil {
		n.tables[k] = table{}
	}
	n.tables[k][id] = ""
	return s
}

// kubeSystem is the namespace in which a static pod can show that its node is part of the control plane.
const kubeSystem = "kube-system"

// apiServer is how the name of a static API server begins; that of its node follows.
const apiServer = "kube-apiserver-"

// seal gives every name what stands for it.
func (n *nameTables) seal(key []byte) Names {
	names := Names{}
	for k, t := range n.tables {
		ids := slices.Sorted(maps.Keys(t))
		width := len(strconv.Itoa(len(ids)))
		for place, id := range ids {
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(string(k) + separator + id))
			t[id] = fmt.Sprintf("%s-%0*d-%s", k, width, place+1, hex.EncodeToString(mac.Sum(nil)[:4]))
			if k == namespaces && id < kubeSystem {
				t[id] = "a-" + t[id] // what was before kube-system stays before it
			}
			names[t[id]] = id[strings.LastIndex(id, separator)+1:]
		}
	}
	for key := range n.compared {
		maps.Copy(n.open, n.integers[key])
	}
	n.sealed = true
	return names
}

func (n *nameTables) namespace(s string) string {
	if s == kubeSystem {
		return s
	}
	return n.name(namespaces, s)
}

func (n *nameTables) pod(namespace, s string) string {
	if node, ok := strings.CutPrefix(s, apiServer); ok && namespace == kubeSystem && n.tables[nodes][node] != "" {
		return apiServer + n.tables[nodes][node]
	}
	return n.within(pods, namespace, s)
}

// key replaces a key of labels or taints. One that is not valid stays so.
func (n *nameTables) key(s string) string {
	if knownKeys[s] || cordon.RemovingTool(s) != "" || n.tables == nil {
		return s
	}
	return n.broken(n.name(keys, s), len(validation.IsQualifiedName(s)) > 0)
}

// value replaces a value of labels or taints; those of different keys are replaced alike, since volumes compare them. A
// value that is the name of a node, as that of the label for its host is, stays that. One that is not valid stays so.
func (n *nameTables) value(s string) string {
	if knownValues[s] || n.open[s] || n.tables == nil {
		return s
	}
	if node := n.tables[nodes][s]; node != "" {
		return node
	}
	return n.broken(n.name(values, s), len(validation.IsValidLabelValue(s)) > 0)
}

// broken makes of a hidden name one that no validation lets pass.
func (n *nameTables) broken(s string, invalid bool) string {
	if n.sealed && invalid {
		return s + "!"
	}
	return s
}

func (n *nameTables) driver(s string) string {
	if knownDrivers[s] || strings.HasPrefix(s, "kubernetes.io/") {
		return s
	}
	return n.name(drivers, s)
}

// noteInteger remembers a value that is an integer, in case that some affinity compares its key.
func (n *nameTables) noteInteger(key, value string) {
	if _, err := strconv.ParseInt(value, 10, 64); n.tables == nil || n.sealed || err != nil {
		return
	}
	if n.integers[key] == nil {
		n.integers[key] = map[string]bool{}
	}
	n.integers[key][value] = true
}

func (n *nameTables) resource(s string) string {
	switch {
	case n.tables == nil, s == "", s == "cpu", s == "memory", s == "pods", s == "ephemeral-storage", strings.HasPrefix(s, corev1.ResourceHugePagesPrefix),
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix):
		return s
	}
	if class, ok := strings.CutPrefix(s, resourcev1.ResourceDeviceClassPrefix); ok {
		return resourcev1.ResourceDeviceClassPrefix + n.name(deviceClasses, class)
	}
	hidden := n.name(resources, s)
	switch {
	case !filter.Counted(corev1.ResourceName(s)):
		return hidden // a name without a prefix is not counted
	case strings.Contains(s, corev1.ResourceDefaultNamespacePrefix):
		return corev1.ResourceDefaultNamespacePrefix + hidden
	default:
		return "hashed/" + hidden
	}
}

func (n *nameTables) scheduler(s string) string {
	if s == corev1.DefaultSchedulerName {
		return s
	}
	return n.name(schedulers, s)
}

// each replaces every entry of a list.
func each[T any](list []T, replace func(T) T) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(list))
	for i, item := range list {
		out[i] = replace(item)
	}
	return out
}
