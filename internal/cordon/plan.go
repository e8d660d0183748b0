package cordon

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// plan is the next change of a node, and the findings made while planning it. It depends on the node alone.
//
// A change takes up to two requests. One changes the record, spec and metadata; the other changes the conditions. A
// condition is written after the record that claims it, and removed before that claim. So each condition that Slipway
// has set is in a record at any time.
type plan struct {
	annotations       map[string]*string // nil deletes
	labels            map[string]*string // nil deletes
	unschedulable     *bool
	taints            []kubeapi.Taint // the whole list
	taintsChanged     bool
	setConditions     []conditionPatch
	removedConditions []string // condition types
	statusFirst       bool

	record      *Record
	uncordoned  bool
	restored    []string
	notOurs     []string
	otherOwners []string
	problems    []error
}

// hasChanges reports whether the plan changes the node.
func (p plan) hasChanges() bool { return p.changesNode() || p.changesStatus() }

func (p plan) changesNode() bool {
	return len(p.annotations)+len(p.labels) > 0 || p.unschedulable != nil || p.taintsChanged
}

func (p plan) changesStatus() bool { return len(p.setConditions)+len(p.removedConditions) > 0 }

// isStatusNext reports whether the next request is a patch of the status.
func (p plan) isStatusNext() bool { return p.changesStatus() && (p.statusFirst || !p.changesNode()) }

// claimPlanner makes the plan for one owner.
type claimPlanner struct {
	plan
	node         *kubeapi.Node
	now          time.Time
	ownRecord    Record // as on the node; zero if there is none
	nextRecord   Record // as it should be
	otherRecords []Record
	err          error
}

func newPlanner(node *kubeapi.Node, owner string, replaces ...string) *claimPlanner {
	p := &claimPlanner{node: node}
	p.annotations, p.labels = map[string]*string{}, map[string]*string{}
	records, problems := ListRecords(node)
	p.problems = problems
	for _, r := range records {
		switch {
		case r.Owner == owner:
			p.ownRecord = r
		case !slices.Contains(replaces, r.Owner):
			p.otherRecords = append(p.otherRecords, r)
			p.otherOwners = append(p.otherOwners, r.Owner)
		}
	}
	for _, r := range records {
		if r.Owner != owner && slices.Contains(replaces, r.Owner) {
			p.takeOverClaims(r)
		}
	}
	slices.Sort(p.otherOwners)
	return p
}

// takeOverClaims adds the claims of a replaced owner to this owner's claims, and removes the replaced owner's record.
// The next steps of planning then remove each claim that this owner does not need.
func (p *claimPlanner) takeOverClaims(r Record) {
	if p.ownRecord.Cordon != OwnCordon && r.Cordon != "" {
		p.ownRecord.Cordon = r.Cordon
	}
	p.ownRecord.Taints = append(slices.Clone(p.ownRecord.Taints), r.Taints...)
	p.ownRecord.Labels = mergeClaims(p.ownRecord.Labels, r.Labels, func(key, value string) bool {
		there, labelled := p.node.Labels[key]
		return labelled && there == value
	})
	p.ownRecord.Conditions = mergeClaims(p.ownRecord.Conditions, r.Conditions, func(kind string, c ConditionClaim) bool {
		on := p.currentCondition(kind)
		return on != nil && c.matches(on)
	})
	p.annotations[AnnotationKey(r.Owner)] = nil
	p.planPhaseLabel(LabelKey(r.Owner), "")
}

// mergeClaims returns own with the claims of another owner added. If both claim the same key with different values, it
// returns the value that is on the node.
func mergeClaims[V any](own, other map[string]V, isOnNode func(string, V) bool) map[string]V {
	all := map[string]V{}
	maps.Copy(all, own)
	for key, value := range other {
		if _, claimed := all[key]; !claimed || isOnNode(key, value) {
			all[key] = value
		}
	}
	return all
}

// planClaim plans the next change towards the claim r. If the owner's record cannot be parsed, it writes a new record,
// so that the old one does not prevent a drain. Everything that the old record claimed is then treated as set by
// another writer. If conditions is false, it plans the record of the conditions, but not the conditions.
func planClaim(node *kubeapi.Node, owner string, r ClaimSpec, now time.Time, writeConditions bool) (plan, error) {
	p := newPlanner(node, owner, r.ReplacedOwners...)
	p.now = now.UTC().Truncate(time.Second)
	p.nextRecord = Record{Owner: owner, Reason: r.Reason, Since: p.ownRecord.Since, Phase: r.Phase, State: r.normalizedState()}
	if p.ownRecord.Owner == "" {
		p.nextRecord.Since = p.now
	}
	p.planCordon(r.Unschedulable)
	p.planTaints(r.Taints)
	if r.LabelOnlyOwnCordon && p.nextRecord.Cordon != OwnCordon {
		r.Labels = nil
	}
	p.planLabels(r.Labels)
	p.planConditions(r.Conditions)
	if !writeConditions {
		p.setConditions, p.removedConditions = nil, nil
	}
	p.planPhaseLabel(LabelKey(owner), string(r.Phase))
	p.planRecordWrite(p.nextRecord)
	p.record = &p.nextRecord
	return p.plan, p.err
}

// planClaimRemoval plans the next step to remove the owner's claim. If conditions is false, the node's conditions stay,
// and the record stays as long as it lists conditions.
func planClaimRemoval(node *kubeapi.Node, owner string, removeConditions bool) (plan, error) {
	p := newPlanner(node, owner)
	key := AnnotationKey(owner)
	raw, noted := node.Annotations[key]
	if noted && p.ownRecord.Owner == "" {
		_, err := decodeRecord(key, raw)
		return p.plan, err
	}
	p.planCordon(false)
	p.planTaints(nil)
	p.planLabels(nil)
	p.planConditions(nil)
	p.planPhaseLabel(LabelKey(owner), "")
	switch {
	case noted && !removeConditions && len(p.removedConditions) > 0:
		p.removedConditions = nil
		p.nextRecord.Owner, p.nextRecord.Reason, p.nextRecord.Since, p.nextRecord.State = owner, p.ownRecord.Reason, p.ownRecord.Since, p.ownRecord.State
		p.planRecordWrite(p.nextRecord)
	case noted:
		p.annotations[key] = nil
	}
	if noted {
		p.record = &p.ownRecord
	}
	p.statusFirst = true
	return p.plan, p.err
}

// planCordon plans the value of spec.unschedulable.
func (p *claimPlanner) planCordon(wanted bool) {
	held := slices.ContainsFunc(p.otherRecords, func(r Record) bool { return r.Cordon == OwnCordon })
	switch ours := p.ownRecord.Cordon == OwnCordon || held; {
	case wanted && p.node.Spec.Unschedulable && ours:
		p.nextRecord.Cordon = OwnCordon
	case wanted && p.node.Spec.Unschedulable:
		p.nextRecord.Cordon = FoundCordon
		p.notOurs = append(p.notOurs, "spec.unschedulable")
	case wanted:
		p.uncordoned = p.ownRecord.Cordon != ""
		p.nextRecord.Cordon = OwnCordon
		p.unschedulable = new(true)
		p.markFoundCordonsOwn()
	case p.ownRecord.Cordon == OwnCordon && !held && p.node.Spec.Unschedulable:
		p.unschedulable = new(false)
	}
}

// markFoundCordonsOwn changes each record that had found a cordon: the cordon now counts as set by Slipway. The found
// cordon is gone, because the node is schedulable, and Slipway cordons the node again. So the last owner has to
// uncordon it.
func (p *claimPlanner) markFoundCordonsOwn() {
	for _, r := range p.otherRecords {
		if r.Cordon == FoundCordon {
			r.Cordon = OwnCordon
			p.planRecordWrite(r)
		}
	}
}

// planRecordWrite adds the write of a record to the plan, unless the node already has this record.
func (p *claimPlanner) planRecordWrite(r Record) {
	key := AnnotationKey(r.Owner)
	value, err := r.encode()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	if there, ok := p.node.Annotations[key]; !ok || there != value {
		p.annotations[key] = &value
	}
}
