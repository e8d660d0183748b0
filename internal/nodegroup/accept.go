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

// Fault is what is wrong with a group as the cluster is; Reason is one of the condition Accepted.
type Fault struct{ Reason, Message string }

// Claims say which group each node is of, and what is wrong with the groups that are to have none.
type Claims struct {
	Owner  map[string]string // node to group
	Faults map[string]Fault  // group to what is wrong with it
}

// Claim gives each node to one group at most. The groups take their turn by age, those of a file first, which have none:
// a group that selects a node of an older one is refused, and the older one keeps all of its nodes. A group that is
// refused owns nothing; what its cloud says does not matter here, so that an outage of a cloud gives no node to another
// group.
func Claim(groups []v1alpha1.NodeGroup, nodes []corev1.Node) Claims {
	c := Claims{Owner: map[string]string{}, Faults: map[string]Fault{}}
	for _, g := range byAge(groups) {
		if errs := Check(g); len(errs) > 0 {
			c.Faults[g.Name] = Fault{v1alpha1.InvalidSpec, strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; ")}
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
		if err != nil {
			c.Faults[g.Name] = Fault{v1alpha1.InvalidSpec, "spec.nodeSelector: " + err.Error()}
			continue
		}
		var mine, masters []string
		theirs := map[string][]string{} // older group to the nodes that both select
		for i := range nodes {
			n := &nodes[i]
			if !selector.Matches(labels.Set(n.Labels)) {
				continue
			}
			mine = append(mine, n.Name)
			if fromcorev1.Node(n).ControlPlane != "" {
				masters = append(masters, n.Name)
			}
			if owner := c.Owner[n.Name]; owner != "" {
				theirs[owner] = append(theirs[owner], n.Name)
			}
		}
		switch {
		case len(masters) > 0:
			c.Faults[g.Name] = Fault{
				v1alpha1.SelectsControlPlane,
				"spec.nodeSelector: selects nodes of the control plane, which belong to no group: " + some(masters),
			}
		case len(theirs) > 0:
			c.Faults[g.Name] = overlap(theirs)
		default:
			for _, name := range mine {
				c.Owner[name] = g.Name
			}
		}
	}
	return c
}

func overlap(theirs map[string][]string) Fault {
	var parts []string
	for _, older := range slices.Sorted(maps.Keys(theirs)) {
		parts = append(parts, fmt.Sprintf("NodeGroup %s, which is older: %s", older, some(theirs[older])))
	}
	return Fault{v1alpha1.OverlapsGroup, "spec.nodeSelector: selects nodes of " + strings.Join(parts, "; of ") +
		"; a node belongs to one group at most"}
}

// byAge sorts groups: the older first, those of one second by name.
func byAge(groups []v1alpha1.NodeGroup) []*v1alpha1.NodeGroup {
	sorted := make([]*v1alpha1.NodeGroup, len(groups))
	for i := range groups {
		sorted[i] = &groups[i]
	}
	slices.SortStableFunc(sorted, func(a, b *v1alpha1.NodeGroup) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// few is how many names a message has.
const few = 5

func some(names []string) string {
	slices.Sort(names)
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// CloudNotRead is the reason of the condition Accepted while it is Unknown.
const CloudNotRead = "CloudUnreadable"

// Reasons of the condition CloudReachable.
const (
	cloudRead      = "Reachable"
	cloudThrottled = "Throttled"
	cloudFailed    = "Failed"
	cloudNone      = "NotConfigured"
)

// cloudLook is the last answer of a cloud about a group.
type cloudLook struct {
	group cloud.Group
	err   error
	// missing are the rights that the credential is known to lack for the group.
	missing cloud.GroupRights
	// known says that there was an answer, good or bad.
	known bool
	// waits says that the cloud was not asked, since it hangs for others of its groups.
	waits bool
}

// accepted is the condition Accepted of a group without a Fault. A cloud that does not answer changes nothing: what it
// said last holds, as the group has it in was (I7: unknown is not gone).
func accepted(g *v1alpha1.NodeGroup, configured []string, look cloudLook, was *metav1.Condition) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	where := g.Spec.Cloud
	var refused *cloud.RefusedError
	switch {
	case !slices.Contains(configured, where.Provider):
		return no(v1alpha1.UnknownCloud, fmt.Sprintf("spec.cloud.provider: %q is not configured: %s", where.Provider, said(configured)))
	case look.known && look.err == nil && len(look.missing.ToDelete) > 0:
		return no(v1alpha1.CloudRightsMissing, fmt.Sprintf("spec.cloud.group: %q: the credential lacks %s", where.Group, look.missing.ToDelete))
	case look.known && look.err == nil:
		message := "the group is acted on"
		if len(look.missing.ToGrow) > 0 && g.Spec.Replacement != v1alpha1.ReplaceNever {
			message += fmt.Sprintf(", and cannot get machines: the credential lacks %s", look.missing.ToGrow)
		}
		return metav1.Condition{
			Type: v1alpha1.GroupAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.AcceptedReason, Message: message,
		}
	case cloud.IsNotFound(look.err):
		return no(v1alpha1.CloudGroupNotFound, fmt.Sprintf("spec.cloud.group: %q: %s", where.Group, look.err))
	case errors.As(look.err, &refused):
		return no(v1alpha1.CloudRefused, fmt.Sprintf("spec.cloud.group: %q: %s", where.Group, look.err))
	case was != nil && was.ObservedGeneration == g.Generation && hangsOnCloud(was.Reason):
		return *was
	}
	return metav1.Condition{
		Type: v1alpha1.GroupAccepted, Status: metav1.ConditionUnknown, Reason: CloudNotRead,
		Message: "the cloud has not answered yet, and nothing is done before it has",
	}
}

func said(configured []string) string {
	if len(configured) == 0 {
		return "no cloud is"
	}
	return "configured are " + strings.Join(configured, ", ")
}

// hangsOnCloud reports whether a reason is one that only the cloud's word can change.
func hangsOnCloud(reason string) bool {
	return slices.Contains([]string{
		v1alpha1.AcceptedReason, v1alpha1.CloudGroupNotFound, v1alpha1.CloudRefused, v1alpha1.CloudRightsMissing,
	}, reason)
}

// reachable is the condition CloudReachable. A cloud that refuses, or knows no such group, has been reached.
func reachable(g *v1alpha1.NodeGroup, configured []string, look cloudLook) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.GroupCloudReachable, Status: metav1.ConditionTrue, Reason: cloudRead}
	set := func(status metav1.ConditionStatus, reason, message string) {
		c.Status, c.Reason, c.Message = status, reason, message
	}
	switch {
	case !slices.Contains(configured, g.Spec.Cloud.Provider):
		set(metav1.ConditionFalse, cloudNone, fmt.Sprintf("%q is not configured: %s", g.Spec.Cloud.Provider, said(configured)))
	case !look.known:
		set(metav1.ConditionUnknown, CloudNotRead, "")
	case look.err == nil, cloud.IsNotFound(look.err), cloud.RefusalOf(look.err) != "":
	case cloud.IsThrottled(look.err):
		set(metav1.ConditionFalse, cloudThrottled, look.err.Error())
	default:
		set(metav1.ConditionFalse, cloudFailed, look.err.Error())
	}
	return c
}

// acceptedCondition returns the condition Accepted of a group, faults included.
func acceptedCondition(g *v1alpha1.NodeGroup, claims Claims, configured []string, look cloudLook) metav1.Condition {
	if f, wrong := claims.Faults[g.Name]; wrong {
		return metav1.Condition{Type: v1alpha1.GroupAccepted, Status: metav1.ConditionFalse, Reason: f.Reason, Message: f.Message}
	}
	return accepted(g, configured, look, meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupAccepted))
}
