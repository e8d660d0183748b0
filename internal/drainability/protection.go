// Package drainability has the rules that decide whether a pod may be evicted and whether a node may be retired. The drain
// engine, placement and retirements ask the same rules, so that no two of them differ.
//
// This package reads the annotations by which people and other tools protect pods and nodes, or allow an eviction. It links
// nothing of Kubernetes: nodes run it.
package drainability

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
	// SafeToEvict is cluster-autoscaler's, of a pod: false protects it, and true allows its eviction though it has local storage
	// or no controller (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-pods-can-prevent-ca-from-removing-a-node).
	SafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	// SafeLocalVolumes is cluster-autoscaler's, of a pod: the names of volumes whose content may be lost, with commas.
	SafeLocalVolumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	// ScaleDownDisabled is cluster-autoscaler's, of a node: true protects it
	// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-can-i-prevent-cluster-autoscaler-from-scaling-down-a-particular-node).
	ScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// HoldsOff says that Slipway set ScaleDownDisabled, for cluster-autoscaler: it does not bind Slipway.
	HoldsOff = "nodegroup.slipway.dev/holds-off-cluster-autoscaler"
	// DoNotDisrupt is Karpenter's, of a pod or a node: true, or a duration from its creation
	// (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
	DoNotDisrupt = "karpenter.sh/do-not-disrupt"
	// DoNotEvict is ours, with the values of DoNotDisrupt.
	DoNotEvict = "slipway.dev/do-not-evict"
	// Membership is of a node whose group is served as a cloudpool: JSON that says whether its machine counts to the pool and
	// whether it may be terminated, as in {"active":true,"evictable":false}. Not evictable protects it.
	Membership = "cloudpool.slipway.dev/membership-status"
	// Detached is of such a node too: true for a machine that was taken out of its pool, and runs on by itself.
	Detached = "cloudpool.slipway.dev/detached"
)

// Protection is an annotation that forbids to evict a pod or to retire a node.
type Protection struct {
	Key, Value string
	// Until is when it ends, in nanoseconds of Unix time; 0 is never.
	Until int64
}

// InForce reports whether it protects at a time.
func (p Protection) InForce(now time.Time) bool { return p.Until == 0 || now.UnixNano() < p.Until }

// String is the annotation as it is written.
func (p Protection) String() string { return p.Key + `: "` + p.Value + `"` }

// OfPod returns the protections of a pod, also those that have ended. A value that cannot be read protects nothing, as in the
// tools that define the annotations.
func OfPod(annotations map[string]string, created time.Time) []Protection {
	var all []Protection
	if value, ok := annotations[SafeToEvict]; ok && isFalse(value) {
		all = append(all, Protection{Key: SafeToEvict, Value: value})
	}
	return append(all, limited(annotations, created)...)
}

// OfNode is OfPod for a node.
func OfNode(annotations map[string]string, created time.Time) []Protection {
	all := limited(annotations, created)
	if value := annotations[ScaleDownDisabled]; isTrue(value) && !isTrue(annotations[HoldsOff]) {
		all = append(all, Protection{Key: ScaleDownDisabled, Value: value})
	}
	if value := annotations[Detached]; isTrue(value) {
		all = append(all, Protection{Key: Detached, Value: value})
	}
	if value := annotations[Membership]; value != "" && !Evictable(value) {
		all = append(all, Protection{Key: Membership, Value: value})
	}
	return all
}

// Evictable reports whether the value of Membership allows to terminate a machine. A value that cannot be read does not: it
// was written to protect something.
func Evictable(membership string) bool {
	var said struct {
		Evictable bool `json:"evictable"`
	}
	return json.Unmarshal([]byte(membership), &said) == nil && said.Evictable
}

// limited returns the protections of DoNotEvict and DoNotDisrupt, which may have a duration.
func limited(annotations map[string]string, created time.Time) []Protection {
	var all []Protection
	for _, key := range []string{DoNotEvict, DoNotDisrupt} {
		value, ok := annotations[key]
		if !ok {
			continue
		}
		if isTrue(value) {
			all = append(all, Protection{Key: key, Value: value})
		} else if d, err := time.ParseDuration(value); err == nil && d > 0 {
			all = append(all, Protection{Key: key, Value: value, Until: unixNano(created.Add(d))})
		}
	}
	return all
}

// unixNano stays within what 64 bits hold: a time before them has ended, and a time after them has no end.
func unixNano(t time.Time) int64 {
	switch {
	case t.Year() <= 1970:
		return 1
	case t.Year() > 2261:
		return 0
	}
	return t.UnixNano()
}

// Longest returns the protection that ends last, or the first that has no end. It does not depend on the time. ok is false
// if there is none.
func Longest(all []Protection) (longest Protection, ok bool) {
	for _, p := range all {
		if p.Until == 0 {
			return p, true
		}
		if !ok || p.Until > longest.Until {
			longest, ok = p, true
		}
	}
	return longest, ok
}

// IsSafeToEvict reports whether SafeToEvict allows the eviction of a pod.
func IsSafeToEvict(annotations map[string]string) bool { return isTrue(annotations[SafeToEvict]) }

// IsSafeVolume reports whether SafeLocalVolumes names a pod's volume.
func IsSafeVolume(annotations map[string]string, volume string) bool {
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
