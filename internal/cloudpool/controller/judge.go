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

// world is a pool and its cluster at one moment.
type world struct {
	pool    api.Pool
	size    api.Size
	nodes   []*corev1.Node
	pairing matching.Pairing
	rules   planner.Options
	group   string // the NodeGroup's name, if there is one
	// retiring are the unfinished NodeRetirements of the pool's machines, by machine ID.
	retiring map[string]*v1alpha1.NodeRetirement
	// leaving are the names of the nodes of all unfinished NodeRetirements in the cluster.
	leaving map[string]bool
}

func (u *Updater) look(ctx context.Context) (*world, error) {
	w := &world{leaving: map[string]bool{}}
	var err error
	if w.pool, err = u.o.Backend.Pool(ctx); err != nil {
		return nil, BackendFailure("reading the pool", err)
	}
	if w.size, err = u.o.Backend.Size(ctx); err != nil {
		return nil, BackendFailure("reading the pool's size", err)
	}
	if w.nodes, err = u.o.Cluster.Nodes(); err != nil {
		return nil, ClusterFailure("reading the nodes", err)
	}
	provider, group := u.o.Backend.Provider()
	w.rules, w.group, err = u.o.Cluster.rules(ctx, provider.Name(), group, u.o.Labels, u.o.SystemLocalStorage)
	if err != nil {
		return nil, &Failure{Result: NotPossible, Detail: err.Error(), Err: err}
	}
	retirements, err := u.o.Cluster.unfinished(ctx)
	if err != nil {
		return nil, err
	}
	w.pairing = matching.Pair(w.pool.Machines, w.nodes, u.o.Backend)
	w.retiring = matching.FindRetirements(w.pairing.Members, retirements, u.o.Backend)
	for i := range retirements {
		w.leaving[retirements[i].Spec.NodeName] = true
	}
	return w, nil
}

// Decide decides which machines would go for a size, and does nothing.
func (u *Updater) Decide(ctx context.Context, desired int) (*matching.Decision, error) {
	w, err := u.look(ctx)
	if err != nil {
		return nil, err
	}
	want := Update{Kind: SetSize, DesiredSize: desired}
	return u.decide(w, &v1alpha1.PoolUpdate{Spec: want.spec(u.o.Pool)}, nil)
}

func (u *Updater) decide(w *world, up *v1alpha1.PoolUpdate, only map[string]bool) (*matching.Decision, error) {
	q := matching.Question{
		Desired: int(*up.Spec.DesiredSize), Pairing: &w.pairing, Leaving: map[string]bool{}, Refused: map[string]string{}, Only: only,
		Registration: u.o.Pace.Registration, Now: time.Now(), Policy: u.o.Policy, Rules: w.rules, Nodes: w.nodes,
		KeepLast: !u.o.RemoveLastWorker, Retiring: w.leaving, Choose: u.o.Cluster.choose,
	}
	for _, m := range up.Status.Machines {
		switch m.State {
		case v1alpha1.MachineRefused:
			q.Refused[m.ID] = m.Reason
		case v1alpha1.MachineLeaving, v1alpha1.MachineLeft:
			q.Leaving[m.ID] = true
		}
	}
	for machine := range w.retiring {
		if up.Machine(machine) == nil {
			q.Leaving[machine] = true
		}
	}
	began := time.Now()
	d, err := matching.Decide(q)
	u.o.Metrics.decided(time.Since(began))
	return d, err
}

// JudgeSize says whether a smaller size can be begun with.
func (u *Updater) JudgeSize(ctx context.Context, want *Update) error {
	d, err := u.Decide(ctx, want.DesiredSize)
	switch {
	case err != nil:
		return err
	case len(d.Unclear) > 0 || d.Excess() > 0 && len(d.Victims) == 0:
		return Failuref(NotPossible, "%s", d.Reasons())
	case d.Excess() > v1alpha1.MaxPoolMachines:
		return Failuref(NotPossible, "taking %d machines away at once is more than a PoolUpdate holds: want a desiredSize of at least %d, and then a "+
			"smaller one", d.Excess(), d.Active-v1alpha1.MaxPoolMachines)
	}
	return nil
}

// JudgeMachine says whether one machine can go.
func (u *Updater) JudgeMachine(ctx context.Context, want *Update) error {
	w, err := u.look(ctx)
	if err != nil {
		return err
	}
	m := w.pairing.Find(want.MachineID)
	switch {
	case m == nil:
		return Failuref(NotFound, "machine %s is not a member of the pool", want.MachineID)
	case m.Machine.State == api.Terminating:
		return ErrAlready
	case len(w.pairing.Unclear) > 0:
		return Failuref(NotPossible, "%s", (&matching.Decision{Unclear: w.pairing.Unclear}).Reasons())
	case w.retiring[want.MachineID] != nil:
		return nil // it leaves already, and is followed
	}
	refused, err := u.refusalOf(w, m, want.Kind == Dispose)
	if err == nil && refused != nil {
		err = Failuref(NotPossible, "%s", refused)
	}
	return err
}

// refusalOf judges one machine; nil means that it can go.
func (u *Updater) refusalOf(w *world, m *matching.Member, disposes bool) (*matching.Passed, error) {
	rule, text := matching.CheckMachine(m, &matching.Question{Registration: u.o.Pace.Registration, Now: time.Now(), Disposed: disposes})
	p := &matching.Passed{Machine: m.Machine.ID, Rule: rule, Text: text}
	if m.Node != nil {
		p.Node = m.Node.Name
	}
	switch {
	case rule != "":
		return p, nil
	case m.Node == nil && m.Machine.State != api.Rejected: // one that its cloud could not make registers no node
		p.Rule, p.Text = matching.RuleRegistering, "machine "+m.Machine.ID+" has no node: no kubernetes node says that it is it, and it may be about to "+
			"register: want a smaller desired size, which takes machines without a node first"
		return p, nil
	case m.Node == nil:
		return nil, nil
	}
	leaving := maps.Clone(w.leaving)
	leaving[p.Node] = true
	if !u.o.RemoveLastWorker && matching.IsLastWorker(w.nodes, leaving) {
		p.Rule, p.Text = matching.RuleLastWorker, matching.LastWorkerText
		return p, nil
	}
	rules := w.rules
	if disposes { // that its pool keeps it is undone before it goes
		rules.Lifted = map[string]string{p.Node: drainability.Membership}
	}
	answer, err := u.o.Cluster.evacuate(p.Node, u.o.Policy, rules)
	if err != nil || answer.Feasible() {
		return nil, err
	}
	all := matching.ToPassed(answer.Refusals[0])
	all.Machine, all.Node = p.Machine, p.Node
	for _, more := range answer.Refusals[1:] {
		all.Text += "; " + more.String()
	}
	return &all, nil
}

// hasNode reports that a machine has a node, or may have, by the nodes as they are at this moment.
func (u *Updater) hasNode(ctx context.Context, pool *api.Pool, machine string) (bool, error) {
	nodes, err := u.o.Cluster.NodesNow(ctx)
	if err != nil {
		return false, err
	}
	now := matching.Pair(pool.Machines, nodes, u.o.Backend)
	is := now.Find(machine)
	return is == nil || is.Node != nil || is.Doubt != "" || len(now.Unclear) > 0, nil
}

// find gives a machine of a pool that has not ended; nil when there is none.
func (u *Updater) find(pool *api.Pool, machine string) *api.Machine {
	i := slices.IndexFunc(pool.Machines, func(m api.Machine) bool { return m.ID == machine && !matching.HasEnded(&m, u.o.Backend) })
	if i < 0 {
		return nil
	}
	return &pool.Machines[i]
}

// HasNodeAlone reports whether a Node says that it is a machine, which the pool does not have.
func (u *Updater) HasNodeAlone(machine string) bool {
	identity, ok := u.o.Backend.Identity(&api.Machine{ID: machine})
	nodes, err := u.o.Cluster.Nodes()
	return err == nil && ok && slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		is, err := u.o.Backend.NodeIdentity(n.Spec.ProviderID)
		return err == nil && is == identity
	})
}
