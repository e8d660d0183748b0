package cloudpool

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/protection"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// world is a pool and its cluster at one moment.
type world struct {
	pool    api.Pool
	size    api.Size
	pairing Pairing
	rules   placement.Options
	group   string // the NodeGroup's name, if there is one
	// retiring are the NodeRetirements under way of the pool's machines, by their IDs, whoever has made them.
	retiring map[string]*v1alpha1.NodeRetirement
}

// look reads the world.
func (u *Updater) look(ctx context.Context) (*world, error) {
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool", err)
	}
	size, err := u.o.Backend.Size(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool's size", err)
	}
	nodes, err := u.o.Cluster.Nodes()
	if err != nil {
		return nil, clusterFailure("reading the nodes", err)
	}
	provider, group := u.o.Backend.Provider()
	rules, name, err := u.o.Cluster.rules(ctx, provider.Name(), group, u.o.Labels)
	if err != nil {
		return nil, &Failure{Result: NotPossible, Detail: err.Error(), Err: err}
	}
	retirements, err := u.o.Cluster.unfinished(ctx)
	if err != nil {
		return nil, clusterFailure("reading the NodeRetirements", err)
	}
	w := &world{pool: pool, size: size, pairing: Pair(pool.Machines, nodes, u.o.Backend), rules: rules, group: name}
	w.retiring = retiring(w.pairing.Members, retirements, u.o.Backend)
	return w, nil
}

// Decide decides which machines would go for a size, and does nothing.
func (u *Updater) Decide(ctx context.Context, desired int) (*Decision, error) {
	w, err := u.look(ctx)
	if err != nil {
		return nil, err
	}
	return u.decide(w, &Update{DesiredSize: desired}, nil)
}

func (u *Updater) decide(w *world, up *Update, only map[string]bool) (*Decision, error) {
	nodes, err := u.o.Cluster.Nodes()
	if err != nil {
		return nil, clusterFailure("reading the nodes", err)
	}
	q := question{
		desired: up.DesiredSize, pairing: &w.pairing, leaving: map[string]bool{}, refused: map[string]string{}, only: only,
		registration: u.o.Pace.Registration, now: time.Now(), policy: u.o.Policy, rules: w.rules, nodes: nodes,
		choose: u.o.Cluster.choose,
	}
	for _, t := range up.Turns {
		if t.State == Refused {
			q.refused[t.Machine] = t.Why
		} else {
			q.leaving[t.Machine] = true
		}
	}
	for machine := range w.retiring {
		if up.turn(machine) == nil {
			q.leaving[machine] = true
		}
	}
	began := time.Now()
	d, err := decide(q)
	u.o.Metrics.decided(time.Since(began))
	return d, err
}

// judgeSize says whether a smaller size can be begun with.
func (u *Updater) judgeSize(ctx context.Context, up *Update) error {
	w, err := u.look(ctx)
	if err != nil {
		return err
	}
	d, err := u.decide(w, up, nil)
	if err != nil {
		return err
	}
	if len(d.Unclear) > 0 || d.Excess() > 0 && len(d.Victims) == 0 {
		return failure(NotPossible, "%s", d.reasons())
	}
	up.SizeBefore, up.Observed, up.Decision = w.size.Desired, w.pool.Timestamp, short(d)
	return nil
}

// short is a decision with as many reasons as are worth writing down.
func short(d *Decision) *Decision {
	c := *d
	c.Passed = c.Passed[:min(len(c.Passed), mostPassed)]
	return &c
}

// turn does what is due. An outcome says that the update is over.
func (u *Updater) turn(ctx context.Context, w *work) (*Outcome, error) {
	up := u.copyOf(w)
	defer u.set(w, func(is *Update) { *is = *up })
	// What is done is written down before, so that a process that has fallen behind another one does nothing.
	save := func() error {
		u.set(w, func(is *Update) { *is = *up.clone() }) // whose turns go on being changed
		if err := u.save(ctx, w); err != nil {
			return clusterFailure("writing the update down", err)
		}
		return nil
	}
	outcome, err := u.due(ctx, w, up, save)
	if outcome != nil && up.Unblessed && up.stays(outcome) {
		if err := u.bless(ctx, up, save); err != nil {
			return nil, err
		}
	}
	return outcome, err
}

// bless has the machine of an update that stays be kept as before, unless it has gone by itself, or was never made evictable.
func (u *Updater) bless(ctx context.Context, up *Update, save func() error) error {
	if err := u.setEvictable(ctx, up, false, save); err != nil {
		pool, unread := u.o.Backend.Pool(ctx)
		mayGo := slices.ContainsFunc(pool.Machines, func(m api.Machine) bool {
			return m.ID == up.MachineID && !ended(&m, u.o.Backend) && m.Evictable()
		})
		if unread != nil || mayGo || !pool.Timestamp.After(up.Began) {
			return err
		}
	}
	up.Unblessed = false
	return nil
}

// stays reports an update that ends with its machine being kept.
func (up *Update) stays(o *Outcome) bool {
	t := up.turn(up.MachineID)
	return o.Result != Done && (t == nil || t.State == Refused)
}

func (u *Updater) due(ctx context.Context, w *work, up *Update, save func() error) (*Outcome, error) {
	outcome, err := u.follow(ctx, up, save)
	if err != nil || outcome != nil {
		return outcome, err
	}
	if up.Kind == SetSize {
		return u.shrink(ctx, w, up, save)
	}
	return u.remove(ctx, up, save)
}

// follow looks how far the machines are that are on their way out.
func (u *Updater) follow(ctx context.Context, up *Update, save func() error) (*Outcome, error) {
	for i := 0; i < len(up.Turns); i++ { // one may be dropped meanwhile
		t := &up.Turns[i]
		if t.State != Leaving {
			continue
		}
		var outcome *Outcome
		var err error
		if t.Retirement == "" {
			outcome, err = u.followMachine(ctx, up, t, save)
		} else {
			outcome, err = u.followRetirement(ctx, up, t, save)
		}
		if err != nil || outcome != nil {
			return outcome, err
		}
	}
	return nil, nil
}

// followMachine looks whether a machine without a node is gone. The termination of one that was written down and not taken
// is asked for.
func (u *Updater) followMachine(ctx context.Context, up *Update, t *Turn, save func() error) (*Outcome, error) {
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool", err)
	}
	there := u.there(&pool, t.Machine)
	switch {
	case there && t.Operation == nil:
		err = u.terminate(ctx, up, t, &pool, save)
	case there:
		return u.stillThere(ctx, up, t, save)
	case u.isGone(&pool, t):
		t.State = Gone
		if up.Kind == SetSize {
			up.RestoreTo = 0 // its termination has not failed after all
		}
	}
	return nil, err
}

// there reports that a pool has a machine that has not ended.
func (u *Updater) there(pool *api.Pool, machine string) bool {
	return slices.ContainsFunc(pool.Machines, func(m api.Machine) bool { return m.ID == machine && !ended(&m, u.o.Backend) })
}

// isGone reports that a machine is gone, by an observation that is newer than its turn, however far its server's clock is off.
func (u *Updater) isGone(pool *api.Pool, t *Turn) bool {
	return !u.there(pool, t.Machine) && (pool.Timestamp.After(t.Since) || time.Since(t.Since) > u.o.Pace.Trouble)
}

// stillThere looks at a termination that was taken and has not begun. One that has failed, or that takes too long, ends the
// update: the client is told, and may ask for another. The server has lowered its desired size, which is put back before.
func (u *Updater) stillThere(ctx context.Context, up *Update, t *Turn, save func() error) (*Outcome, error) {
	up.Message = fmt.Sprintf("machine %s: its termination was taken at %s, and has not begun", t.Machine, t.Since.Format(time.RFC3339))
	provider, _ := u.o.Backend.Provider()
	status, err := provider.Status(ctx, *t.Operation)
	why := ""
	switch {
	case err == nil && status.Done && status.Err != nil:
		why = status.Err.Error()
	case time.Since(t.Since) > u.o.Pace.Termination:
		why = fmt.Sprintf("it is there still %s after its termination was taken", u.o.Pace.Termination)
	case err != nil && !cloud.IsThrottled(err) && cloud.RefusalOf(err) == "": // a request that its cloud has not met cannot be followed
		return nil, backendFailure("asking for the termination of machine "+t.Machine, err)
	default:
		return nil, nil
	}
	why = fmt.Sprintf("failed to terminate machine %s: %s", t.Machine, why)
	if up.Kind != SetSize {
		t.State, t.Why = Refused, why
		return nil, nil
	}
	if err := u.putBack(ctx, up, overfull, save); err != nil {
		return nil, err
	}
	return &Outcome{Result: BackendAway, Removed: up.removed(), Detail: why}, nil
}

func (u *Updater) followRetirement(ctx context.Context, up *Update, t *Turn, save func() error) (*Outcome, error) {
	rt, err := u.o.Cluster.retirement(ctx, t.Retirement)
	if err != nil {
		return nil, clusterFailure("reading a NodeRetirement", err)
	}
	if rt == nil {
		if t.Seen || t.Adopted {
			return nil, u.forgotten(ctx, t)
		}
		return nil, nil // it was never made, and its turn is dropped
	}
	t.Seen, t.Phase = true, rt.Status.Phase
	up.lowers(t, rt)
	up.Message = fmt.Sprintf("%s: %s", t.Node, rt.Status.Message)
	switch rt.Status.Phase {
	case v1alpha1.Succeeded:
		t.State, t.Why = Gone, ""
	case v1alpha1.Refused, v1alpha1.Aborted, v1alpha1.Failed:
		t.State, t.Why = Refused, fmt.Sprintf("NodeRetirement %s was %s: %s", rt.Name, strings.ToLower(string(rt.Status.Phase)), rt.Status.Message)
	default:
		return u.heldUp(ctx, up, t, rt, save)
	}
	return nil, nil
}

// lowers notes that a machine's cloud was asked to take it away since the update began.
func (up *Update) lowers(t *Turn, rt *v1alpha1.NodeRetirement) {
	if asked := rt.Status.Operation; asked != nil && (!t.Adopted || asked.Started.After(up.Began)) {
		t.Lowered = true
	}
}

// forgotten looks what has become of a machine whose NodeRetirement is no longer there. It was called off, unless the machine is
// gone: the record of a retirement that has succeeded need not be kept.
func (u *Updater) forgotten(ctx context.Context, t *Turn) error {
	pool, err := u.o.Backend.Pool(ctx)
	switch {
	case err != nil:
		return backendFailure("reading the pool", err)
	case u.there(&pool, t.Machine):
		t.State, t.Why = Refused, "its NodeRetirement was deleted: somebody has called it off"
	case u.isGone(&pool, t):
		t.State, t.Why = Gone, ""
	}
	return nil
}

// codeNotBegun is the code of a retirement that waits for something that does not block it, such as a notice.
const codeNotBegun = "NotBegun"

// letsNotGo says what a retirement was called off for, by the code of what held it up.
func letsNotGo(code string) string {
	switch {
	case code == codeNotBegun:
		return "its retirement has not begun"
	case isOfCloud(code):
		return "its cloud does not let it go"
	}
	return "its NodeGroup does not let it go"
}

// noManager is the code of a retirement that no manager has looked at.
const noManager = "NoManager"

// unseen looks at a retirement that no manager has looked at: none runs, or its selector leaves the retirement out. It is
// called off, and the client is told.
func (u *Updater) unseen(ctx context.Context, up *Update, t *Turn, rt *v1alpha1.NodeRetirement) (*Outcome, error) {
	up.Message = fmt.Sprintf("%s: NodeRetirement %s waits for a manager to take it up", t.Node, rt.Name)
	if lasts(&t.trouble, noManager) <= u.o.Pace.Trouble {
		return nil, nil
	}
	t.State = Refused
	if t.Adopted {
		t.Why = fmt.Sprintf("NodeRetirement %s, which is not of this update, waits for a manager to take it up", rt.Name)
		return nil, nil
	}
	if err := u.o.Cluster.callOff(ctx, rt.Name); err != nil {
		return nil, clusterFailure("calling a retirement off", err)
	}
	t.Why = fmt.Sprintf("NodeRetirement %s with the labels %q was called off: within %s no manager has looked at it; want one that runs, and "+
		"whose --selector selects it", rt.Name, labels.FormatLabels(rt.Labels), u.o.Pace.Trouble)
	return &Outcome{Result: ClusterAway, Removed: up.removed(), Detail: t.Why}, nil
}

func isOfCloud(code string) bool {
	return code == retirement.CloudFailed || code == retirement.CloudRefused || code == retirement.CloudBusy || code == retirement.ReadFailed
}

// leaving counts the machines that are on their way out.
func (up *Update) leaving() int {
	n := 0
	for _, t := range up.Turns {
		if t.State == Leaving {
			n++
		}
	}
	return n
}

// planned are the machines that the update began with and that have had no turn.
func (up *Update) planned() map[string]bool {
	if up.Decision == nil {
		return nil
	}
	only := map[string]bool{}
	for _, v := range up.Decision.Victims {
		if up.turn(v.Machine) == nil {
			only[v.Machine] = true
		}
	}
	return only
}

// shrink brings the pool closer to a smaller size.
func (u *Updater) shrink(ctx context.Context, work *work, up *Update, save func() error) (*Outcome, error) {
	if err := up.dropUnmade(save); err != nil {
		return nil, err
	}
	if up.leaving() > 0 {
		work.unsettled = nil
	}
	if up.leaving() >= u.o.AtOnce || !u.cordoned(up) {
		return nil, nil
	}
	w, err := u.look(ctx)
	if err != nil {
		return nil, err
	}
	if adopted, err := u.adopt(up, w, save); adopted || err != nil {
		return nil, err
	}
	// First among those that were chosen together, then among all.
	d, err := u.decide(w, up, up.planned())
	if err == nil && d.Excess() > 0 && len(d.Victims) == 0 {
		d, err = u.decide(w, up, nil)
	}
	if err != nil {
		return nil, err
	}
	if d.Excess() > 0 {
		work.unsettled = nil
	}
	switch {
	case d.Excess() > 0 && len(d.Victims) > 0 && len(d.Unclear) == 0:
		work.stuck = time.Time{}
		return nil, u.let(ctx, up, w, d.Victims[0].Machine, save)
	case up.leaving() > 0:
		return nil, nil
	case d.Excess() > 0:
		return u.stuck(work, up, d), nil
	}
	return u.settle(ctx, work, up, w, save)
}

// stuck ends an update of which no machine can go. One that has taken some away gives their pods time to settle first.
func (u *Updater) stuck(work *work, up *Update, d *Decision) *Outcome {
	if work.stuck.IsZero() {
		work.stuck = time.Now()
	}
	up.Message = d.reasons()
	if up.removed() > 0 && time.Since(work.stuck) < u.o.Pace.Settle {
		return nil
	}
	return shortfall(up, d)
}

// cordoned reports that every node that is leaving takes no pods any more, so that no other one is judged by its room.
func (u *Updater) cordoned(up *Update) bool {
	for _, t := range up.Turns {
		if t.State == Leaving && t.Retirement != "" && (t.Phase == "" || t.Phase == v1alpha1.Pending) {
			return false
		}
	}
	return true
}

// shortfall is the outcome of an update that cannot go on.
func shortfall(up *Update, d *Decision) *Outcome {
	removed := up.removed()
	if removed == 0 {
		return &Outcome{Result: NotPossible, Detail: d.reasons()}
	}
	return &Outcome{
		Result: Partly, Removed: removed,
		Detail: fmt.Sprintf("removed %d machines, and %d are too many still: %s", removed, d.Excess(), d.reasons()),
	}
}

// dropUnmade drops the turns that were written down, and whose NodeRetirement was never made, as when the process ended in
// between. What they were judged by may have changed since: their machines are chosen anew, or not.
func (up *Update) dropUnmade(save func() error) error {
	made := slices.DeleteFunc(slices.Clone(up.Turns), func(t Turn) bool {
		return t.State == Leaving && t.Retirement != "" && !t.Seen && !t.Adopted
	})
	if len(made) == len(up.Turns) {
		return nil
	}
	up.Turns = made
	return save()
}

// let begins a machine's way out.
func (u *Updater) let(ctx context.Context, up *Update, w *world, machine string, save func() error) error {
	m := w.pairing.Find(machine)
	if m == nil {
		return nil // it has just gone
	}
	t := Turn{Machine: machine, State: Leaving, Since: time.Now().UTC()}
	if m.Node == nil {
		return u.letWithoutNode(ctx, up, t, save)
	}
	t.Node, t.NodeUID, t.ProviderID = m.Node.Name, string(m.Node.UID), m.ProviderID
	t.Retirement = retirementName(up.ID, t.Node)
	up.Turns = append(up.Turns, t)
	if err := save(); err != nil {
		return err
	}
	if err := u.create(ctx, up, &up.Turns[len(up.Turns)-1], w.group); err != nil {
		return err
	}
	return save() // that it was made: if it is deleted, somebody has called it off
}

// adopt has the update follow the retirements of others, and of earlier updates, that are under way.
func (u *Updater) adopt(up *Update, w *world, save func() error) (bool, error) {
	adopted := false
	for i := range w.pairing.Members {
		m := &w.pairing.Members[i]
		rt := w.retiring[m.Machine.ID]
		if rt == nil || up.turn(m.Machine.ID) != nil || up.MachineID != "" && up.MachineID != m.Machine.ID {
			continue
		}
		if pastReturn(rt) && ended(m.Machine, u.o.Backend) {
			continue // it does not count any more, and nothing of it is left in the cluster
		}
		up.Turns = append(up.Turns, Turn{
			Machine: m.Machine.ID, Node: rt.Spec.NodeName, NodeUID: string(rt.Spec.NodeUID), ProviderID: rt.Spec.ProviderID, Retirement: rt.Name,
			State: Leaving, Since: time.Now().UTC(), Adopted: true,
		})
		if up.Kind != SetSize && slices.Contains(up.Ahead, aheadOf(rt)) {
			up.Restored = true // by an update before, of the same machine
		}
		adopted = true
		u.log.Info("a machine leaves already", "update", up.ID, "machine", m.Machine.ID, "node", rt.Spec.NodeName, "retirement", rt.Name)
	}
	if !adopted {
		return false, nil
	}
	return true, save()
}

// retirementName is the same however often it is made.
func retirementName(update, node string) string {
	sum := fnv.New32a()
	sum.Write([]byte(node))
	name := strings.TrimRight(node[:min(len(node), 200)], ".-")
	return fmt.Sprintf("%s-%s-%08x", name, update, sum.Sum32())
}

func (u *Updater) create(ctx context.Context, up *Update, t *Turn, group string) error {
	rt := &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: t.Retirement, Labels: map[string]string{UpdateLabel: up.ID}},
		Spec: v1alpha1.NodeRetirementSpec{
			NodeName: t.Node, NodeUID: types.UID(t.NodeUID), ProviderID: t.ProviderID, Group: group,
			Reason: v1alpha1.Surplus, RequestedBy: requester(up.RequestedBy),
		},
	}
	if up.Kind != SetSize {
		rt.Spec.Reason = v1alpha1.Requested
	}
	maps.Copy(rt.Labels, u.o.Labels)
	if err := u.o.Cluster.retire(ctx, rt); err != nil {
		return clusterFailure("creating a NodeRetirement", err)
	}
	t.Seen = true
	u.log.Info("a machine begins to leave", "update", up.ID, "machine", t.Machine, "node", t.Node, "retirement", t.Retirement)
	return nil
}

func requester(who string) string {
	if who == "" {
		return "cloudpool"
	}
	return "cloudpool: " + who[:min(len(who), 200)]
}

// letWithoutNode begins the way out of a machine without a node, unless a node has come that is it.
func (u *Updater) letWithoutNode(ctx context.Context, up *Update, t Turn, save func() error) error {
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return backendFailure("reading the pool", err)
	}
	if has, err := u.hasNode(ctx, &pool, t.Machine); has || err != nil {
		return err // it is judged anew
	}
	up.Turns = append(up.Turns, t)
	if err := save(); err != nil {
		return err
	}
	return u.terminate(ctx, up, &up.Turns[len(up.Turns)-1], &pool, save)
}

// hasNode reports that a machine has a node, or may have, by the nodes as they are at this moment.
func (u *Updater) hasNode(ctx context.Context, pool *api.Pool, machine string) (bool, error) {
	nodes, err := u.o.Cluster.NodesNow(ctx)
	if err != nil {
		return false, clusterFailure("reading the nodes", err)
	}
	now := Pair(pool.Machines, nodes, u.o.Backend)
	is := now.Find(machine)
	return is == nil || is.Node != nil || is.Doubt != "" || len(now.Unclear) > 0, nil
}

// terminate has a machine without a node taken away, whose turn is written down. Where it has got a node meanwhile the turn
// is dropped, and the machine judged anew.
func (u *Updater) terminate(ctx context.Context, up *Update, t *Turn, pool *api.Pool, save func() error) error {
	has, err := u.hasNode(ctx, pool, t.Machine)
	if err != nil {
		return err
	}
	if has {
		up.Turns = slices.DeleteFunc(up.Turns, func(other Turn) bool { return other.Machine == t.Machine })
		return save()
	}
	m := pool.Machines[slices.IndexFunc(pool.Machines, func(m api.Machine) bool { return m.ID == t.Machine })]
	operation, err := u.o.Backend.Delete(ctx, &m)
	switch {
	case err == nil || cloud.IsNotFound(err):
		t.Operation, t.Lowered = &operation, err == nil && m.Active() // one that does not count lowers nothing
		u.log.Info("a machine without a node leaves", "update", up.ID, "machine", t.Machine, "state", m.State)
	case cloud.RefusalOf(err) != "":
		t.State, t.Why = Refused, err.Error()
	case cloud.IsThrottled(err) && time.Since(t.Since) < u.o.Pace.Termination: // such as until the pool was observed again
		up.Message = "waiting: " + err.Error()
		return nil
	default:
		return backendFailure("terminating machine "+t.Machine, err)
	}
	return save()
}

// settle sets the server's desired size to the one that was asked for, once no machine is there that it could take away
// for that: by an observation newer than the one that the update began with.
func (u *Updater) settle(ctx context.Context, work *work, up *Update, w *world, save func() error) (*Outcome, error) {
	done := &Outcome{Result: Done, Removed: up.removed()}
	if w.size.Desired == up.DesiredSize && (up.removed() > 0 || w.pool.Timestamp.After(up.Observed)) {
		return done, nil
	}
	active := activeIn(&w.pool)
	if w.size.Desired > up.DesiredSize && (active > up.DesiredSize || !w.pool.Timestamp.After(up.Observed)) {
		up.Message = "waiting for the pool to be observed again before its desired size is lowered"
		if lasts(&work.unsettled, "") <= u.o.Pace.Termination {
			return nil, nil
		}
		return &Outcome{
			Result: BackendAway, Removed: up.removed(),
			Detail: fmt.Sprintf("the pool has not been observed again within %s: its desired size is %d still, with %d active machines",
				u.o.Pace.Termination, w.size.Desired, active),
		}, nil
	}
	if err := save(); err != nil {
		return nil, err
	}
	if err := u.o.Backend.SetDesiredSize(ctx, up.DesiredSize); err != nil {
		return nil, backendFailure(fmt.Sprintf("setting the desired size to %d", up.DesiredSize), err)
	}
	size, err := u.o.Backend.Size(ctx)
	if err != nil {
		return nil, backendFailure("reading the pool's size", err)
	}
	if size.Desired != up.DesiredSize {
		return nil, failure(BackendAway, "the desired size was set to %d, and is %d", up.DesiredSize, size.Desired)
	}
	return done, nil
}

// judgeMachine says whether one machine can go.
func (u *Updater) judgeMachine(ctx context.Context, up *Update) error {
	w, err := u.look(ctx)
	if err != nil {
		return err
	}
	up.SizeBefore, up.Observed = w.size.Desired, w.pool.Timestamp
	m := w.pairing.Find(up.MachineID)
	switch {
	case m == nil:
		return failure(NotFound, "machine %s is not a member of the pool", up.MachineID)
	case m.Machine.State == api.Terminating:
		return errAlready
	case len(w.pairing.Unclear) > 0:
		return failure(NotPossible, "%s", (&Decision{Unclear: w.pairing.Unclear}).reasons())
	}
	if w.retiring[up.MachineID] != nil {
		return nil // it leaves already, and is followed
	}
	if refused, err := u.refusalOf(w, m, up); err != nil || refused != nil {
		if err == nil {
			err = failure(NotPossible, "%s", refused)
		}
		return err
	}
	return nil
}

// refusalOf judges one machine; nil means that it can go.
func (u *Updater) refusalOf(w *world, m *Member, up *Update) (*Passed, error) {
	q := question{registration: u.o.Pace.Registration, now: time.Now(), disposed: up.Kind == Dispose}
	rule, text := hold(m, &q)
	p := &Passed{Machine: m.Machine.ID, Rule: rule, Text: text}
	if m.Node != nil {
		p.Node = m.Node.Name
	}
	switch {
	case rule != "":
		return p, nil
	case m.Node == nil && m.Machine.State == api.Pending:
		p.Rule, p.Text = ruleRegistering, fmt.Sprintf("machine %s has no node: no kubernetes node says that it is it, and it may be about to register",
			m.Machine.ID)
		return p, nil
	case m.Node == nil:
		active := 0
		for i := range w.pairing.Members {
			if other := w.pairing.Members[i].Machine; other.Active() && w.retiring[other.ID] == nil {
				active++
			}
		}
		if minimum, held := below(w.rules.Groups, active-1); held && up.Decrement && m.Machine.Active() {
			p.Rule, p.Text = ruleMinimum, minimum
			return p, nil
		}
		return nil, nil
	}
	rules := w.rules
	if up.Kind == Dispose { // that its pool keeps it is undone before it goes
		rules.Lifted = map[string]string{m.Node.Name: protection.Membership}
	}
	answer, err := u.o.Cluster.evacuate(m.Node.Name, u.o.Policy, rules)
	if err != nil {
		return nil, err
	}
	if answer.Feasible() {
		return nil, nil
	}
	all := refusal(answer.Refusals[0])
	all.Machine, all.Node = p.Machine, p.Node
	for _, more := range answer.Refusals[1:] {
		all.Text += "; " + more.String()
	}
	return &all, nil
}

// remove takes one machine out.
func (u *Updater) remove(ctx context.Context, up *Update, save func() error) (*Outcome, error) {
	if err := up.dropUnmade(save); err != nil {
		return nil, err
	}
	if t := up.turn(up.MachineID); t != nil {
		return u.afterTurn(ctx, up, t, save)
	}
	if up.Unblessed && up.Told != nil { // its client does not count on it any more, and nothing was begun
		return &Outcome{Result: up.Told.Result, Detail: up.Told.Detail}, nil
	}
	w, err := u.look(ctx)
	if err != nil {
		return nil, err
	}
	m := w.pairing.Find(up.MachineID)
	if m == nil || ended(m.Machine, u.o.Backend) {
		return &Outcome{Result: Done, Detail: "the machine has gone by itself"}, nil
	}
	if adopted, err := u.adopt(up, w, save); adopted || err != nil {
		return nil, err
	}
	refused, err := u.refusalOf(w, m, up)
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return &Outcome{Result: NotPossible, Detail: refused.String()}, nil
	}
	if up.Kind == Dispose && !m.Machine.Evictable() {
		if !m.Machine.Active() {
			return &Outcome{Result: NotPossible, Detail: "machine " + up.MachineID + " is neither active nor evictable: make it active first"}, nil
		}
		up.Unblessed = true
		if err := u.setEvictable(ctx, up, true, save); err != nil {
			return nil, err
		}
	}
	return nil, u.let(ctx, up, w, up.MachineID, save)
}

// afterTurn is how the turn of an update's machine has ended; no outcome is one that has not. One that stays although its cloud
// was asked to take it away has its size put back.
func (u *Updater) afterTurn(ctx context.Context, up *Update, t *Turn, save func() error) (*Outcome, error) {
	switch {
	case t.State == Refused && t.Lowered:
		if up.isAhead(t) { // as it is to be for a machine that goes
			up.RestoreTo = 0
		}
		lowered := func(size *api.Size) bool { return overfull(size) || !up.Decrement && size.Desired < up.SizeBefore }
		if err := u.putBack(ctx, up, lowered, save); err != nil {
			return nil, err
		}
		return &Outcome{Result: BackendAway, Detail: t.Why}, nil
	case t.State == Refused:
		return &Outcome{Result: NotPossible, Detail: t.Why}, nil
	case t.State == Gone:
		return u.restore(ctx, up, save)
	}
	return nil, nil
}

// setEvictable says whether the machine of an update, which counts, may be taken away.
func (u *Updater) setEvictable(ctx context.Context, up *Update, evictable bool, save func() error) error {
	if err := save(); err != nil {
		return err
	}
	status := api.MembershipStatus{Active: true, Evictable: evictable}
	if err := u.o.Backend.SetMembershipStatus(ctx, api.SetMembershipStatus{MachineID: up.MachineID, MembershipStatus: status}); err != nil {
		return backendFailure(fmt.Sprintf("setting the membership of machine %s to %+v", up.MachineID, status), err)
	}
	return nil
}

// restore has the machine replaced that was terminated without wanting fewer: the retirement has lowered the desired size.
func (u *Updater) restore(ctx context.Context, up *Update, save func() error) (*Outcome, error) {
	t := up.turn(up.MachineID)
	if up.isAhead(t) { // whether it was, and has been lowered since, is not known after a crash: the size itself tells
		up.RestoreTo, t.Lowered = 0, false
	}
	lowered := func(size *api.Size) bool { return t.Lowered || size.Desired < up.SizeBefore }
	if !up.Decrement {
		if err := u.putBack(ctx, up, lowered, save); err != nil {
			return nil, err
		}
	}
	return &Outcome{Result: Done, Removed: 1}, nil
}

// overfull reports a pool that is meant to have fewer machines than are active. Its server takes some of its own choice away.
func overfull(size *api.Size) bool { return size.Active > size.Desired }

// putBack raises the desired size by one, once, if it is found to be due. Others may change it before and after: to which size
// is written down first.
func (u *Updater) putBack(ctx context.Context, up *Update, due func(*api.Size) bool, save func() error) error {
	if up.Restored {
		return nil
	}
	size, err := u.o.Backend.Size(ctx)
	if err != nil {
		return backendFailure("reading the pool's size", err)
	}
	if up.RestoreTo == 0 && due(&size) {
		up.RestoreTo = size.Desired + 1
	}
	if size.Desired < up.RestoreTo {
		up.RestoreTo = size.Desired + 1 // others may have lowered it while it could not be raised
		if err := save(); err != nil {
			return err
		}
		if err := u.o.Backend.SetDesiredSize(ctx, up.RestoreTo); err != nil {
			return backendFailure(fmt.Sprintf("setting the desired size back to %d", up.RestoreTo), err)
		}
	}
	up.Restored = true
	return nil
}
