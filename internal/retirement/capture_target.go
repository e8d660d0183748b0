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
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
)

// NodeNameField is the field of a NodeRetirement that the API server and the caches select by.
const NodeNameField = "spec.nodeName"

// capture finds out which node, which machine and which group the retirement is about, once and for all (I4).
func (p *passage) capture(ctx context.Context) error {
	if err := p.stillDue(); err != nil {
		return err
	}
	if p.rt.Status.Captured != nil {
		if err := p.recall(ctx); err != nil {
			return err
		}
		return p.sameStill()
	}
	captured, err := p.identify(ctx)
	if err != nil {
		return err
	}
	if err := p.alone(ctx); err != nil {
		return err
	}
	instance, err := p.confirmed(ctx, captured.ProviderID)
	if cloud.IsNotFound(err) {
		if err := p.confirmSilence(ctx); err != nil {
			return err
		}
		if p.node != nil && p.node.UID != string(captured.NodeUID) || p.node == nil && captured.NodeUID != p.rt.Spec.NodeUID {
			return wait(freshLook, "the Node has changed meanwhile")
		}
	}
	switch {
	case cloud.IsNotFound(err) && p.unsaid():
		return end(NotConfirmed, "spec.providerID: the cloud says that there is no machine %s, and the Node's own spec.providerID is empty: "+
			"that the machine was the Node's is not known", captured.ProviderID)
	case cloud.IsNotFound(err) && ready(p.node):
		return blocked(p.c.o.Pace.Poll, reason(Disagreement, "", "the cloud says that there is no machine %s, and the Node is Ready",
			captured.ProviderID))
	case cloud.IsNotFound(err):
		p.rt.Status.MachineGone = true
	case err != nil:
		return err
	default:
		p.captured = &instance
		is := p.isNoOtherNode
		if p.node == nil {
			is = p.isNoNode
		}
		if err := is(ctx, instance); err != nil {
			return err
		}
		if !p.isNamedByNode(instance) {
			if err := p.checkOwned(ctx, instance); err != nil {
				return err
			}
		}
	}
	captured.InstanceName, captured.ComputerName, captured.UniqueID = instance.Name, instance.ComputerName, instance.UniqueID
	p.rt.Status.Captured = &captured // written down by the next save, which comes before anything is done
	p.rt.Status.Phase = v1alpha1.Pending
	return nil
}

// recall finds the group and the cloud of what was captured before. Without the group it is not known what it protects, nor
// how its nodes are drained (I1): nothing goes on until it is there again, be it that somebody has deleted it, or that this
// manager is not told of it.
func (p *passage) recall(ctx context.Context) error {
	captured := p.rt.Status.Captured
	if p.cloud = p.c.o.Clouds[captured.Provider]; p.cloud == nil {
		return blocked(p.c.o.Pace.Poll, reason(UnknownCloud, "", "the cloud %q is not configured: %s", captured.Provider, p.c.clouds()))
	}
	if captured.Group == "" {
		return nil
	}
	groups, err := p.c.o.Groups.List(ctx)
	if err != nil {
		return err
	}
	for i := range groups {
		if groups[i].Name == captured.Group {
			p.group = &groups[i]
			return nil
		}
	}
	p.c.drains.stop(p.rt.Name)
	return blocked(p.c.o.Pace.Poll, reason(GroupNotFound, "", "the NodeGroup %s, of which the node is, is not among those that this "+
		"manager knows: it is waited for, since what it protects and how its nodes are drained is not known without it", captured.Group))
}

// identify checks the spec against the Node, and finds the group and the cloud.
func (p *passage) identify(ctx context.Context) (v1alpha1.Captured, error) {
	spec := p.rt.Spec
	captured := v1alpha1.Captured{NodeUID: spec.NodeUID, ProviderID: spec.ProviderID} // for when the Node is not there
	if p.node != nil {
		captured.NodeUID = types.UID(p.node.UID)
		captured.ProviderID = cmp.Or(p.node.Spec.ProviderID, spec.ProviderID)
	}
	switch {
	case p.node == nil && spec.ProviderID == "":
		return captured, end(NodeNotFound, "there is no Node %s; a machine without one is retired by giving its providerID",
			spec.NodeName)
	case p.node != nil && spec.NodeUID != "" && spec.NodeUID != captured.NodeUID:
		return captured, end(NodeReplaced, "the Node's UID is %s, and spec.nodeUID %s: it is another one of the same name",
			captured.NodeUID, spec.NodeUID)
	case p.node != nil && IsControlPlane(p.node.Labels):
		return captured, end(ControlPlane, "the node is one of the control plane's, which are not retired")
	case captured.ProviderID == "" && p.node.Status.NodeInfo.SystemUUID == "":
		return captured, errNoProviderID
	}
	if err := p.findGroup(ctx); err != nil {
		return captured, err
	}
	if captured.ProviderID == "" {
		if captured.ProviderID = p.idOfSystem(); captured.ProviderID == "" {
			return captured, errNoProviderID
		}
	}
	if p.group != nil {
		captured.Group = p.group.Name
	}
	if err := p.findCloud(ctx, captured.ProviderID); err != nil {
		return captured, err
	}
	captured.Provider = p.cloud.Name()
	if _, keeps := p.cloud.(cloud.SizeKeeper); spec.KeepSize && !keeps {
		return captured, end(CloudRefused, "spec.keepSize: the provider %s lowers the group's size with each deletion: want a "+
			"NodeRetirement without keepSize", p.cloud.Name())
	}
	return captured, p.sameMachine(ctx, captured.ProviderID)
}

var errNoProviderID = end(NoProviderID,
	"the Node's spec.providerID is empty, and so is the NodeRetirement's, so that its machine is not known")

// idOfSystem gives the provider ID of the machine that has the Node's system UUID; empty without a group, or in a cloud whose
// machines have other IDs.
func (p *passage) idOfSystem() string {
	if p.group == nil {
		return ""
	}
	return cloud.IDOfHost(p.c.o.Clouds[p.group.Spec.Cloud.Provider], cloud.Host{SystemUUID: p.node.Status.NodeInfo.SystemUUID})
}

// unsaid reports a Node that does not say which machine it is, as in a cluster without a cloud controller.
func (p *passage) unsaid() bool { return p.node != nil && p.node.Spec.ProviderID == "" }

// sameMachine checks that the spec and the Node name one machine. Of a Node that names none, no other Node may say that the
// machine is its.
func (p *passage) sameMachine(ctx context.Context, providerID string) error {
	is, err := p.cloud.Normalize(providerID)
	if cloud.IsUnanswered(err) {
		return err
	}
	switch {
	case err != nil && (p.unsaid() || p.node == nil):
		return end(ForeignMachine, "spec.providerID: %s", err)
	case err != nil:
		return end(ForeignMachine, "spec.providerID of the Node: %s", err)
	case p.unsaid():
		return p.nobodyElses(ctx, is)
	case p.rt.Spec.ProviderID == "":
		return nil
	}
	want, err := p.cloud.Normalize(p.rt.Spec.ProviderID)
	if cloud.IsUnanswered(err) {
		return err
	}
	if err != nil {
		return end(ForeignMachine, "spec.providerID: %s", err)
	}
	if is != want {
		return end(ProviderMismatch, "the Node's machine is %s, and spec.providerID names %s", is, want)
	}
	return nil
}

// nobodyElses checks that no Node says that it is a machine.
func (p *passage) nobodyElses(ctx context.Context, machine string) error {
	var nodes corev1.NodeList
	if err := p.c.o.Client.List(ctx, &nodes); err != nil {
		return fmt.Errorf("other nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Spec.ProviderID == "" {
			continue
		}
		is, err := p.cloud.Normalize(n.Spec.ProviderID)
		if cloud.IsUnanswered(err) {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		if err == nil && is == machine {
			return end(ProviderMismatch, "spec.providerID names %s, which the Node %s says that it is", machine, n.Name)
		}
	}
	return nil
}

// sameStill checks that a Node which has come to say its machine since it was captured, as when a cloud controller has come up,
// says the one that was captured (I4).
func (p *passage) sameStill() error {
	captured := p.rt.Status.Captured.ProviderID
	if p.node == nil || p.unsaid() || p.node.Spec.ProviderID == captured || p.reached(v1alpha1.NodeDeleted) {
		return nil
	}
	is, err := p.cloud.Normalize(p.node.Spec.ProviderID)
	want, unread := p.cloud.Normalize(captured)
	switch {
	case cloud.IsUnanswered(err), cloud.IsUnanswered(unread):
		return errors.Join(err, unread)
	case err == nil && unread == nil && is == want:
		return nil
	}
	return end(ProviderMismatch, "the Node says by now that its machine is %s, and %s was captured", p.node.Spec.ProviderID, captured)
}

func (p *passage) findGroup(ctx context.Context) error {
	groups, err := p.c.o.Groups.List(ctx)
	if err != nil {
		return err
	}
	var found []v1alpha1.NodeGroup
	for i := range groups {
		g := &groups[i]
		if p.node == nil && g.Name != p.rt.Spec.Group || p.node != nil && !Selects(g, p.node.Labels) {
			continue
		}
		if err := p.judged(g); err != nil {
			return err
		}
		found = append(found, *g)
	}
	found = Owners(found, p.rt.Spec.Group)
	if len(found) > 0 {
		p.group = &found[0]
	}
	want := p.rt.Spec.Group
	switch {
	case len(found) > 1:
		return end(SeveralGroups, "the NodeGroups %s all select the node: their selectors must not overlap", strings.Join(names(found), ", "))
	case want != "" && !slices.ContainsFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == want }):
		return end(GroupNotFound, "spec.group: there is no NodeGroup %s", want)
	case want != "" && (p.group == nil || p.group.Name != want):
		return end(NotInGroup, "spec.group: the NodeGroup %s does not select the node", want)
	case p.group != nil:
		return p.notRefused()
	}
	return nil
}

// Selects reports whether a group selects a node with these labels. A selector that cannot be read selects nothing.
func Selects(g *v1alpha1.NodeGroup, nodeLabels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&g.Spec.NodeSelector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(nodeLabels))
}

// Owners leaves out of the groups that select a node those that are refused and so own none, but for one that is asked for. Where that
// leaves none they all stay: what is known of one may be of before another was deleted, and its node is of a group all the same (I5).
func Owners(groups []v1alpha1.NodeGroup, asked string) []v1alpha1.NodeGroup {
	owners := slices.DeleteFunc(slices.Clone(groups), func(g v1alpha1.NodeGroup) bool { return g.Name != asked && !acceptance.Of(&g).OwnsNodes() })
	if len(owners) == 0 {
		return groups
	}
	return owners
}

func names(groups []v1alpha1.NodeGroup) []string {
	all := make([]string, 0, len(groups))
	for i := range groups {
		all = append(all, groups[i].Name)
	}
	return all
}

// IsControlPlane tells by its labels a Node of the control plane. It knows the label of kubeadm, and the one before it.
func IsControlPlane(nodeLabels map[string]string) bool {
	_, is := nodeLabels["node-role.kubernetes.io/control-plane"]
	_, was := nodeLabels["node-role.kubernetes.io/master"]
	return is || was
}

// findCloud takes the group's cloud, or else the one whose machine this is.
func (p *passage) findCloud(ctx context.Context, providerID string) error {
	if p.group != nil {
		name := p.group.Spec.Cloud.Provider
		if p.cloud = p.c.o.Clouds[name]; p.cloud == nil {
			return end(UnknownCloud, "the NodeGroup %s is in the cloud %q, which is not configured: %s", p.group.Name, name, p.c.clouds())
		}
		return nil
	}
	return p.whose(ctx, providerID)
}

func (c *Controller) clouds() string {
	if len(c.o.Clouds) == 0 {
		return "no cloud is configured"
	}
	return "configured are " + strings.Join(slices.Sorted(maps.Keys(c.o.Clouds)), ", ")
}

// alone refuses a second retirement of one node: the one that was captured first goes on, or else the older. A notice and
// somebody's own that has not begun wait side by side; see [passage.takenOver] and [passage.admitOrYield].
func (p *passage) alone(ctx context.Context) error {
	all, err := p.allRecords(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		o := &all[i]
		if o.Spec.NodeName != p.rt.Spec.NodeName || o.UID == p.rt.UID || o.Status.Phase.Finished() || awaiting(o) || p.rt.Spec.Notice != nil && !UnderWay(o) {
			continue
		}
		if o.Status.Captured != nil || older(o, p.rt) {
			return end(AlreadyRetiring, "the NodeRetirement %s is about the same node", o.Name)
		}
	}
	return nil
}

func older(a, b *v1alpha1.NodeRetirement) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// confirmed reads the machine from its cloud, and checks that it is the Node's, and the one that was captured (I4). A
// machine that was made anew under the captured one's name says that the captured one is gone. To a retirement whose Node is
// deleted that is all there is to know. Before, the Node may be the new machine's soon: it is given back.
func (p *passage) confirmed(ctx context.Context, providerID string) (cloud.Instance, error) {
	instance, err := p.read(ctx, p.cloud, providerID)
	if cloud.IsNotFound(err) {
		if err := p.believed(providerID); err != nil {
			return cloud.Instance{}, err
		}
		if err := p.nowhereElse(ctx, providerID); err != nil {
			return cloud.Instance{}, err
		}
	}
	if err != nil {
		return cloud.Instance{}, err
	}
	if p.madeAnew(instance) {
		if p.reached(v1alpha1.NodeDeleted) {
			return cloud.Instance{}, fmt.Errorf("machine %s of the unique ID %s: %w", providerID, p.rt.Status.Captured.UniqueID,
				&cloud.NotFoundError{Kind: "instance", Name: providerID})
		}
		return instance, end(NotConfirmed, "the machine %s was made anew under its name: its unique ID is %s, and was %s when it was captured",
			providerID, instance.UniqueID, p.rt.Status.Captured.UniqueID)
	}
	name := p.rt.Spec.NodeName
	if missing := p.cutShort(instance); missing != "" {
		return instance, blocked(p.c.o.Pace.Poll, reason(NotConfirmed, "machine "+providerID,
			"the cloud's answer lacks the machine's %s, which it had when it was captured: it is asked again", missing))
	}
	if !strings.EqualFold(instance.Name, name) && !strings.EqualFold(instance.ComputerName, name) && !p.confirmedByID(instance) &&
		!p.hasItsDomain(instance) {
		return instance, end(NotConfirmed, "the cloud says that %s is %q with the computer name %q, neither of which is the node's name",
			providerID, instance.Name, instance.ComputerName)
	}
	return instance, nil
}

// confirmedByID reports an instance whose cloud need not know it by the Node's name: the Node's own provider ID is enough.
func (p *passage) confirmedByID(instance cloud.Instance) bool {
	if p.rt.Status.Captured != nil && !p.neverSeen() {
		return instance.AnyName && p.hasCapturedNames(instance)
	}
	return instance.AnyName && p.node != nil && !p.unsaid()
}

// hasItsDomain reports an instance whose name is the Node's but for the domain that one of them has, where the Node itself says
// that it runs on that instance, by its provider ID or its system's UUID, or did so when the instance was captured.
func (p *passage) hasItsDomain(instance cloud.Instance) bool {
	name := p.rt.Spec.NodeName
	if !mayBe(name, instance.Name) && !mayBe(name, instance.ComputerName) {
		return false
	}
	if p.rt.Status.Captured != nil && !p.neverSeen() {
		return p.hasCapturedNames(instance)
	}
	return p.node != nil && (!p.unsaid() || isItsUUID(cloud.Host{SystemUUID: p.node.Status.NodeInfo.SystemUUID}, instance))
}

// hasCapturedNames reports an instance whose names are those that were captured. One with other names was made anew under the
// same provider ID.
func (p *passage) hasCapturedNames(instance cloud.Instance) bool {
	captured := p.rt.Status.Captured
	return (captured.InstanceName == "" || strings.EqualFold(captured.InstanceName, instance.Name)) &&
		(captured.ComputerName == "" || strings.EqualFold(captured.ComputerName, instance.ComputerName))
}

// neverSeen reports that the machine was gone already when it was captured, so that nothing tells it from one that is made
// anew under its name.
func (p *passage) neverSeen() bool {
	captured := p.rt.Status.Captured
	return captured.InstanceName == "" && captured.ComputerName == "" && captured.UniqueID == ""
}

// madeAnew reports another machine under the name of the captured one. It takes a cloud whose machines have an ID of their
// own beside their name; where that is not known of both, the names decide.
func (p *passage) madeAnew(instance cloud.Instance) bool {
	captured := p.rt.Status.Captured
	return captured != nil && captured.UniqueID != "" && instance.UniqueID != "" &&
		!strings.EqualFold(captured.UniqueID, instance.UniqueID)
}

// cutShort names what an answer lacks that the machine had when it was captured, and without which it cannot be told from
// another one. That is no other machine, but an answer that nothing is decided on (I7).
func (p *passage) cutShort(instance cloud.Instance) string {
	captured, name := p.rt.Status.Captured, p.rt.Spec.NodeName
	switch {
	case captured == nil:
		return ""
	case captured.UniqueID != "" && instance.UniqueID == "":
		return "unique ID"
	case strings.EqualFold(instance.Name, name), strings.EqualFold(instance.ComputerName, name), p.hasItsDomain(instance):
		return ""
	case captured.ComputerName != "" && instance.ComputerName == "":
		return "computer name"
	case captured.InstanceName != "" && instance.Name == "":
		return "name"
	}
	return ""
}
