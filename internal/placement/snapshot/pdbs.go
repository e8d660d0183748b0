package snapshot

import (
	"errors"
	"fmt"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
)

// PDB holds what the eviction API reads from a PodDisruptionBudget.
type PDB struct {
	Key                   placement.PodKey
	selector              labels.Selector
	Allowed               int32
	hasDesiredHealthy     bool // enough pods are healthy, and at least one must be
	alwaysAllowsUnhealthy bool // unhealthyPodEvictionPolicy: AlwaysAllow
	isStale               bool // the status belongs to an older generation
}

func newPDB(o *policyv1.PodDisruptionBudget) *PDB {
	b := &PDB{
		Key: placement.PodKey{Namespace: o.Namespace, Name: o.Name}, Allowed: o.Status.DisruptionsAllowed,
		hasDesiredHealthy: o.Status.CurrentHealthy >= o.Status.DesiredHealthy && o.Status.DesiredHealthy > 0,
		isStale:           o.Status.ObservedGeneration < o.Generation,
	}
	b.alwaysAllowsUnhealthy = ptr.Deref(o.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget) == policyv1.AlwaysAllow
	// Like the eviction API: an invalid selector matches nothing.
	selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	b.selector = selector
	return b
}

// PDBs holds the PodDisruptionBudgets of a cluster.
type PDBs struct {
	journal     *undoLog
	byKey       map[placement.PodKey]*PDB
	byNamespace map[string][]*PDB
	byClass     []classPDBs // by ID of the class
	changes     uint64
}

// classPDBs caches the budgets that select the pods of a class, as of a change number.
type classPDBs struct {
	pdbs    []*PDB
	changes uint64
}

func newPDBs(j *undoLog) PDBs {
	return PDBs{journal: j, byKey: map[placement.PodKey]*PDB{}, byNamespace: map[string][]*PDB{}, changes: 1}
}

// IsEmpty reports whether no budget is known.
func (m *PDBs) IsEmpty() bool { return len(m.byKey) == 0 }

// Lookup returns a budget, or nil if it is not known. The budget may be in any state.
func (m *PDBs) Lookup(key placement.PodKey) *PDB { return m.byKey[key] }

// Set adds or updates a budget. Like in the eviction API, an invalid selector selects nothing.
func (m *PDBs) Set(o *policyv1.PodDisruptionBudget) error {
	if o == nil || o.Name == "" {
		return errors.New("PodDisruptionBudget has no name")
	}
	if err := m.journal.countEventUnlessForked(); err != nil {
		return err
	}
	b := newPDB(o)
	m.dropPDB(b.Key)
	m.changes++
	m.byKey[b.Key] = b
	list := slices.Concat(m.byNamespace[b.Key.Namespace], []*PDB{b})
	slices.SortFunc(list, func(a, b *PDB) int { return a.Key.Compare(b.Key) })
	m.byNamespace[b.Key.Namespace] = list
	return nil
}

// Delete removes a budget. It is not an error if the budget is unknown.
func (m *PDBs) Delete(key placement.PodKey) error {
	if err := m.journal.countEventUnlessForked(); err != nil {
		return err
	}
	m.dropPDB(key)
	return nil
}

func (m *PDBs) dropPDB(key placement.PodKey) {
	b, ok := m.byKey[key]
	if !ok {
		return
	}
	m.changes++
	delete(m.byKey, key)
	m.byNamespace[key.Namespace] = slices.DeleteFunc(m.byNamespace[key.Namespace], func(x *PDB) bool { return x == b })
	if len(m.byNamespace[key.Namespace]) == 0 {
		delete(m.byNamespace, key.Namespace)
	}
}

// listPDBsSelectingClass lists the budgets that select the pods of a class, sorted by name.
func (m *PDBs) listPDBsSelectingClass(c *filter.PodClass) []*PDB {
	for int(c.ID) >= len(m.byClass) {
		m.byClass = append(m.byClass, classPDBs{})
	}
	l := &m.byClass[c.ID]
	if l.changes != m.changes {
		l.pdbs, l.changes = nil, m.changes
		for _, b := range m.byNamespace[c.Labels.Namespace.Name] {
			if b.selector.Matches(c.Labels.Labels) {
				l.pdbs = append(l.pdbs, b)
			}
		}
	}
	return l.pdbs
}

// dropClassCaches drops the cache entries of dropped classes.
func (m *PDBs) dropClassCaches(classIDs []int32) {
	for _, id := range classIDs {
		if int(id) < len(m.byClass) {
			m.byClass[id] = classPDBs{}
		}
	}
}

// FindPDBToCharge returns the budget that an eviction of the pod would charge, by the rules of the eviction API:
// - A pod that has not started or is terminating charges nothing.
// - A pod that a plan has moved charges nothing, because it is not evicted from its new node.
// - Several budgets on one pod are an error.
// - An unhealthy pod charges nothing if the policy is AlwaysAllow or enough other pods are healthy.
// refusal says why the eviction is always forbidden. It is empty if it is not.
func (m *PDBs) FindPDBToCharge(p *filter.Pod) (charged *PDB, refusal string) {
	if p.Unstarted || p.Terminating || p.IsMovedByPlan() {
		return nil, ""
	}
	over := m.listPDBsSelectingClass(p.Class)
	switch len(over) {
	case 0:
		return nil, ""
	case 1:
	default:
		return nil, fmt.Sprintf("is selected by %d disruption budgets (%s, %s), which the eviction API rejects", len(over),
			over[0].Key.Name, over[1].Key.Name)
	}
	b := over[0]
	if !p.Ready && (b.alwaysAllowsUnhealthy || b.hasDesiredHealthy) {
		return nil, ""
	}
	if b.isStale {
		return b, fmt.Sprintf("is selected by disruption budget %s, and its status is not up to date", b.Key.Name)
	}
	return b, ""
}
