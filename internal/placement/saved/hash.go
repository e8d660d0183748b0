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

	"k8s.io/apimachinery/pkg/util/validation"
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
	r := renamer{
		tables: map[kind]table{}, compared: map[string]bool{}, integers: map[string]map[string]bool{}, open: map[string]bool{},
		made: map[claimKey]podVolume{},
	}
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
	tables   map[kind]table
	sealed   bool
	compared map[string]bool            // label keys whose values some node affinity compares as integers
	integers map[string]map[string]bool // values of labels that are integers, by key
	open     map[string]bool            // label values that stay
	made     map[claimKey]podVolume     // claims that are called after a pod and its volume
}

// separator is in no name, and lower than all that is, so that pairs are in order.
const separator = "\x00"

// name replaces a name of a kind; empty stays empty.
func (r *renamer) name(k kind, s string) string { return r.within(k, "", s) }

// within replaces a name that is one of a namespace.
func (r *renamer) within(k kind, namespace, s string) string {
	if s == "" || r.tables == nil {
		return s
	}
	id := s
	if namespace != "" {
		id = namespace + separator + s
	}
	if r.sealed {
		return r.tables[k][id]
	}
	if r.tables[k] == nil {
		r.tables[k] = table{}
	}
	r.tables[k][id] = ""
	return s
}

// kubeSystem is the namespace in which a static pod can show that its node is part of the control plane.
const kubeSystem = "kube-system"

// apiServer is how the name of a static API server begins; that of its node follows.
const apiServer = "kube-apiserver-"

// seal gives every name what stands for it.
func (r *renamer) seal(key []byte) Names {
	names := Names{}
	for k, t := range r.tables {
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
	for key := range r.compared {
		maps.Copy(r.open, r.integers[key])
	}
	r.sealed = true
	return names
}

func (r *renamer) namespace(s string) string {
	if s == kubeSystem {
		return s
	}
	return r.name(namespaces, s)
}

func (r *renamer) pod(namespace, s string) string {
	if node, ok := strings.CutPrefix(s, apiServer); ok && namespace == kubeSystem && r.tables[nodes][node] != "" {
		return apiServer + r.tables[nodes][node]
	}
	return r.within(pods, namespace, s)
}

// key replaces a key of labels or taints. One that is not valid stays so.
func (r *renamer) key(s string) string {
	if knownKeys[s] || r.tables == nil {
		return s
	}
	return r.broken(r.name(keys, s), len(validation.IsQualifiedName(s)) > 0)
}

// value replaces a value of labels or taints; those of different keys are replaced alike, since volumes compare them. A
// value that is the name of a node, as that of the label for its host is, stays that. One that is not valid stays so.
func (r *renamer) value(s string) string {
	if knownValues[s] || r.open[s] || r.tables == nil {
		return s
	}
	if node := r.tables[nodes][s]; node != "" {
		return node
	}
	return r.broken(r.name(values, s), len(validation.IsValidLabelValue(s)) > 0)
}

// broken makes of a hidden name one that no validation lets pass.
func (r *renamer) broken(s string, invalid bool) string {
	if r.sealed && invalid {
		return s + "!"
	}
	return s
}

func (r *renamer) driver(s string) string {
	if knownDrivers[s] || strings.HasPrefix(s, "kubernetes.io/") {
		return s
	}
	return r.name(drivers, s)
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
