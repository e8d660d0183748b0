package nodegroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/drainability/fromcorev1"
)

// Fault says why a group is refused. Its Reason becomes the reason of the condition Accepted.
type Fault struct{ Reason, Message string }

// Assignment says which group owns each node, and why some groups are refused.
type Assignment struct {
	OwnerByNode  map[string]string // node to group
	FaultByGroup map[string]Fault  // group to its fault
}

// AssignNodes assigns each node to at most one group. It assigns to older groups first, and before them to groups of a
// file, which have no age. If a group selects a node of an older group, the younger group is refused, and the older
// group keeps its nodes. Also refused is the younger of two groups with scaleUp and the same cloud group. A refused group
// owns no nodes. The result does not depend on the cloud's answers. So a cloud outage never moves a node to another group.
func AssignNodes(groups []v1alpha1.NodeGroup, nodes []corev1.Node) Assignment {
	c := Assignment{OwnerByNode: map[string]string{}, FaultByGroup: map[string]Fault{}}
	launcherByCloudGroup := map[v1alpha1.CloudGroup]string{} // oldest valid group with scaleUp, whatever nodes it selects
	for _, g := range sortByAge(groups) {
		if errs := Validate(g); len(errs) > 0 {
			c.FaultByGroup[g.Name] = Fault{v1alpha1.InvalidSpec, strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; ")}
			continue
		}
		launcher := launcherByCloudGroup[cloudGroupKey(g)]
		if launcher == "" && g.Spec.ScaleUp != nil {
			launcherByCloudGroup[cloudGroupKey(g)] = g.Name
		}
		selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
		if err != nil {
			c.FaultByGroup[g.Name] = Fault{v1alpha1.InvalidSpec, "spec.nodeSelector: " + err.Error()}
			continue
		}
		var own, controlPlane []string
		older := map[string][]string{} // older group to the nodes that both select
		for i := range nodes {
			n := &nodes[i]
			if !selector.Matches(labels.Set(n.Labels)) {
				continue
			}
			own = append(own, n.Name)
			if fromcorev1.NodeFacts(n).ControlPlane != "" {
				controlPlane = append(controlPlane, n.Name)
			}
			if owner := c.OwnerByNode[n.Name]; owner != "" {
				older[owner] = append(older[owner], n.Name)
			}
		}
		switch {
		case len(controlPlane) > 0:
			c.FaultByGroup[g.Name] = Fault{
				v1alpha1.SelectsControlPlane,
				"spec.nodeSelector: selects control-plane nodes, which belong to no group: " + formatNames(controlPlane),
			}
		case len(older) > 0:
			c.FaultByGroup[g.Name] = newOverlapFault(older)
		case g.Spec.ScaleUp != nil && launcher != "":
			// Each would count all instances of the cloud group, and claim the new ones for its launches.
			c.FaultByGroup[g.Name] = Fault{v1alpha1.OverlapsGroup, fmt.Sprintf(
				"spec.cloud: provider %q, group %q: NodeGroup %s is older and has scaleUp there: only one of them may have it",
				g.Spec.Cloud.Provider, g.Spec.Cloud.Group, launcher)}
		default:
			for _, name := range own {
				c.OwnerByNode[name] = g.Name
			}
		}
	}
	return c
}

// cloudGroupKey is the same for names that differ only in case, which are the same scale set at Azure.
func cloudGroupKey(g *v1alpha1.NodeGroup) v1alpha1.CloudGroup {
	return v1alpha1.CloudGroup{Provider: g.Spec.Cloud.Provider, Group: strings.ToLower(g.Spec.Cloud.Group)}
}

func newOverlapFault(theirs map[string][]string) Fault {
	var parts []string
	for _, older := range slices.Sorted(maps.Keys(theirs)) {
		parts = append(parts, fmt.Sprintf("NodeGroup %s, which is older: %s", older, formatNames(theirs[older])))
	}
	return Fault{v1alpha1.OverlapsGroup, "spec.nodeSelector: selects nodes of " + strings.Join(parts, "; of ") +
		"; a node belongs to one group at most"}
}

// sortByAge returns the groups sorted by creation time, and by name if that is equal.
func sortByAge(groups []v1alpha1.NodeGroup) []*v1alpha1.NodeGroup {
	sorted := make([]*v1alpha1.NodeGroup, len(groups))
	for i := range groups {
		sorted[i] = &groups[i]
	}
	slices.SortStableFunc(sorted, func(a, b *v1alpha1.NodeGroup) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// maxListedNames is the largest number of names in one message.
const maxListedNames = 5

func formatNames(names []string) string {
	slices.Sort(names)
	if len(names) <= maxListedNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListedNames], ", "), len(names)-maxListedNames)
}

// CloudUnreadable is the reason of the condition Accepted while its status is Unknown.
const CloudUnreadable = "CloudUnreadable"

// Reasons of the condition CloudReachable.
const (
	reasonCloudRead          = "Reachable"
	reasonCloudThrottled     = "Throttled"
	reasonCloudFailed        = "Failed"
	reasonCloudNotConfigured = "NotConfigured"
)

// cloudReading is the last answer of a cloud to a request for a group.
type cloudReading struct {
	group cloud.Group
	err   error
	// missing are the rights for the group that the credential lacks, if known.
	missing cloud.GroupPermissions
	// known means that the cloud has answered, with or without an error.
	known bool
	// isPostponed means that the cloud was not asked, because calls for its other groups hang.
	isPostponed bool
}

// newCloudAcceptedCondition returns the condition Accepted of a group without a Fault; it depends on the cloud's
// answer. If the cloud has not answered, the result is the previous condition was, if that is about the same generation
// (invariant I7: unknown is not gone).
func newCloudAcceptedCondition(g *v1alpha1.NodeGroup, configured []string, reading cloudReading, was *metav1.Condition) metav1.Condition {
	refuse := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	where := g.Spec.Cloud
	var refused *cloud.RefusedError
	switch {
	case !slices.Contains(configured, where.Provider):
		return refuse(v1alpha1.UnknownCloud, fmt.Sprintf("spec.cloud.provider: %q is not configured: %s", where.Provider, describeConfiguredClouds(configured)))
	case reading.known && reading.err == nil && len(reading.missing.ToDelete) > 0:
		return refuse(v1alpha1.CloudRightsMissing, fmt.Sprintf("spec.cloud.group: %q: the credential lacks %s", where.Group, reading.missing.ToDelete))
	case reading.known && reading.err == nil:
		message := "the group is accepted"
		if len(reading.missing.ToGrow) > 0 && g.Spec.Replacement != v1alpha1.ReplaceNever {
			message += fmt.Sprintf(", but no instances can be launched: the credential lacks %s", reading.missing.ToGrow)
		}
		return metav1.Condition{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason, Message: message,
		}
	case cloud.IsNotFound(reading.err):
		return refuse(v1alpha1.CloudGroupNotFound, fmt.Sprintf("spec.cloud.group: %q: %s", where.Group, reading.err))
	case errors.As(reading.err, &refused):
		return refuse(v1alpha1.CloudRefused, fmt.Sprintf("spec.cloud.group: %q: %s", where.Group, reading.err))
	case was != nil && was.ObservedGeneration == g.Generation && dependsOnCloud(was.Reason):
		return *was
	}
	message := "waiting for the cloud's first answer"
	if reading.err != nil { // such as a timeout, which may last for hours
		message = fmt.Sprintf("spec.cloud.group: %q: the cloud has not answered without an error yet: %s", where.Group, reading.err)
	}
	return metav1.Condition{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionUnknown, Reason: CloudUnreadable, Message: message}
}

func describeConfiguredClouds(configured []string) string {
	if len(configured) == 0 {
		return "no cloud is configured"
	}
	return "want one of " + strings.Join(configured, ", ")
}

// dependsOnCloud reports whether a condition with this reason can change only after an answer of the cloud.
func dependsOnCloud(reason string) bool {
	return slices.Contains([]string{
		v1alpha1.AcceptedReason, v1alpha1.CloudGroupNotFound, v1alpha1.CloudRefused, v1alpha1.CloudRightsMissing,
	}, reason)
}

// newReachableCondition returns the condition CloudReachable. A cloud that refuses the request, or that does not find
// the group, counts as reachable.
func newReachableCondition(g *v1alpha1.NodeGroup, configured []string, reading cloudReading) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.GroupCloudReachable, Status: metav1.ConditionTrue, Reason: reasonCloudRead}
	set := func(status metav1.ConditionStatus, reason, message string) {
		c.Status, c.Reason, c.Message = status, reason, message
	}
	switch {
	case !slices.Contains(configured, g.Spec.Cloud.Provider):
		set(metav1.ConditionFalse, reasonCloudNotConfigured, fmt.Sprintf("%q is not configured: %s", g.Spec.Cloud.Provider, describeConfiguredClouds(configured)))
	case !reading.known:
		set(metav1.ConditionUnknown, CloudUnreadable, "")
	case reading.err == nil, cloud.IsNotFound(reading.err), cloud.RefusalOf(reading.err) != "":
	case cloud.IsThrottled(reading.err):
		set(metav1.ConditionFalse, reasonCloudThrottled, reading.err.Error())
	default:
		set(metav1.ConditionFalse, reasonCloudFailed, reading.err.Error())
	}
	return c
}

// newAcceptedCondition returns the condition Accepted of any group, with or without a Fault.
func newAcceptedCondition(g *v1alpha1.NodeGroup, claims Assignment, configured []string, reading cloudReading) metav1.Condition {
	if f, wrong := claims.FaultByGroup[g.Name]; wrong {
		return metav1.Condition{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: f.Reason, Message: f.Message}
	}
	return newCloudAcceptedCondition(g, configured, reading, meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted))
}
