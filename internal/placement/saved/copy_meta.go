package saved

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/internal/drainability"
)

// copyMeta copies the metadata that placement reads, with the given labels and annotations.
func (r *redactor) copyMeta(o *metav1.ObjectMeta, namespace, name string, labels, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(r.replaceName(uids, string(o.UID))), Generation: o.Generation,
		Labels: labels, Annotations: annotations, CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
		OwnerReferences: mapList(o.OwnerReferences, r.copyOwner),
	}
}

func (r *redactor) copyOwner(o metav1.OwnerReference) metav1.OwnerReference {
	kind := o.Kind
	if !knownOwners[kind] {
		kind = r.replaceName(ownerKinds, kind)
	}
	return metav1.OwnerReference{
		Kind: kind, Name: r.replaceName(owners, o.Name), UID: types.UID(r.replaceName(uids, string(o.UID))), Controller: o.Controller,
	}
}

func (r *redactor) copyLabels(set map[string]string) map[string]string {
	if set == nil {
		return nil
	}
	out := make(map[string]string, len(set))
	for key, value := range set {
		r.recordIfInteger(key, value)
		out[r.replaceUnknownKey(key)] = r.replaceUnknownValue(value)
	}
	return out
}

// Annotations that placement reads, by how their values are copied.
var (
	// boolAnnotations have a boolean or a duration as value.
	boolAnnotations = newSet(
		drainability.SafeToEvict, drainability.ScaleDownDisabled, drainability.DoNotDisrupt, drainability.DoNotEvict, drainability.ScaleDownDisabledBySlipway,
		drainability.Detached,
	)
	// presenceAnnotations only need to exist.
	presenceAnnotations = newSet(corev1.MirrorPodAnnotationKey, "pv.kubernetes.io/bind-completed")
)

const annotationSelectedNode = "volume.kubernetes.io/selected-node"

func (r *redactor) copyRelevantAnnotations(set map[string]string) map[string]string {
	var out map[string]string
	put := func(key, value string) {
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	for key, value := range set {
		switch {
		case presenceAnnotations[key]:
			put(key, "")
		case boolAnnotations[key]:
			put(key, keepBoolOrDuration(value))
		case key == drainability.BeingRemovedMark && r.tables != nil:
			put(key, "is being removed")
		case key == drainability.BeingRemovedMark:
			put(key, value)
		case key == drainability.Membership && value != "":
			put(key, fmt.Sprintf(`{"evictable":%t}`, drainability.IsMembershipEvictable(value)))
		case key == annotationSelectedNode:
			put(key, r.replaceName(nodes, value))
		case key == corev1.BetaStorageClassAnnotation:
			put(key, r.replaceName(storageClasses, value))
		case key == drainability.SafeLocalVolumes:
			list := mapList(strings.Split(value, ","), func(s string) string { return r.replaceName(podVolumes, s) })
			put(key, strings.Join(list, ","))
		case key == corev1.MigratedPluginsAnnotationKey:
			known := func(s string) bool { return !strings.HasPrefix(s, "kubernetes.io/") }
			put(key, strings.Join(slices.DeleteFunc(strings.Split(value, ","), known), ","))
		}
	}
	return out
}

// keepBoolOrDuration returns a boolean or a duration unchanged. Any other value has no effect and becomes empty.
func keepBoolOrDuration(s string) string {
	if _, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(s))); err == nil {
		return s
	}
	if _, err := time.ParseDuration(s); err == nil {
		return s
	}
	return ""
}

func (r *redactor) copyLabelSelector(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	return &metav1.LabelSelector{
		MatchLabels: r.copyLabels(s.MatchLabels),
		MatchExpressions: mapList(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) metav1.LabelSelectorRequirement {
			return metav1.LabelSelectorRequirement{Key: r.replaceUnknownKey(e.Key), Operator: e.Operator, Values: mapList(e.Values, r.replaceUnknownValue)}
		}),
	}
}

func (r *redactor) copyNodeSelector(s *corev1.NodeSelector) *corev1.NodeSelector {
	if s == nil {
		return nil
	}
	return &corev1.NodeSelector{NodeSelectorTerms: mapList(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{
			MatchExpressions: mapList(t.MatchExpressions, r.copyNodeExpression), MatchFields: mapList(t.MatchFields, r.copyNodeField),
		}
	})}
}

func (r *redactor) copyNodeExpression(e corev1.NodeSelectorRequirement) corev1.NodeSelectorRequirement {
	if r.tables != nil && (e.Operator == corev1.NodeSelectorOpGt || e.Operator == corev1.NodeSelectorOpLt) {
		r.comparedKeys[e.Key] = true
		for _, value := range e.Values {
			r.recordIfInteger(e.Key, value)
		}
	}
	return corev1.NodeSelectorRequirement{Key: r.replaceUnknownKey(e.Key), Operator: e.Operator, Values: mapList(e.Values, r.replaceUnknownValue)}
}

// copyNodeField copies a field selector. The only field is the name of the node.
func (r *redactor) copyNodeField(e corev1.NodeSelectorRequirement) corev1.NodeSelectorRequirement {
	key := e.Key
	if key != metav1.ObjectNameField {
		key = r.replaceUnknownKey(key)
	}
	names := mapList(e.Values, func(s string) string { return r.replaceName(nodes, s) })
	return corev1.NodeSelectorRequirement{Key: key, Operator: e.Operator, Values: names}
}

// copyResourceList replaces the names of extended resources. A name that the scheduler does not count is replaced by
// another such name.
func (r *redactor) copyResourceList(list corev1.ResourceList) corev1.ResourceList {
	if list == nil {
		return nil
	}
	out := make(corev1.ResourceList, len(list))
	for name, quantity := range list {
		out[corev1.ResourceName(r.replaceExtendedResource(string(name)))] = quantity
	}
	return out
}
