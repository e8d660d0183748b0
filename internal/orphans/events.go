package orphans

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of an Event about an orphan.
type eventReason string

// The reasons. The comment of each states the type of its Events, their objects, and when they are written.
const (
	// eventOrphan is Warning, on NodeGroup: an instance of the cluster has no Node.
	eventOrphan eventReason = "OrphanFound"
	// eventOrphansKept is Warning, on NodeGroup: none of the orphaned instances is deleted, because there are too many,
	// or no instance of the cluster has a Node.
	eventOrphansKept eventReason = "OrphansKept"
	// eventOrphanDeleted is Warning, on NodeGroup: an orphaned instance is deleted.
	eventOrphanDeleted eventReason = "OrphanDeleted"
	// eventOrphanedNode is Warning, on Node: the Node has no instance.
	eventOrphanedNode eventReason = "InstanceMissing"
)

// reportChangedFindings updates the metrics. It reports each finding twice: when it is first found, and when the grace
// period has passed.
func (s *Controller) reportChangedFindings(seen *snapshot, findings []Finding) {
	reported := map[string]string{}
	counts := map[[2]string]float64{}
	for _, kind := range s.findableKinds() {
		for _, state := range []string{suspected, proven} {
			counts[[2]string{string(kind), state}] = 0
		}
	}
	for _, f := range findings {
		state := suspected
		if f.IsDue {
			state = proven
		}
		counts[[2]string{string(f.Kind), state}]++
		key := string(f.Kind) + " " + f.ProviderID + " " + f.Name
		reported[key] = state
		if s.reported[key] == state {
			continue
		}
		s.options.Log.Warn("orphan found", "kind", f.Kind, "name", f.Name, "providerID", f.ProviderID, "group", f.Group, "state", state, "since", f.FirstFoundAt,
			"proofs", f.Proofs)
		s.recordFindingEvent(seen, f, state)
	}
	s.reported = reported
	if s.options.DeleteOrphans {
		s.reportKeptGroupsOnce(seen, findings)
	}
	for key, n := range counts {
		s.options.Metrics.orphans.WithLabelValues(s.cloudName, key[0], key[1]).Set(n)
	}
}

// reportKeptGroupsOnce reports that orphaned instances of a cloud group are not deleted, the reason, and what a user
// can do. It reports once for each group.
func (s *Controller) reportKeptGroupsOnce(seen *snapshot, findings []Finding) {
	kept := map[string]bool{}
	for _, f := range findings {
		if f.KeptReason == "" || kept[f.Group] {
			continue
		}
		kept[f.Group] = true
		if s.reportedKept[f.Group] {
			continue
		}
		note := fmt.Sprintf("orphaned instances are not deleted: %s. "+
			"Let their kubelets join again, or delete the unneeded ones by hand in the cloud", f.KeptReason)
		s.options.Log.Warn(note, "group", f.Group)
		s.recordGroupEvent(seen, f.Group, eventOrphansKept, "kept", note)
	}
	s.reportedKept = kept
}

// findableKinds returns the kinds of orphans that can be found in this cloud.
func (s *Controller) findableKinds() []OrphanKind {
	if s.marking != nil {
		return []OrphanKind{OrphanedInstance, OrphanedNode}
	}
	return []OrphanKind{OrphanedNode}
}

func (s *Controller) recordFindingEvent(seen *snapshot, f Finding, state string) {
	action := state + " " + cmp.Or(f.Name, f.ProviderID) // the state first, because a long name is clipped
	note := fmt.Sprintf("%s, %s: %s", f, state, s.describeNextAction(seen, f))
	if f.Kind == OrphanedNode {
		if n := seen.nodeByName[f.Name]; n != nil {
			s.recordEvent(&corev1.Node{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID},
			}, eventOrphanedNode, action, note)
		}
		return
	}
	s.recordGroupEvent(seen, f.Group, eventOrphan, action, note)
}

// describeNextAction returns a text that says what Slipway will do with an orphan.
func (s *Controller) describeNextAction(seen *snapshot, f Finding) string {
	action := "deleted"
	switch {
	case !s.options.DeleteOrphans:
		return "it is only reported"
	case f.Kind == OrphanedNode && s.findOwnGroup(seen, f.Name) == nil:
		return "it is kept: no NodeGroup of this manager selects it"
	case f.Kind == OrphanedNode:
		action = "retired"
	case f.KeptReason != "":
		return "it is kept: " + f.KeptReason
	}
	if f.IsDue {
		return "it is " + action + " now"
	}
	return fmt.Sprintf("it is %s once that has lasted for %s", action, s.options.GracePeriod.ConfirmFor)
}

// recordGroupEvent writes an Event on the NodeGroup of a cloud group, if it exists as an object.
func (s *Controller) recordGroupEvent(seen *snapshot, cloudGroup string, reason eventReason, action, note string) {
	g := seen.groupByCloudGroup[cloudGroup]
	if g == nil || g.UID == "" {
		return
	}
	s.recordEvent(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID},
	}, reason, action, note)
}

// recordEvent writes an Event. Its action distinguishes it from Events about other instances: if only the notes differ,
// the API server keeps the first.
func (s *Controller) recordEvent(about client.Object, reason eventReason, action, note string) {
	s.options.Events.Eventf(about, nil, corev1.EventTypeWarning, string(reason), observe.ClipEventAction(action), "%s", observe.ClipEventNote(note))
}
