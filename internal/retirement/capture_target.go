package retirement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	noderules "github.com/slipway-dev/slipway/internal/drainability/node"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// NodeNameField is the field that selects the NodeRetirements of a node, in the API server and in the caches.
const NodeNameField = "spec.nodeName"

// captureTarget determines the node, the instance and the group of the retirement, and stores them in its status. It
// does this once, so that the retirement never changes its target (invariant I4: only the instance of the drained node
// is deleted).
func (p *retirementScope) captureTarget(ctx context.Context) error {
	if err := p.checkReasonStillHolds(); err != nil {
		return err
	}
	if p.rt.Status.Captured != nil {
		if err := p.resolveCapturedGroupAndCloud(ctx); err != nil {
			return err
		}
		return p.checkProviderIDUnchanged()
	}
	captured, err := p.identifyTarget(ctx)
	if err != nil {
		return err
	}
	if err := p.rejectDuplicateRetirement(ctx, captured.NodeUID); err != nil {
		return err
	}
	instance, err := p.readAndConfirmInstance(ctx, captured.ProviderID)
	if cloud.IsNotFound(err) {
		if err := p.refetchUnreadyNode(ctx); err != nil {
			return err
		}
		if p.node != nil && p.node.UID != string(captured.NodeUID) || p.node == nil && captured.NodeUID != p.rt.Spec.NodeUID {
			return newWait(requeueSoon, "the Node changed after it was read: retrying")
		}
	}
	switch {
	case cloud.IsNotFound(err) && p.isNodeWithoutProviderID():
		return newEnd(NotConfirmed, "spec.providerID: the cloud does not find the instance %s, and the Node has no spec.providerID: "+
			"whether it was the Node's instance is unknown", captured.ProviderID)
	case cloud.IsNotFound(err) && isReady(p.node):
		return p.newCloudNodeMismatch(captured.ProviderID)
	case cloud.IsNotFound(err):
		p.rt.Status.InstanceGone = true
	case err != nil:
		return err
	default:
		p.capturedInstance = &instance
		is := p.checkNoOtherNodeOnInstance
		if p.node == nil {
			is = p.checkNoNodeOnInstance
		}
		if err := is(ctx, instance); err != nil {
			return err
		}
		if !p.isNamedByNode(instance) {
			if err := p.checkClusterOwnsInstance(ctx, instance); err != nil {
				return err
			}
		}
	}
	captured.InstanceName, captured.ComputerName, captured.UniqueID = instance.Name, instance.ComputerName, instance.UniqueID
	p.rt.Status.Captured = &captured // the next save writes it, before anything is changed
	p.rt.Status.Phase = v1alpha1.Pending
	return nil
}

// resolveCapturedGroupAndCloud finds the group and the cloud that the retirement has captured. If the group does not
// exist, its protections and drain settings are unknown, so the retirement waits until it exists again (invariant I1).
// The group may be deleted, or this manager may not know it.
func (p *retirementScope) resolveCapturedGroupAndCloud(ctx context.Context) error {
	captured := p.rt.Status.Captured
	if p.provider = p.controller.options.Clouds[captured.Provider]; p.provider == nil {
		return newBlocked(p.controller.options.Intervals.Poll, newReason(UnknownCloud, "", "the cloud %q is not configured: %s", captured.Provider, p.controller.describeProviders()))
	}
	if captured.Group == "" {
		return nil
	}
	groups, err := p.controller.options.Groups.List(ctx)
	if err != nil {
		return err
	}
	for i := range groups {
		if groups[i].Name == captured.Group {
			p.group = &groups[i]
			return nil
		}
	}
	p.controller.drains.stopAndWait(p.rt.Name)
	return newBlocked(p.controller.options.Intervals.Poll, newReason(GroupNotFound, "", "the node's NodeGroup %s is unknown to this manager: waiting for it, "+
		"because its protections and drain settings are needed", captured.Group))
}

// identifyTarget checks that the spec of the retirement agrees with the Node. It returns the target, with its group and
// its cloud.
func (p *retirementScope) identifyTarget(ctx context.Context) (v1alpha1.Captured, error) {
	spec := p.rt.Spec
	captured := v1alpha1.Captured{NodeUID: spec.NodeUID, ProviderID: spec.ProviderID} // if there is no Node
	if p.node != nil {
		captured.NodeUID = types.UID(p.node.UID)
		captured.ProviderID = cmp.Or(p.node.Spec.ProviderID, spec.ProviderID)
	}
	switch {
	case p.node == nil && spec.ProviderID == "":
		return captured, newEnd(NodeNotFound, "there is no Node %s; to retire an instance without a Node, set spec.providerID",
			spec.NodeName)
	case p.node != nil && spec.NodeUID != "" && spec.NodeUID != captured.NodeUID:
		return captured, newEnd(NodeReplaced, "the Node's UID is %s, and spec.nodeUID is %s: it is another Node of the same name",
			captured.NodeUID, spec.NodeUID)
	case p.node != nil && findControlPlaneMark(p.node) != "":
		return captured, newEnd(ControlPlane, "control plane nodes are not retired: Node %s has the %s", p.node.Name, findControlPlaneMark(p.node))
	case captured.ProviderID == "" && p.node.Status.NodeInfo.SystemUUID == "":
		return captured, errNoProviderID
	}
	if err := p.resolveGroup(ctx); err != nil {
		return captured, err
	}
	if captured.ProviderID == "" {
		if captured.ProviderID = p.providerIDFromSystemUUID(); captured.ProviderID == "" {
			return captured, errNoProviderID
		}
	}
	if p.group != nil {
		captured.Group = p.group.Name
	}
	if err := p.selectProvider(ctx, captured.ProviderID); err != nil {
		return captured, err
	}
	captured.Provider = p.provider.Name()
	if _, canKeepSize := p.provider.(cloud.SizePreservingDeleter); spec.KeepSize && !canKeepSize {
		return captured, newEnd(CloudRefused, "spec.keepSize: the provider %s lowers the group's size with each deletion: want a "+
			"NodeRetirement without keepSize", p.provider.Name())
	}
	return captured, p.checkSameInstance(ctx, captured.ProviderID)
}

var errNoProviderID = newEnd(NoProviderID,
	"spec.providerID is empty in the Node and in the NodeRetirement: the instance is unknown")

// providerIDFromSystemUUID returns the provider ID of the instance with the Node's system UUID as its ID. It returns ""
// if the node has no group, or if the cloud's instance IDs are not system UUIDs.
func (p *retirementScope) providerIDFromSystemUUID() string {
	if p.group == nil {
		return ""
	}
	return cloud.ProviderIDOfNode(p.controller.options.Clouds[p.group.Spec.Cloud.Provider], cloud.NodeIdentity{SystemUUID: p.node.Status.NodeInfo.SystemUUID})
}

// isNodeWithoutProviderID reports whether the Node has no provider ID, as in a cluster without a cloud controller.
func (p *retirementScope) isNodeWithoutProviderID() bool {
	return p.node != nil && p.node.Spec.ProviderID == ""
}

// checkSameInstance returns an error unless the spec and the Node name the same instance. If the Node has no provider
// ID, no other Node may have the provider ID in the spec.
func (p *retirementScope) checkSameInstance(ctx context.Context, providerID string) error {
	is, err := p.provider.Normalize(providerID)
	if cloud.IsProviderUnavailable(err) {
		return err
	}
	switch {
	case err != nil && (p.isNodeWithoutProviderID() || p.node == nil):
		return newEnd(ForeignMachine, "spec.providerID: %s", err)
	case err != nil:
		return newEnd(ForeignMachine, "spec.providerID of the Node: %s", err)
	case p.isNodeWithoutProviderID():
		return p.checkNoNodeHasProviderID(ctx, is)
	case p.rt.Spec.ProviderID == "":
		return nil
	}
	want, err := p.provider.Normalize(p.rt.Spec.ProviderID)
	if cloud.IsProviderUnavailable(err) {
		return err
	}
	if err != nil {
		return newEnd(ForeignMachine, "spec.providerID: %s", err)
	}
	if is != want {
		return newEnd(ProviderMismatch, "the Node's instance is %s, and spec.providerID names %s", is, want)
	}
	return nil
}

// checkNoNodeHasProviderID returns an error if a Node has the provider ID of the instance.
func (p *retirementScope) checkNoNodeHasProviderID(ctx context.Context, instance string) error {
	var nodes corev1.NodeList
	if err := p.controller.options.Client.List(ctx, &nodes); err != nil {
		return fmt.Errorf("other nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Spec.ProviderID == "" {
			continue
		}
		is, err := p.provider.Normalize(n.Spec.ProviderID)
		if cloud.IsProviderUnavailable(err) {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if err == nil && is == instance {
			return newEnd(ProviderMismatch, "spec.providerID: %s is the instance of the Node %s", instance, n.Name)
		}
	}
	return nil
}

// checkProviderIDUnchanged returns an error if the Node now has the provider ID of another instance than the captured
// one (invariant I4). A Node without a provider ID may get one after the capture, for example because a cloud
// controller has started.
func (p *retirementScope) checkProviderIDUnchanged() error {
	captured := p.rt.Status.Captured.ProviderID
	if p.node == nil || p.isNodeWithoutProviderID() || p.node.Spec.ProviderID == captured || p.hasReached(v1alpha1.NodeDeleted) {
		return nil
	}
	is, err := p.provider.Normalize(p.node.Spec.ProviderID)
	want, wantErr := p.provider.Normalize(captured)
	switch {
	case cloud.IsProviderUnavailable(err), cloud.IsProviderUnavailable(wantErr):
		return errors.Join(err, wantErr)
	case err == nil && wantErr == nil && is == want:
		return nil
	}
	return newEnd(ProviderMismatch, "the Node's provider ID is now %s, but %s was captured", p.node.Spec.ProviderID, captured)
}

func (p *retirementScope) resolveGroup(ctx context.Context) error {
	groups, err := p.controller.options.Groups.List(ctx)
	if err != nil {
		return err
	}
	var found []v1alpha1.NodeGroup
	for i := range groups {
		g := &groups[i]
		if p.node == nil && g.Name != p.rt.Spec.Group || p.node != nil && !SelectsNode(g, p.node.Labels) {
			continue
		}
		if err := p.awaitGroupObserved(g); err != nil {
			return err
		}
		found = append(found, *g)
	}
	found = FilterOwningGroups(found, p.rt.Spec.Group)
	if len(found) > 0 {
		p.group = &found[0]
	}
	want := p.rt.Spec.Group
	switch {
	case len(found) > 1:
		return newEnd(SeveralGroups, "the NodeGroups %s all select the node: their selectors must not overlap", strings.Join(groupNames(found), ", "))
	case want != "" && !slices.ContainsFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == want }):
		return newEnd(GroupNotFound, "spec.group: there is no NodeGroup %s", want)
	case want != "" && (p.group == nil || p.group.Name != want):
		return newEnd(NotInGroup, "spec.group: the NodeGroup %s does not select the node", want)
	case p.group != nil:
		return p.checkGroupNotRefused()
	}
	return nil
}

// SelectsNode reports whether a group selects a node with these labels. An invalid selector selects nothing.
func SelectsNode(g *v1alpha1.NodeGroup, nodeLabels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(nodeLabels))
}

// FilterOwningGroups returns the groups without the refused ones, because a refused group owns no nodes. It does not
// remove the group with the name asked. If all groups are refused, it returns all of them: their status may be older
// than the deletion of another group, and the node then still belongs to one of them (invariant I5).
func FilterOwningGroups(groups []v1alpha1.NodeGroup, requested string) []v1alpha1.NodeGroup {
	owners := slices.DeleteFunc(slices.Clone(groups), func(g v1alpha1.NodeGroup) bool { return g.Name != requested && !acceptance.FromGroup(&g).OwnsNodes() })
	if len(owners) == 0 {
		return groups
	}
	return owners
}

func groupNames(groups []v1alpha1.NodeGroup) []string {
	all := make([]string, 0, len(groups))
	for i := range groups {
		all = append(all, groups[i].Name)
	}
	return all
}

func findControlPlaneMark(n *kubeapi.Node) string {
	return noderules.FindControlPlaneMark(n.Labels, func(key string) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t kubeapi.Taint) bool { return t.Key == key })
	})
}

// selectProvider determines the cloud of the retirement. It is the cloud of the group. Without a group it is the cloud
// that has the instance.
func (p *retirementScope) selectProvider(ctx context.Context, providerID string) error {
	if p.group != nil {
		name := p.group.Spec.Cloud.Provider
		if p.provider = p.controller.options.Clouds[name]; p.provider == nil {
			return newEnd(UnknownCloud, "the NodeGroup %s is in the cloud %q, which is not configured: %s", p.group.Name, name, p.controller.describeProviders())
		}
		return nil
	}
	return p.resolveProvider(ctx, providerID)
}

func (c *Controller) describeProviders() string {
	if len(c.options.Clouds) == 0 {
		return "no cloud is configured"
	}
	return "configured are " + strings.Join(slices.Sorted(maps.Keys(c.options.Clouds)), ", ")
}

// rejectDuplicateRetirement ends this retirement if another one retires the Node with this UID. The retirement that has captured
// the node continues. If both have captured it, or neither has, the older one continues. A retirement for a notice and
// one of a user may both wait; see [retirementScope.endIfOtherRetirementStarted] and
// [retirementScope.awaitAdmissionOrEnd].
func (p *retirementScope) rejectDuplicateRetirement(ctx context.Context, nodeUID types.UID) error {
	all, err := p.listRetirementsLive(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		o := &all[i]
		if o.Spec.NodeName != p.rt.Spec.NodeName || o.UID == p.rt.UID || !MayTargetNode(o, nodeUID) || o.Status.Phase.IsFinal() || isAwaitingInstanceGone(o) || p.rt.Spec.Notice != nil && !IsRemovingNode(o) {
			continue
		}
		if o.Status.Captured != nil || isOlder(o, p.rt) {
			return newEnd(AlreadyRetiring, "the NodeRetirement %s already retires the node", o.Name)
		}
	}
	return nil
}

func isOlder(a, b *v1alpha1.NodeRetirement) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// readAndConfirmInstance reads the instance from its cloud. It returns an error unless the instance belongs to the Node
// and is the captured one (invariant I4).
//
// If the cloud has a new instance with the captured name, the captured instance is gone. If the Node is deleted
// already, readAndConfirmInstance then returns a NotFoundError. Otherwise the retirement ends and the Node is restored,
// because the Node may soon belong to the new instance.
func (p *retirementScope) readAndConfirmInstance(ctx context.Context, providerID string) (cloud.Instance, error) {
	instance, err := p.readInstance(ctx, p.provider, providerID)
	if cloud.IsNotFound(err) {
		if err := p.awaitTrustedNotFound(providerID); err != nil {
			return cloud.Instance{}, err
		}
		if err := p.checkNoOtherCloudHasInstance(ctx, providerID); err != nil {
			return cloud.Instance{}, err
		}
	}
	if err != nil {
		return cloud.Instance{}, err
	}
	if p.isRecreated(instance) {
		if p.hasReached(v1alpha1.NodeDeleted) {
			return cloud.Instance{}, fmt.Errorf("instance %s with the unique ID %s: %w", providerID, p.rt.Status.Captured.UniqueID,
				&cloud.NotFoundError{Kind: "instance", Name: providerID})
		}
		return instance, newEnd(NotConfirmed, "the instance %s was recreated: its unique ID is %s, and was %s at capture",
			providerID, instance.UniqueID, p.rt.Status.Captured.UniqueID)
	}
	name := p.rt.Spec.NodeName
	if missing := p.missingCapturedIdentity(instance); missing != "" {
		return instance, newBlocked(p.controller.options.Intervals.Poll, newReason(NotConfirmed, "instance "+providerID,
			"the cloud's answer lacks the instance's %s, which it had at capture: retrying", missing))
	}
	if !strings.EqualFold(instance.Name, name) && !strings.EqualFold(instance.ComputerName, name) && !p.isConfirmedByProviderID(instance) &&
		!p.matchesNameExceptDomain(instance) {
		return instance, newEnd(NotConfirmed, "the cloud calls the instance %s %q, with the computer name %q: neither is the node's name",
			providerID, instance.Name, instance.ComputerName)
	}
	return instance, nil
}

// isConfirmedByProviderID reports whether an equal provider ID is enough to confirm the instance. It is enough if the
// cloud may give an instance another name than its Node has.
func (p *retirementScope) isConfirmedByProviderID(instance cloud.Instance) bool {
	if p.rt.Status.Captured != nil && !p.wasGoneAtCapture() {
		return instance.NameMayDiffer && p.hasCapturedNames(instance)
	}
	return instance.NameMayDiffer && p.node != nil && !p.isNodeWithoutProviderID()
}

// matchesNameExceptDomain reports whether the names of the instance and of the Node are equal except for a domain. In
// addition, the Node must name the instance by provider ID or system UUID, now or when it was captured.
func (p *retirementScope) matchesNameExceptDomain(instance cloud.Instance) bool {
	name := p.rt.Spec.NodeName
	if !mayBeSameHost(name, instance.Name) && !mayBeSameHost(name, instance.ComputerName) {
		return false
	}
	if p.rt.Status.Captured != nil && !p.wasGoneAtCapture() {
		return p.hasCapturedNames(instance)
	}
	return p.node != nil && (!p.isNodeWithoutProviderID() || hasSystemUUID(cloud.NodeIdentity{SystemUUID: p.node.Status.NodeInfo.SystemUUID}, instance))
}

// hasCapturedNames reports whether the instance has the names that it had at capture. If it has other names, the cloud
// has created a new instance with the same provider ID.
func (p *retirementScope) hasCapturedNames(instance cloud.Instance) bool {
	captured := p.rt.Status.Captured
	return (captured.InstanceName == "" || strings.EqualFold(captured.InstanceName, instance.Name)) &&
		(captured.ComputerName == "" || strings.EqualFold(captured.ComputerName, instance.ComputerName))
}

// wasGoneAtCapture reports whether the instance did not exist when the retirement captured its target. If the cloud has
// an instance with the same name later, it may be a new one.
func (p *retirementScope) wasGoneAtCapture() bool {
	captured := p.rt.Status.Captured
	return captured.InstanceName == "" && captured.ComputerName == "" && captured.UniqueID == ""
}

// isRecreated reports whether the instance is certainly a new one under the name of the captured instance. It compares
// the unique IDs. If one of the two IDs is unknown, it returns false.
func (p *retirementScope) isRecreated(instance cloud.Instance) bool {
	captured := p.rt.Status.Captured
	return captured != nil && captured.UniqueID != "" && instance.UniqueID != "" &&
		!strings.EqualFold(captured.UniqueID, instance.UniqueID)
}

// missingCapturedIdentity returns the name of an identifying field that was captured and is missing in the cloud's
// answer. It returns "" if no field is missing. An answer with a missing field must not lead to a decision (invariant
// I7: unknown is not gone).
func (p *retirementScope) missingCapturedIdentity(instance cloud.Instance) string {
	captured, name := p.rt.Status.Captured, p.rt.Spec.NodeName
	switch {
	case captured == nil:
		return ""
	case captured.UniqueID != "" && instance.UniqueID == "":
		return "unique ID"
	case strings.EqualFold(instance.Name, name), strings.EqualFold(instance.ComputerName, name), p.matchesNameExceptDomain(instance):
		return ""
	case captured.ComputerName != "" && instance.ComputerName == "":
		return "computer name"
	case captured.InstanceName != "" && instance.Name == "":
		return "name"
	}
	return ""
}
