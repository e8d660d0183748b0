// Package protection reads the annotations by which people and other tools ask for a pod or a node to be left where it is,
// or say that a pod may go. The drain engine, placement and the retirement of nodes all ask here, so that none of them
// takes what another one holds. It links nothing of Kubernetes: nodes run it.
package protection

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The annotations. Truth values are read in any spelling that strconv.ParseBool knows, in any letter case: other tools pass
// over "True", and what was meant is plain.
const (
	// SafeToEvict is cluster-autoscaler's, of a pod: false holds it, and true lets it go though it has local storage or no
	// controller (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-pods-can-prevent-ca-from-removing-a-node).
	SafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	// SafeLocalVolumes is cluster-autoscaler's, of a pod: the names of volumes whose content may be lost, with commas.
	SafeLocalVolumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	// ScaleDownDisabled is cluster-autoscaler's, of a node: true holds it
	// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-can-i-prevent-cluster-autoscaler-from-scaling-down-a-particular-node).
	ScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// HoldsOff says that ScaleDownDisabled is Slipway's own, for cluster-autoscaler, and asks nothing of Slipway.
	HoldsOff = "nodegroup.slipway.dev/holds-off-cluster-autoscaler"
	// DoNotDisrupt is Karpenter's, of a pod or a node: true, or a duration from its creation
	// (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
	DoNotDisrupt = "karpenter.sh/do-not-disrupt"
	// DoNotEvict is ours, with the values of DoNotDisrupt.
	DoNotEvict = "slipway.dev/do-not-evict"
	// Membership is of a node whose group is served as a cloudpool: JSON that says whether its machine counts to the pool and
	// whether it may be taken away, as in {"active":true,"evictable":false}. Not evictable holds it.
	Membership = "cloudpool.slipway.dev/membership-status"
	// Detached is of such a node too: true for a machine that was taken out of its pool, and runs on by itself.
	Detached = "cloudpool.slipway.dev/detached"
)

// Hold is an annotation that asks for what carries it to be left where it is.
type Hold struct {
	Key, Value string
	// Until is when it ends; zero for as long as it is there.
	Until time.Time
}

// At says whether it holds at a time.
func (h Hold) At(now time.Time) bool { return h.Until.IsZero() || now.Before(h.Until) }

// OfPod gives what holds a pod, also what has ended, in the order in which it is to be named. A value that cannot be read
// holds nothing, as in the tools whose annotations these are.
func OfPod(annotations map[string]string, created time.Time) []Hold {
	var holds []Hold
	if value, ok := annotations[SafeToEvict]; ok && isFalse(value) {
		holds = append(holds, Hold{Key: SafeToEvict, Value: value})
	}
	return append(holds, forATime(annotations, created)...)
}

// OfNode is OfPod for a node.
func OfNode(annotations map[string]string, created time.Time) []Hold {
	holds := forATime(annotations, created)
	if value := annotations[ScaleDownDisabled]; isTrue(value) && !isTrue(annotations[HoldsOff]) {
		holds = append(holds, Hold{Key: ScaleDownDisabled, Value: value})
	}
	if value := annotations[Detached]; isTrue(value) {
		holds = append(holds, Hold{Key: Detached, Value: value})
	}
	if value := annotations[Membership]; value != "" && !Evictable(value) {
		holds = append(holds, Hold{Key: Membership, Value: value})
	}
	return holds
}

// Evictable says whether the value of Membership lets a machine be taken away. One that cannot be read does not: who has
// written it wanted something kept.
func Evictable(membership string) bool {
	var said struct {
		Evictable bool `json:"evictable"`
	}
	return json.Unmarshal([]byte(membership), &said) == nil && said.Evictable
}

func forATime(annotations map[string]string, created time.Time) []Hold {
	var holds []Hold
	for _, key := range []string{DoNotEvict, DoNotDisrupt} {
		value, ok := annotations[key]
		if !ok {
			continue
		}
		if isTrue(value) {
			holds = append(holds, Hold{Key: key, Value: value})
		} else if d, err := time.ParseDuration(value); err == nil && d > 0 {
			holds = append(holds, Hold{Key: key, Value: value, Until: created.Add(d)})
		}
	}
	return holds
}

// Now is the first hold that holds at a time. It is false when none does.
func Now(holds []Hold, now time.Time) (Hold, bool) {
	if at := slices.IndexFunc(holds, func(h Hold) bool { return h.At(now) }); at >= 0 {
		return holds[at], true
	}
	return Hold{}, false
}

// Longest is the hold that ends last, or the first that does not end. It is false when there is none.
func Longest(holds []Hold) (longest Hold, ok bool) {
	for _, h := range holds {
		if h.Until.IsZero() {
			return h, true
		}
		if !ok || h.Until.After(longest.Until) {
			longest, ok = h, true
		}
	}
	return longest, ok
}

// MayGo says whether a pod is said to be safe to evict.
func MayGo(annotations map[string]string) bool { return isTrue(annotations[SafeToEvict]) }

// MayLose says whether the content of a pod's volume is said to be of no worth.
func MayLose(annotations map[string]string, volume string) bool {
	return slices.Contains(strings.Split(annotations[SafeLocalVolumes], ","), volume)
}

func isTrue(value string) bool {
	b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(value)))
	return err == nil && b
}

func isFalse(value string) bool {
	b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(value)))
	return err == nil && !b
}
