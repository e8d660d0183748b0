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

// OriginalNames maps each hashed name to the original name. A composed name, such as the name of a claim generated for a pod,
// is not in it; its parts are.
type OriginalNames map[string]string

// HashNames returns a copy of the cluster with hashed names, which is safe to share, and the original names. Placement
// gives the same answers about it, apart from the names. The original is not changed.
//
// These are hashed:
//   - names of nodes, namespaces, pods, owners, budgets, claims, volumes, storage classes, drivers, devices, containers
//     and disks
//   - keys and values of labels and taints
//   - names of extended resources, scheduling gates and schedulers
//   - addresses and UIDs
//
// These stay readable:
// - numbers (requests, capacities, priorities, budgets), times, kinds, phases, effects and ports
// - the namespace kube-system, and the keys, operating systems and architectures that every cluster has
// - drivers that Kubernetes itself knows, and integers that node affinity compares as numbers
//
// A hashed name consists of its kind, its position in the alphabetical order of its kind, and a keyed hash, such as
// "node-0017-8c2f19ab". The order is kept because names break ties. Each cluster gets a new random key, which is
// discarded. So names cannot be guessed, and two files cannot be matched.
func (o *Objects) HashNames() (hashed *Objects, names OriginalNames) {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // It never fails; see crypto/rand.
	r := redactor{generatedClaims: map[claimKey]podVolume{}, nameTables: nameTables{
		tables: map[nameKind]nameTable{}, comparedKeys: map[string]bool{}, integers: map[string]map[string]bool{}, keptValues: map[string]bool{},
	}}
	r.copyObjects(o) // Collect all names first, because each needs its position among them.
	names = r.assignHashedNames(key)
	return r.copyObjects(o), names
}

// nameKind is the kind of a name. Each kind is hashed separately, so that equal names of a pod and a node do not
// match.
type nameKind string

const (
	nodes          nameKind = "node"
	namespaces     nameKind = "namespace"
	pods           nameKind = "pod"
	budgets        nameKind = "budget"
	claims         nameKind = "claim"
	volumes        nameKind = "volume"
	podVolumes     nameKind = "mount"
	storageClasses nameKind = "class"
	drivers        nameKind = "driver"
	handles        nameKind = "handle"
	attachments    nameKind = "attachment"
	deviceClasses  nameKind = "device"
	keys           nameKind = "key"
	values         nameKind = "value"
	resources      nameKind = "resource"
	containers     nameKind = "container"
	disks          nameKind = "disk"
	owners         nameKind = "owner"
	ownerKinds     nameKind = "kind"
	gates          nameKind = "gate"
	podGroups      nameKind = "group"
	schedulers     nameKind = "scheduler"
	requests       nameKind = "request"
	addresses      nameKind = "address"
	uids           nameKind = "uid"
)

// nameTable maps the names of one kind to their hashed names, once these are assigned.
type nameTable map[string]string

// redactor copies what placement reads from a cluster. The zero redactor does not change names. Any other redactor
// first collects all names and, after assignHashedNames, replaces them.
type redactor struct {
	nameTables
	generatedClaims map[claimKey]podVolume // claims with names composed of a pod name and a volume name
}

// nameTables holds all names. The zero value replaces none.
type nameTables struct {
	tables       map[nameKind]nameTable
	isSealed     bool
	comparedKeys map[string]bool            // label keys with values that a node affinity compares as integers
	integers     map[string]map[string]bool // integer label values by key
	keptValues   map[string]bool            // label values that are not replaced
}

// namespaceSeparator sorts before every character of a name, so that pairs sort in order.
const namespaceSeparator = "\x00"

// replaceName replaces a name of a kind. An empty name stays empty.
func (n *nameTables) replaceName(k nameKind, s string) string {
	return n.recordOrReplaceName(k, "", s)
}

func (n *nameTables) recordOrReplaceName(k nameKind, namespace, s string) string {
	if s == "" || n.tables == nil {
		return s
	}
	id := s
	if namespace != "" {
		id = namespace + namespaceSeparator + s
	}
	if n.isSealed {
		return n.tables[k][id]
	}
	if n.tables[k] == nil {
		n.tables[k] = nameTable{}
	}
	n.tables[k][id] = ""
	return s
}

// kubeSystem is the namespace in which a static pod can show that its node is part of the control plane.
const kubeSystem = "kube-system"

// apiServerPodPrefix is the prefix of a static API server pod. The node name follows.
const apiServerPodPrefix = "kube-apiserver-"

// assignHashedNames assigns a hashed name to every name.
func (n *nameTables) assignHashedNames(key []byte) OriginalNames {
	names := OriginalNames{}
	for k, t := range n.tables {
		ids := slices.Sorted(maps.Keys(t))
		width := len(strconv.Itoa(len(ids)))
		for place, id := range ids {
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(string(k) + namespaceSeparator + id))
			t[id] = fmt.Sprintf("%s-%0*d-%s", k, width, place+1, hex.EncodeToString(mac.Sum(nil)[:4]))
			if k == namespaces && id < kubeSystem {
				t[id] = "a-" + t[id] // keep what sorts before kube-system before it
			}
			names[t[id]] = id[strings.LastIndex(id, namespaceSeparator)+1:]
		}
	}
	for key := range n.comparedKeys {
		maps.Copy(n.keptValues, n.integers[key])
	}
	n.isSealed = true
	return names
}

func (n *nameTables) replaceNamespaceUnlessKubeSystem(s string) string {
	if s == kubeSystem {
		return s
	}
	return n.replaceName(namespaces, s)
}

func (n *nameTables) replacePodName(namespace, s string) string {
	if node, ok := strings.CutPrefix(s, apiServerPodPrefix); ok && namespace == kubeSystem && n.tables[nodes][node] != "" {
		return apiServerPodPrefix + n.tables[nodes][node]
	}
	return n.recordOrReplaceName(pods, namespace, s)
}

// replaceUnknownKey replaces a key of labels or taints. An invalid key stays invalid.
func (n *nameTables) replaceUnknownKey(s string) string {
	if knownKeys[s] || cordon.RemovingToolOfTaint(s) != "" || n.tables == nil {
		return s
	}
	return n.keepHashedNameInvalid(n.replaceName(keys, s), len(validation.IsQualifiedName(s)) > 0)
}

// replaceUnknownValue replaces a value of labels or taints. Equal values of different keys stay equal, because volumes
// compare them. A value that is a node name, such as the hostname label, becomes the hashed node name. An invalid
// value stays invalid.
func (n *nameTables) replaceUnknownValue(s string) string {
	if knownValues[s] || n.keptValues[s] || n.tables == nil {
		return s
	}
	if node := n.tables[nodes][s]; node != "" {
		return node
	}
	return n.keepHashedNameInvalid(n.replaceName(values, s), len(validation.IsValidLabelValue(s)) > 0)
}

// keepHashedNameInvalid makes a hashed name invalid if the original was invalid.
func (n *nameTables) keepHashedNameInvalid(s string, invalid bool) string {
	if n.isSealed && invalid {
		return s + "!"
	}
	return s
}

func (n *nameTables) replaceUnknownDriver(s string) string {
	if knownDrivers[s] || strings.HasPrefix(s, "kubernetes.io/") {
		return s
	}
	return n.replaceName(drivers, s)
}

// recordIfInteger records an integer value, in case a node affinity compares its key.
func (n *nameTables) recordIfInteger(key, value string) {
	if _, err := strconv.ParseInt(value, 10, 64); n.tables == nil || n.isSealed || err != nil {
		return
	}
	if n.integers[key] == nil {
		n.integers[key] = map[string]bool{}
	}
	n.integers[key][value] = true
}

func (n *nameTables) replaceExtendedResource(s string) string {
	switch {
	case n.tables == nil, s == "", s == "cpu", s == "memory", s == "pods", s == "ephemeral-storage", strings.HasPrefix(s, corev1.ResourceHugePagesPrefix),
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix):
		return s
	}
	if class, ok := strings.CutPrefix(s, resourcev1.ResourceDeviceClassPrefix); ok {
		return resourcev1.ResourceDeviceClassPrefix + n.replaceName(deviceClasses, class)
	}
	hidden := n.replaceName(resources, s)
	switch {
	case !filter.IsCheckedByScheduler(corev1.ResourceName(s)):
		return hidden // a name without a prefix is not counted
	case strings.Contains(s, corev1.ResourceDefaultNamespacePrefix):
		return corev1.ResourceDefaultNamespacePrefix + hidden
	default:
		return "hashed/" + hidden
	}
}

func (n *nameTables) replaceNonDefaultScheduler(s string) string {
	if s == corev1.DefaultSchedulerName {
		return s
	}
	return n.replaceName(schedulers, s)
}

func mapList[T any](list []T, replace func(T) T) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(list))
	for i, item := range list {
		out[i] = replace(item)
	}
	return out
}
