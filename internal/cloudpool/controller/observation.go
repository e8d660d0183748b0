package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/matching"
	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// observation holds a pool and the cluster's Nodes as read at one moment.
type observation struct {
	pool      api.Pool
	size      api.Size
	nodes     []*corev1.Node
	pairing   matching.Pairing
	rules     planner.Options
	groupName string // the name of the NodeGroup, or ""
	// retiring maps machine IDs to the unfinished NodeRetirements of the pool's machines.
	retiring map[string]*v1alpha1.NodeRetirement
	// leavingNodes are the names of all nodes in the cluster with an unfinished NodeRetirement.
	leavingNodes map[string]bool
	// apiServerNodes are the names of all nodes in the cluster with an API server pod.
	apiServerNodes map[string]bool
}

func (u *Updater) observePool(ctx context.Context) (*observation, error) {
	w := &observation{leavingNodes: map[string]bool{}}
	var err error
	if w.pool, err = u.opts.Backend.Pool(ctx); err != nil {
		return nil, NewBackendFailure("reading the pool", err)
	}
	if w.size, err = u.opts.Backend.Size(ctx); err != nil {
		return nil, NewBackendFailure("reading the pool's size", err)
	}
	if w.nodes, err = u.opts.Cluster.CachedNodes(); err != nil {
		return nil, NewClusterFailure("reading the nodes", err)
	}
	if w.apiServerNodes, err = u.opts.Cluster.listAPIServerNodes(); err != nil {
		return nil, NewClusterFailure("reading the pods", err)
	}
	provider, group := u.opts.Backend.Provider()
	w.rules, w.groupName, err = u.opts.Cluster.loadGroupRules(ctx, provider.Name(), group, u.opts.Labels, u.opts.SystemLocalStorage)
	if err != nil {
		return nil, &Failure{Result: NotPossible, Detail: err.Error(), Err: err}
	}
	retirements, err := u.opts.Cluster.listUnfinishedRetirements(ctx)
	if err != nil {
		return nil, err
	}
	w.pairing = matching.PairMachines(w.pool.Machines, w.nodes, u.opts.Backend)
	w.retiring = matching.MapRetirementsByMachine(w.pairing.Members, retirements, u.opts.Backend)
	for i := range retirements {
		w.leavingNodes[retirements[i].Spec.NodeName] = true
	}
	return w, nil
}

// PlanShrinkTo returns which machines an update to the desired size would remove. It changes nothing.
func (u *Updater) PlanShrinkTo(ctx context.Context, desired int) (*matching.Decision, error) {
	w, err := u.observePool(ctx)
	if err != nil {
		return nil, err
	}
	want := Update{Kind: SetSize, DesiredSize: desired}
	return u.chooseMachinesToRemove(w, &v1alpha1.PoolUpdate{Spec: want.toSpec(u.opts.Pool)}, nil)
}

func (u *Updater) chooseMachinesToRemove(w *observation, up *v1alpha1.PoolUpdate, allowedMachines map[string]bool) (*matching.Decision, error) {
	q := matching.DecisionInput{
		Desired: int(*up.Spec.DesiredSize), Pairing: &w.pairing, Leaving: map[string]bool{}, Refused: map[string]string{}, Only: allowedMachines,
		NodeRegistrationTimeout: u.opts.Timeouts.NodeRegistration, Now: time.Now(), Policy: u.opts.Policy, Rules: w.rules, Nodes: w.nodes,
		KeepLastWorker: !u.opts.RemoveLastWorker, RetiringNodes: w.leavingNodes, APIServerNodes: w.apiServerNodes, ChooseNodes: u.opts.Cluster.chooseNodesToRemove,
	}
	for _, m := range up.Status.Machines {
		switch m.State {
		case v1alpha1.MachineRefused:
			q.Refused[m.ID] = m.Reason
		case v1alpha1.MachineRemoving, v1alpha1.MachineRemoved:
			q.Leaving[m.ID] = true
		}
	}
	for machine := range w.retiring {
		if up.FindMachineExceptPlanned(machine) == nil {
			q.Leaving[machine] = true
		}
	}
	began := time.Now()
	d, err := matching.ChooseMachinesToRemove(q)
	u.opts.Metrics.recordDecision(time.Since(began))
	return d, err
}

// CheckCanShrink returns an error if an update to a smaller size cannot start: no machine can be removed, the pairing
// of machines and nodes is unclear, or one PoolUpdate cannot record so many machines.
func (u *Updater) CheckCanShrink(ctx context.Context, want *Update) error {
	d, err := u.PlanShrinkTo(ctx, want.DesiredSize)
	switch {
	case err != nil:
		return err
	case len(d.Unclear) > 0 || d.Excess() > 0 && len(d.Victims) == 0:
		return NewFailuref(NotPossible, "%s", d.ExplainShortfall())
	case d.Excess() > v1alpha1.MaxPoolMachines:
		return NewFailuref(NotPossible, "removing %d machines is more than one PoolUpdate supports: want a desiredSize of at least %d first, then a "+
			"smaller one", d.Excess(), d.Active-v1alpha1.MaxPoolMachines)
	}
	return nil
}

// CheckCanRemoveMachine returns an error if an update could not remove the machine.
func (u *Updater) CheckCanRemoveMachine(ctx context.Context, want *Update) error {
	w, err := u.observePool(ctx)
	if err != nil {
		return err
	}
	m := w.pairing.FindMember(want.MachineID)
	switch {
	case m == nil:
		return NewFailuref(NotFound, "machine %s is not a member of the pool", want.MachineID)
	case m.Machine.State == api.Terminating:
		return ErrAlreadyTerminating
	case len(w.pairing.Unclear) > 0:
		return NewFailuref(NotPossible, "%s", (&matching.Decision{Unclear: w.pairing.Unclear}).ExplainShortfall())
	case w.retiring[want.MachineID] != nil:
		return nil // the update follows the existing retirement
	}
	refused, err := u.findRemovalRefusal(w, m, want.Kind == Dispose)
	if err == nil && refused != nil {
		err = NewFailuref(NotPossible, "%s", refused)
	}
	return err
}

// findRemovalRefusal returns why a machine cannot be removed, or nil if it can be. With makesEvictable, the update
// makes the machine evictable first.
func (u *Updater) findRemovalRefusal(w *observation, m *matching.Member, makesEvictable bool) (*matching.SkippedMachine, error) {
	rule, text := matching.FindProtectingRule(m, &matching.DecisionInput{NodeRegistrationTimeout: u.opts.Timeouts.NodeRegistration, Now: time.Now(), MakesEvictable: makesEvictable})
	p := &matching.SkippedMachine{Machine: m.Machine.ID, Rule: rule, Message: text}
	if m.Node != nil {
		p.Node = m.Node.Name
	}
	switch {
	case rule != "":
		return p, nil
	case m.Node == nil && m.Machine.State != api.Rejected: // a machine that the cloud failed to create registers no node
		p.Rule, p.Message = matching.RuleRegistering, "machine "+m.Machine.ID+" has no node: no Kubernetes node belongs to it, and it may be about to "+
			"register: want a smaller desired size, which removes machines without a node first"
		return p, nil
	case m.Node == nil:
		return nil, nil
	}
	leaving := maps.Clone(w.leavingNodes)
	leaving[p.Node] = true
	if !u.opts.RemoveLastWorker && matching.WouldRemoveLastWorker(w.nodes, w.apiServerNodes, leaving) {
		p.Rule, p.Message = matching.RuleLastWorker, matching.LastWorkerText
		return p, nil
	}
	rules := w.rules
	if makesEvictable { // the update makes the machine evictable first
		rules.IgnoredAnnotations = map[string]string{p.Node: drainability.Membership}
	}
	answer, err := u.opts.Cluster.planEvacuation(p.Node, u.opts.Policy, rules)
	if err != nil || answer.IsFeasible() {
		return nil, err
	}
	all := matching.ToSkippedMachine(answer.Refusals[0])
	all.Machine, all.Node = p.Machine, p.Node
	for _, more := range answer.Refusals[1:] {
		all.Message += "; " + more.String()
	}
	return &all, nil
}

// mayHaveNode reports whether a machine has a Node, or may have a Node that cannot be paired with it. It lists the
// Nodes without a cache.
func (u *Updater) mayHaveNode(ctx context.Context, pool *api.Pool, machine string) (mayHave bool, err error) {
	nodes, err := u.opts.Cluster.ListNodesLive(ctx)
	if err != nil {
		return false, err
	}
	now := matching.PairMachines(pool.Machines, nodes, u.opts.Backend)
	is := now.FindMember(machine)
	return is == nil || is.Node != nil || is.Doubt != "" || len(now.Unclear) > 0, nil
}

// findLiveMachine returns the machine with this ID, or nil if the pool does not list it or it has ended.
func (u *Updater) findLiveMachine(pool *api.Pool, machine string) *api.Machine {
	i := slices.IndexFunc(pool.Machines, func(m api.Machine) bool { return m.ID == machine && !matching.HasEnded(&m, u.opts.Backend) })
	if i < 0 {
		return nil
	}
	return &pool.Machines[i]
}

// HasNodeOfMachine reports whether a Node has the provider ID of this machine. It is for a machine that the pool does
// not list.
func (u *Updater) HasNodeOfMachine(machine string) bool {
	identity, ok := u.opts.Backend.Identity(&api.Machine{ID: machine})
	nodes, err := u.opts.Cluster.CachedNodes()
	return err == nil && ok && slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		is, err := u.opts.Backend.NodeIdentity(n.Spec.ProviderID)
		return err == nil && is == identity
	})
}
