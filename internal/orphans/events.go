package orphans

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/observe"
)

// eventReason is the reason of an Event about an orphan.
type eventReason string

// The reasons. The comment of each says of which type its Events are, what they are on, and when they are written.
const (
	// eventOrphan is Warning, on NodeGroup: a machine is the cluster's and has no Node.
	eventOrphan eventReason = "OrphanFound"
	// eventOrphansKept is Warning, on NodeGroup: such machines are too many at once, or none of the cluster's has a Node, so that
	// none of them is deleted.
	eventOrphansKept eventReason = "OrphansKept"
	// eventOrphanDeleted is Warning, on NodeGroup: such a machine is deleted.
	eventOrphanDeleted eventReason = "OrphanDeleted"
	// eventOrphanedNode is Warning, on Node: the Node has no machine.
	eventOrphanedNode eventReason = "InstanceMissing"
)

// report counts the findings, and reports each when it is first found and when it is due.
func (s *Controller) report(seen *snapshot, findings []Finding) {
	reported := map[string]string{}
	counts := map[[2]string]float64{}
	for _, kind := range s.kinds() {
		for _, state := range []string{suspected, proven} {
			counts[[2]string{string(kind), state}] = 0
		}
	}
	for _, f := range findings {
		state := suspected
		if f.Due {
			state = proven
		}
		counts[[2]string{string(f.Kind), state}]++
		key := string(f.Kind) + " " + f.ProviderID + " " + f.Name
		reported[key] = state
		if s.reported[key] == state {
			continue
		}
		s.o.Log.Warn("an orphan", "kind", f.Kind, "name", f.Name, "providerID", f.ProviderID, "group", f.Group, "state", state, "since", f.Since,
			"proofs", f.Proofs)
		s.announce(seen, f, state)
	}
	s.reported = reported
	if s.o.Delete {
		s.reportKept(seen, findings)
	}
	for key, n := range counts {
		s.o.Metrics.orphans.WithLabelValues(s.name, key[0], key[1]).Set(n)
	}
}

// reportKept reports that orphans are kept, and what to do about it, once for each of the cloud's groups.
func (s *Controller) reportKept(seen *snapshot, findings []Finding) {
	kept := map[string]bool{}
	for _, f := range findings {
		if f.Kept == "" || kept[f.Group] {
			continue
		}
		kept[f.Group] = true
		if s.kept[f.Group] {
			continue
		}
		note := fmt.Sprintf("orphans are not deleted: %s. "+
			"Have their kubelets join again, or delete by hand in the cloud what the cluster does not need", f.Kept)
		s.o.Log.Warn(note, "group", f.Group)
		s.onGroup(seen, f.Group, eventOrphansKept, "kept", note)
	}
	s.kept = kept
}

// kinds are those that may be found in the cloud.
func (s *Controller) kinds() []Kind {
	if s.marking != nil {
		return []Kind{OrphanedInstance, OrphanedNode}
	}
	return []Kind{OrphanedNode}
}

func (s *Controller) announce(seen *snapshot, f Finding, state string) {
	note := fmt.Sprintf("%s, %s: %s", f, state, s.intent(f))
	if f.Kind == OrphanedNode {
		if n := seen.uid[f.Name]; n != nil {
			s.emit(&corev1.Node{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID},
			}, eventOrphanedNode, state, note)
		}
		return
	}
	s.onGroup(seen, f.Group, eventOrphan, state, note)
}

// intent says what follows for an orphan.
func (s *Controller) intent(f Finding) string {
	switch {
	case !s.o.Delete:
		return "it is reported and left alone"
	case f.Kind == OrphanedNode:
		return fmt.Sprintf("its Node is retired when that has been so for %s", s.o.Grace.Stay)
	case f.Kept != "":
		return "it is left alone: " + f.Kept
	}
	return fmt.Sprintf("it is deleted when that has been so for %s", s.o.Grace.Stay)
}

// onGroup makes an Event on the NodeGroup of a cloud's group, if there is one that has an object.
func (s *Controller) onGroup(seen *snapshot, cloudGroup string, reason eventReason, action, note string) {
	g := seen.byCloud[cloudGroup]
	if g == nil || g.UID == "" {
		return
	}
	s.emit(&v1alpha1.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID},
	}, reason, action, note)
}

// emit makes an Event, whose action keeps it apart from one about another machine: of Events that differ in their notes
// alone the API server keeps the first.
func (s *Controller) emit(about client.Object, reason eventReason, action, note string) {
	const maxAction = 128
	s.o.Events.Eventf(about, nil, corev1.EventTypeWarning, string(reason), observe.Clip(action, maxAction), "%s", observe.Note(note))
}
