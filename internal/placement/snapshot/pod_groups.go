package snapshot

import (
	"encoding/json"
	"errors"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// PodGroups holds the disruption modes of the PodGroups of a cluster.
type PodGroups struct {
	journal *undoLog
	modes   map[placement.PodKey]podrules.DisruptionMode
}

// Set adds or updates a PodGroup.
func (g *PodGroups) Set(o *schedulingv1beta1.PodGroup) error {
	if o == nil || o.Name == "" {
		return errors.New("PodGroup has no name")
	}
	if err := g.journal.countEventUnlessForked(); err != nil {
		return err
	}
	raw, err := json.Marshal(o.Spec.DisruptionMode)
	if err != nil {
		return err
	}
	g.modes[placement.PodKey{Namespace: o.Namespace, Name: o.Name}] = podrules.ParseDisruptionMode(raw)
	return nil
}

// Delete removes a PodGroup. It is not an error if the PodGroup is unknown.
func (g *PodGroups) Delete(key placement.PodKey) error {
	if err := g.journal.countEventUnlessForked(); err != nil {
		return err
	}
	delete(g.modes, key)
	return nil
}

// FindGroup returns the group that a pod loses its work with. An unknown PodGroup counts as disruptionMode all.
func (g *PodGroups) FindGroup(p *filter.Pod) podrules.Group {
	group := p.Facts.Group
	return group.ResolveMode(p.Class.Labels.Labels, g.modes[placement.PodKey{Namespace: p.Key.Namespace, Name: group.Name}])
}
