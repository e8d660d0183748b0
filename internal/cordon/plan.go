package cordon

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// plan is what to change on a node next, and what was seen in working it out. It is made from the node alone.
//
// What a record claims and what spec and metadata hold are changed by one request. Conditions are changed by another,
// which comes after the request that claims them and before the one that gives the claim up: so that there is no
// moment at which a condition of ours is on the node and not in a record.
type plan struct {
	annotations   map[string]*string // nil deletes
	labels        map[string]*string // nil deletes
	unschedulable *bool
	taints        []kubeapi.Taint // the whole list
	newTaints     bool
	set           []condition
	drop          []string // condition types
	statusFirst   bool

	record     *Record
	uncordoned bool
	restored   []string
	foreign    []string
	heldBy     []string
	problems   []error
}

// patched reports whether there is anything to change.
func (p plan) patched() bool { return p.patchesNode() || p.patchesStatus() }

func (p plan) patchesNode() bool {
	return len(p.annotations)+len(p.labels) > 0 || p.unschedulable != nil || p.newTaints
}

func (p plan) patchesStatus() bool { return len(p.set)+len(p.drop) > 0 }

// nextIsStatus reports that the next request of the plan is the one to the status.
func (p plan) nextIsStatus() bool { return p.patchesStatus() && (p.statusFirst || !p.patchesNode()) }

// planner works out one plan for one owner.
type planner struct {
	plan
	node   *kubeapi.Node
	now    time.Time
	mine   Record // as it is on the node; zero when there is none
	next   Record // as it is to be
	others []Record
	err    error
}

func newPlanner(node *kubeapi.Node, owner string, replaces ...string) *planner {
	p := &planner{node: node}
	p.annotations, p.labels = map[string]*string{}, map[string]*string{}
	records, problems := List(node)
	p.problems = problems
	for _, r := range records {
		switch {
		case r.Owner == owner:
			p.mine = r
		case !slices.Contains(replaces, r.Owner):
			p.others = append(p.others, r)
			p.heldBy = append(p.heldBy, r.Owner)
		}
	}
	for _, r := range records {
		if r.Owner != owner && slices.Contains(replaces, r.Owner) {
			p.takeOver(r)
		}
	}
	slices.Sort(p.heldBy)
	return p
}

// takeOver makes the claims of an owner that is replaced this owner's, and removes its record. What this owner does not want
// is then removed as what it no longer wants.
func (p *planner) takeOver(r Record) {
	if p.mine.Cordon != Own && r.Cordon != "" {
		p.mine.Cordon = r.Cordon
	}
	p.mine.Taints = append(slices.Clone(p.mine.Taints), r.Taints...)
	p.mine.Labels = merged(p.mine.Labels, r.Labels, func(key, value string) bool {
		there, labelled := p.node.Labels[key]
		return labelled && there == value
	})
	p.mine.Conditions = merged(p.mine.Conditions, r.Conditions, func(kind string, c Claim) bool {
		on := p.current(kind)
		return on != nil && c.matches(on)
	})
	p.annotations[AnnotationKey(r.Owner)] = nil
	p.phase(LabelKey(r.Owner), "")
}

// merged adds the claims of another owner to an owner's own. Of two to the same key, the one that is on the node counts.
func merged[V any](own, other map[string]V, isOnNode func(string, V) bool) map[string]V {
	all := map[string]V{}
	maps.Copy(all, own)
	for key, value := range other {
		if _, claimed := all[key]; !claimed || isOnNode(key, value) {
			all[key] = value
		}
	}
	return all
}

// planHold works out the next step towards the request. A record of the owner's that cannot be read is replaced, as
// an unreadable note must not keep a node from being drained; what it may have claimed counts as somebody else's.
// Without conditions they are claimed all the same, and not written.
func planHold(node *kubeapi.Node, owner string, r Request, now time.Time, conditions bool) (plan, error) {
	p := newPlanner(node, owner, r.Replaces...)
	p.now = now.UTC().Truncate(time.Second)
	p.next = Record{Owner: owner, Reason: r.Reason, Since: p.mine.Since, Phase: r.Phase, State: r.spelledState()}
	if p.mine.Owner == "" {
		p.next.Since = p.now
	}
	p.cordon(r.Unschedulable)
	p.wantTaints(r.Taints)
	if r.LabelOwnCordon && p.next.Cordon != Own {
		r.Labels = nil
	}
	p.wantLabels(r.Labels)
	p.wantConditions(r.Conditions)
	if !conditions {
		p.set, p.drop = nil, nil
	}
	p.phase(LabelKey(owner), string(r.Phase))
	p.write(p.next)
	p.record = &p.next
	return p.plan, p.err
}

// planRelease works out the next step towards the owner's being gone from the node. Without conditions, those that
// would have to go stay, and so does a record that claims them.
func planRelease(node *kubeapi.Node, owner string, conditions bool) (plan, error) {
	p := newPlanner(node, owner)
	key := AnnotationKey(owner)
	raw, noted := node.Annotations[key]
	if noted && p.mine.Owner == "" {
		_, err := decode(key, raw)
		return p.plan, err
	}
	p.cordon(false)
	p.wantTaints(nil)
	p.wantLabels(nil)
	p.wantConditions(nil)
	p.phase(LabelKey(owner), "")
	switch {
	case noted && !conditions && len(p.drop) > 0:
		p.drop = nil
		p.next.Owner, p.next.Reason, p.next.Since, p.next.State = owner, p.mine.Reason, p.mine.Since, p.mine.State
		p.write(p.next)
	case noted:
		p.annotations[key] = nil
	}
	if noted {
		p.record = &p.mine
	}
	p.statusFirst = true
	return p.plan, p.err
}

// cordon decides about spec.unschedulable.
func (p *planner) cordon(wanted bool) {
	held := slices.ContainsFunc(p.others, func(r Record) bool { return r.Cordon == Own })
	switch ours := p.mine.Cordon == Own || held; {
	case wanted && p.node.Spec.Unschedulable && ours:
		p.next.Cordon = Own
	case wanted && p.node.Spec.Unschedulable:
		p.next.Cordon = Found
		p.foreign = append(p.foreign, "spec.unschedulable")
	case wanted:
		p.uncordoned = p.mine.Cordon != ""
		p.next.Cordon = Own
		p.unschedulable = new(true)
		p.adoptCordon()
	case p.mine.Cordon == Own && !held && p.node.Spec.Unschedulable:
		p.unschedulable = new(false)
	}
}

// adoptCordon makes the cordon that we are about to set every owner's own: the one that some of them found is gone, as
// the node is schedulable, and whoever lets go last must take ours off.
func (p *planner) adoptCordon() {
	for _, r := range p.others {
		if r.Cordon == Found {
			r.Cordon = Own
			p.write(r)
		}
	}
}

// write puts a record into the plan unless it stands on the node as it is.
func (p *planner) write(r Record) {
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
