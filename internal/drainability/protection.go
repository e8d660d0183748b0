// Package drainability decides whether a pod may be evicted and whether a node may be retired. The drain engine,
// placement and retirements use the same rules, so that their decisions agree.
//
// This package reads the annotations that protect pods and nodes, or that allow an eviction. It imports nothing of
// Kubernetes, because the agent on every node links it.
package drainability

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The annotations. Boolean values may have any spelling that strconv.ParseBool knows, in any letter case. Other tools
// ignore "True", but its meaning is clear.
const (
	// SafeToEvict is a pod annotation of cluster-autoscaler. false protects the pod. true allows its eviction despite
	// local storage or a missing controller
	// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-pods-can-prevent-ca-from-removing-a-node).
	SafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	// SafeLocalVolumes is a pod annotation of cluster-autoscaler: the comma-separated names of volumes with data that
	// may be lost.
	SafeLocalVolumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	// ScaleDownDisabled is a node annotation of cluster-autoscaler: true protects the node
	// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-can-i-prevent-cluster-autoscaler-from-scaling-down-a-particular-node).
	ScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// ScaleDownDisabledBySlipway marks a ScaleDownDisabled that Slipway set for cluster-autoscaler. Slipway ignores such a
	// ScaleDownDisabled.
	ScaleDownDisabledBySlipway = "nodegroup.slipway.dev/holds-off-cluster-autoscaler"
	// DoNotDisrupt is a pod or node annotation of Karpenter: true, or a duration from the creation
	// (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
	DoNotDisrupt = "karpenter.sh/do-not-disrupt"
	// DoNotEvict is Slipway's annotation with the values of DoNotDisrupt.
	DoNotEvict = "slipway.dev/do-not-evict"
	// Membership is an annotation of nodes in a group that is served as a cloudpool. Its JSON says whether the instance
	// counts to the pool and whether it may be terminated, as in {"active":true,"evictable":false}. Not evictable
	// protects the node.
	Membership = "cloudpool.slipway.dev/membership-status"
	// Detached is an annotation of such nodes too: true for an instance that was detached from its pool and still runs.
	Detached = "cloudpool.slipway.dev/detached"
	// BeingRemovedMark says why a node is being removed. slipway plan and slipway why set it on Nodes in memory and in
	// snapshot files, never in a cluster.
	BeingRemovedMark = "snapshot.slipway.dev/being-removed"
)

// Protection is an annotation that forbids the eviction of a pod or the retirement of a node.
type Protection struct {
	Key, Value string
	// Until is when the protection ends, in nanoseconds since the Unix epoch; 0 is never.
	Until int64
}

// IsActive reports whether the protection applies at the time now.
func (p Protection) IsActive(now time.Time) bool { return p.Until == 0 || now.UnixNano() < p.Until }

// String returns the annotation as key and value.
func (p Protection) String() string { return p.Key + `: "` + p.Value + `"` }

// PodProtections returns the protections of a pod, including protections that have ended. An annotation with an invalid
// value protects nothing, as in the tools that define these annotations.
func PodProtections(annotations map[string]string, created time.Time) []Protection {
	var all []Protection
	if value, ok := annotations[SafeToEvict]; ok && isFalse(value) {
		all = append(all, Protection{Key: SafeToEvict, Value: value})
	}
	return append(all, durationProtections(annotations, created)...)
}

// NodeProtections returns the protections of a node, including protections that have ended.
func NodeProtections(annotations map[string]string, created time.Time) []Protection {
	all := durationProtections(annotations, created)
	if value := annotations[ScaleDownDisabled]; isTrue(value) && !isTrue(annotations[ScaleDownDisabledBySlipway]) {
		all = append(all, Protection{Key: ScaleDownDisabled, Value: value})
	}
	if value := annotations[Detached]; isTrue(value) {
		all = append(all, Protection{Key: Detached, Value: value})
	}
	if value := annotations[Membership]; value != "" && !IsMembershipEvictable(value) {
		all = append(all, Protection{Key: Membership, Value: value})
	}
	return all
}

// IsMembershipEvictable reports whether the value of the annotation Membership permits the termination of the instance.
// An invalid value does not, because a client has set it to protect the instance.
func IsMembershipEvictable(membership string) bool {
	var parsed struct {
		Evictable bool `json:"evictable"`
	}
	return json.Unmarshal([]byte(membership), &parsed) == nil && parsed.Evictable
}

// durationProtections returns the protections by the annotations DoNotEvict and DoNotDisrupt. Their value may be a
// duration from the creation.
func durationProtections(annotations map[string]string, created time.Time) []Protection {
	var all []Protection
	for _, key := range []string{DoNotEvict, DoNotDisrupt} {
		value, ok := annotations[key]
		if !ok {
			continue
		}
		if isTrue(value) {
			all = append(all, Protection{Key: key, Value: value})
		} else if d, err := time.ParseDuration(value); err == nil && d > 0 {
			all = append(all, Protection{Key: key, Value: value, Until: toUnixNanoClamped(created.Add(d))})
		}
	}
	return all
}

// toUnixNanoClamped converts a time to nanoseconds since 1970. It returns 1, which means that a protection has ended,
// if the time is too early for int64. It returns 0, which means no end, if the time is too late.
func toUnixNanoClamped(t time.Time) int64 {
	switch {
	case t.Year() <= 1970:
		return 1
	case t.Year() > 2261:
		return 0
	}
	return t.UnixNano()
}

// FindLongestProtection returns the protection that ends last, or the first protection without an end. The result
// includes protections that have ended. ok is false without a protection.
func FindLongestProtection(all []Protection) (longest Protection, ok bool) {
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

// IsSafeToEvict reports whether the annotation SafeToEvict permits the eviction of the pod.
func IsSafeToEvict(annotations map[string]string) bool { return isTrue(annotations[SafeToEvict]) }

// IsSafeVolume reports whether the annotation SafeLocalVolumes lists this volume of the pod.
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
