package cloudpool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/slots"
)

// Pace says how often is looked at what does not announce itself, and how long is waited for it.
type Pace struct {
	// Poll is the time between two looks at an update: 2 s. What happens to NodeRetirements is heard of at once.
	Poll time.Duration
	// Resume is the time between two looks for an update that another process has left: 15 s.
	Resume time.Duration
	// Take is how long a request waits for the right to update the pool: 8 s.
	Take time.Duration
	// Trouble is how long the backend, its cloud or the API server may fail during an update before the client is told.
	// What was begun goes on: 1 minute.
	Trouble time.Duration
	// Settle is how long an update that has taken machines away waits until others can go: their pods may be on the way to
	// their new places: 1 minute.
	Settle time.Duration
	// Admission is how long a retirement may take to begin, as for a budget of its NodeGroup, before another machine is tried: 5 minutes.
	Admission time.Duration
	// Termination is how long the termination of a machine without a node may take to begin, and how long a retirement that has
	// begun may stand still, a drain beyond the time that it has, before the update is given up: 10 minutes.
	Termination time.Duration
	// Registration is how long a machine that runs may take to register its node: 15 minutes.
	Registration time.Duration
}

func (p Pace) complete() Pace {
	for d, fallback := range map[*time.Duration]time.Duration{
		&p.Poll: 2 * time.Second, &p.Resume: 15 * time.Second, &p.Take: 8 * time.Second, &p.Trouble: time.Minute, &p.Settle: time.Minute,
		&p.Admission: 5 * time.Minute, &p.Termination: 10 * time.Minute, &p.Registration: 15 * time.Minute,
	} {
		if *d <= 0 {
			*d = fallback
		}
	}
	return p
}

// UpdaterOptions are what an Updater works with.
type UpdaterOptions struct {
	Pool    string
	Backend Backend
	Cluster *Cluster
	// Slots is who keeps the Leases; Namespace is where they and the record are, Holder who works on a pool.
	Slots             slots.API
	Namespace, Holder string
	// Policy is which nodes go first.
	Policy placement.Policy
	// AtOnce is how many machines may be on their way out at once, at least 1.
	AtOnce int
	// Labels are put on every NodeRetirement.
	Labels  map[string]string
	Pace    Pace
	Metrics *Metrics
	Log     *slog.Logger
}

// Updater carries out the updates of one pool, one at a time among all processes. Run has to be running.
type Updater struct {
	o     UpdaterOptions
	store *store
	slot  *slots.Keeper
	log   *slog.Logger

	// submitting has room for one: it lets one request at a time be accepted.
	submitting chan struct{}
	// raised is what the desired size was raised for, as it was last known, and unwritten what of it could not be written down
	// yet; guarded by submitting.
	raised    raised
	unwritten raised

	mu      sync.Mutex
	current *work
	changed chan struct{} // closed and replaced when the slot may have changed hands
	idle    chan struct{} // the slot may have changed hands while nothing is under way
	ctx     context.Context
	works   sync.WaitGroup
}

// work is an update that this process carries out.
type work struct {
	record *record
	update *Update // record.Current; guarded by Updater.mu
	wake   chan struct{}
	over   chan struct{} // closed when update.Outcome is there
	told   chan struct{} // closed when update.Told is; replaced, guarded by Updater.mu, when that was not written down
	left   bool          // told is closed
	// behind says that another process may have written to the record since this one has read it; guarded by Updater.mu.
	behind bool
	// troubled is since when nothing but errors was met, and stuck since when no machine could go.
	troubled, stuck time.Time
	unsettled       *trouble // since when the desired size cannot be lowered
}

// NewUpdater makes an updater.
func NewUpdater(o UpdaterOptions) (*Updater, error) {
	o.Pace = o.Pace.complete()
	o.AtOnce = max(1, o.AtOnce)
	o.Policy = cmp.Or(o.Policy, placement.LeastDisruption)
	u := &Updater{
		o: o, log: o.Log.With("pool", o.Pool), changed: make(chan struct{}), idle: make(chan struct{}, 1), raised: raised{}, submitting: make(chan struct{}, 1),
		store: &store{
			client: o.Cluster.Client.CoreV1().ConfigMaps(o.Namespace), namespace: o.Namespace, name: recordName(o.Pool),
		},
	}
	var err error
	u.slot, err = slots.New(slots.Options{
		API: o.Slots, Namespace: o.Namespace, Holder: o.Holder, Limit: 1, Purpose: slotPurpose(o.Pool), Log: u.log,
	})
	return u, err
}

// slotPurpose names a pool's Lease.
func slotPurpose(pool string) string {
	return recordName(pool)[len("slipway-"):]
}

// Run works until ctx ends, and goes on with what another process has left. What is under way then is written down, and
// goes on in the next one.
func (u *Updater) Run(ctx context.Context) {
	u.mu.Lock()
	u.ctx = ctx
	u.mu.Unlock()
	defer u.works.Wait()
	u.works.Go(func() { u.slot.Run(ctx, u.tell) })
	for {
		u.resume(ctx)
		select {
		case <-ctx.Done():
			return
		case <-u.idle:
		case <-time.After(u.o.Pace.Resume):
		}
	}
}

// tell wakes who waits for the slot. It is called whenever the slot is lost, however soon it is had again.
func (u *Updater) tell() {
	held := u.slot.Held()
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.changed)
	u.changed = make(chan struct{})
	if u.current != nil {
		u.current.behind = u.current.behind || !held
		u.current.nudge()
		return
	}
	select {
	case u.idle <- struct{}{}:
	default:
	}
}

func (w *work) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Nudge has the update that is under way look again.
func (u *Updater) Nudge() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.current != nil {
		u.current.nudge()
	}
}

// resume takes up an update that is written down, and that nobody works on. It wants the slot for as long as there is
// one: so it is known for how long its holder has been silent.
func (u *Updater) resume(ctx context.Context) {
	if u.enter(ctx) != nil {
		return
	}
	defer u.leave()
	if u.underWay() != nil {
		return
	}
	held := u.slot.Held() // before the record is read, which nobody else writes from then on
	r, err := u.store.load(ctx)
	if err != nil {
		if ctx.Err() == nil {
			u.log.Warn("cannot see whether an update was left", "err", err)
		}
		return
	}
	left := r.Current != nil && r.Current.Outcome == nil
	u.slot.Want(left, time.Time{})
	if left && held && u.slot.Held() {
		u.log.Info("going on with an update", "update", r.Current.ID)
		u.begin(r)
	}
}

// enter waits until no other request of this process is being accepted; leave lets the next one in.
func (u *Updater) enter(ctx context.Context) error {
	select {
	case u.submitting <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (u *Updater) leave() { <-u.submitting }

func (u *Updater) underWay() *work {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.current
}

// takeEvery is the time between two looks at what another process that has the slot is about.
const takeEvery = 500 * time.Millisecond

// take waits for the right to update the pool. A *BusyError says that another process has it, for an update.
func (u *Updater) take(ctx context.Context) error {
	deadline := time.Now().Add(u.o.Pace.Take)
	u.slot.Want(true, deadline)
	for {
		u.mu.Lock()
		changed := u.changed
		u.mu.Unlock()
		if u.slot.Held() {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(takeEvery):
		}
		by, err := u.Busy(ctx)
		holders := strings.Join(u.slot.Holders(), ", ")
		switch {
		case err != nil:
			return err
		case by != nil && holders != "":
			return &BusyError{By: by, Holder: holders}
		case time.Now().After(deadline) && holders != "":
			return &BusyError{Holder: holders}
		case time.Now().After(deadline):
			return clusterFailure("taking the pool's Lease", errors.New("it could not be had within "+u.o.Pace.Take.String()))
		}
	}
}

// Ticket is an update that was accepted.
type Ticket struct {
	// Update is a copy, as it was when it was accepted, or as it is.
	Update *Update
	u      *Updater
	work   *work // nil when another process works on it
}

// Wait returns the update when it is over, or ctx's error. The update goes on without anybody waiting. One that has troubles
// and must not be given up is returned with them for its outcome.
func (t *Ticket) Wait(ctx context.Context) (*Update, error) {
	if is, ok := t.Update.answered(); ok {
		return is, nil
	}
	for t.work != nil {
		t.u.mu.Lock()
		is, ok := t.work.update.answered()
		told := t.work.told
		t.u.mu.Unlock()
		if ok {
			return is, nil
		}
		select {
		case <-t.work.over:
		case <-told:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	var blind *trouble // since when it cannot be seen
	for {
		select {
		case <-time.After(t.u.o.Pace.Poll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		found, err := t.u.Find(ctx, t.Update.ID)
		switch {
		case err != nil && lasts(&blind, "") < t.u.o.Pace.Trouble:
			continue
		case err != nil:
			found = t.Update.clone()
			found.Outcome = unseenFor(found, err)
		case found == nil:
			found = t.Update.lost()
		}
		if is, ok := found.answered(); ok {
			return is, nil
		}
		blind = nil
	}
}

// unseenFor is what clients are told of an update of which it could not be seen for long what becomes of it.
func unseenFor(up *Update, err error) *Outcome {
	return &Outcome{
		Result: ClusterAway, Removed: up.removed(), At: time.Now().UTC(),
		Detail: err.Error() + "; the update goes on as soon as that can be read",
	}
}

// lost is an update that is in no record any more: it is not known how it ended.
func (up *Update) lost() *Update {
	c := up.clone()
	c.Outcome = &Outcome{
		Result: Failed, Removed: c.removed(), At: time.Now().UTC(),
		Detail: "another process has gone on with the update, and nothing is written down of it any more",
	}
	return c
}

// written reads the record as it is now, beside the store, which remembers what the work at hand has read last.
func (u *Updater) written(ctx context.Context) (*record, error) {
	r, err := (&store{client: u.store.client, namespace: u.store.namespace, name: u.store.name}).load(ctx)
	if err != nil {
		return nil, clusterFailure("reading the record of updates", err)
	}
	return r, nil
}

// Find gives an update by its ID, as it is; nil when it is not remembered.
func (u *Updater) Find(ctx context.Context, id string) (*Update, error) {
	u.mu.Lock()
	if u.current != nil && u.current.update.ID == id {
		defer u.mu.Unlock()
		return u.current.update.clone(), nil
	}
	u.mu.Unlock()
	r, err := u.written(ctx)
	if err != nil {
		return nil, err
	}
	return r.find(id), nil
}

// Past gives the latest update that had a machine leave which is gone, and the desired size be what another update wants it to be
// then; nil when none is remembered. One that ended before the machine was gone, because its cloud did not delete it for long,
// has come to its end since.
func (u *Updater) Past(ctx context.Context, want *Update) (*Update, error) {
	r, err := u.written(ctx)
	if err != nil {
		return nil, err
	}
	for _, up := range append([]*Update{r.Current}, pointers(r.Past)...) {
		switch {
		case up == nil || up.MachineID != want.MachineID || up.Decrement != want.Decrement || up.Outcome == nil:
		case up.Outcome.Result == Done:
			return up, nil
		case up.leftBehind():
			since := up.clone()
			since.Outcome = &Outcome{Result: Done, Removed: 1, At: up.Outcome.At}
			return since, nil
		}
	}
	return nil, nil
}

// leftBehind reports an update that ended while its machine was still on its way out, which nothing is owed for.
func (up *Update) leftBehind() bool {
	t := up.turn(up.MachineID)
	return (up.Decrement || up.Restored) && t != nil && t.State == Leaving
}

func pointers(all []Update) []*Update {
	out := make([]*Update, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// Busy reports the update that is under way, in whichever process; nil when there is none.
func (u *Updater) Busy(ctx context.Context) (*Update, error) {
	u.mu.Lock()
	if u.current != nil {
		defer u.mu.Unlock()
		return u.current.update.clone(), nil
	}
	u.mu.Unlock()
	r, err := u.written(ctx)
	if err != nil {
		return nil, err
	}
	if r.Current == nil || r.Current.Outcome != nil {
		return nil, nil
	}
	return r.Current, nil
}

// Submit has an update carried out. One that asks for what is under way is told of that; any other then is a *BusyError.
// judge has the first word: it may find that there is nothing to do, or that nothing can be done.
func (u *Updater) Submit(ctx context.Context, update Update, judge func(context.Context, *Update) error) (*Ticket, error) {
	if err := u.enter(ctx); err != nil {
		return nil, err
	}
	defer u.leave()
	update.Pool = u.o.Pool
	if w := u.underWay(); w != nil {
		if ticket, err := u.join(w, &update); err == nil || !u.outlives(ctx, w) {
			return ticket, err
		}
	}
	if err := u.take(ctx); err != nil {
		return u.elsewhere(&update, err)
	}
	begun := false
	defer func() {
		if !begun {
			u.slot.Want(false, time.Time{})
		}
	}()
	r, err := u.store.load(ctx)
	if err != nil {
		return nil, clusterFailure("reading the record of updates", err)
	}
	if r.Current != nil && r.Current.Outcome == nil { // left by another process
		begun = true
		return u.join(u.begin(r), &update)
	}
	update.Began = time.Now().UTC()
	if err := judge(ctx, &update); err != nil {
		return nil, err
	}
	if update.Ahead, err = u.stillAhead(ctx, r.Current); err != nil {
		return nil, err
	}
	if err := update.fits(); err != nil {
		return nil, err
	}
	if update.ID, err = newID(); err != nil {
		return nil, err
	}
	r.begin(&update)
	if err := u.store.save(ctx, r); err != nil {
		return nil, clusterFailure("writing the update down", err)
	}
	begun = true
	u.log.Info("an update begins", "update", update.ID, "kind", update.Kind, "desiredSize", update.DesiredSize,
		"machine", update.MachineID, "requestedBy", update.RequestedBy, "decision", update.Decision)
	return u.join(u.begin(r), &update)
}

// Exclusively does something to the pool while nobody updates it: no other request of this process, and by the Lease no other
// process. An update that is under way, or was left, is a *BusyError. While the API server is away no update is begun or goes
// on anywhere, and no more than this process is kept out.
func (u *Updater) Exclusively(ctx context.Context, do func(context.Context) error) error {
	if err := u.enter(ctx); err != nil {
		return err
	}
	defer u.leave()
	if w := u.underWay(); w != nil && !u.outlives(ctx, w) {
		return &BusyError{By: u.copyOf(w)}
	}
	begun := false
	defer func() {
		if !begun {
			u.slot.Want(false, time.Time{})
		}
	}()
	err := u.take(ctx)
	if err == nil {
		r, err := u.store.load(ctx)
		switch {
		case err != nil:
			return clusterFailure("reading the record of updates", err)
		case r.Current != nil && r.Current.Outcome == nil: // left by another process
			begun = true
			left := r.Current.clone()
			u.begin(r)
			return &BusyError{By: left}
		}
	}
	if err != nil {
		if _, unread := u.written(ctx); unread == nil || resultOf(err) == Failed || ctx.Err() != nil {
			return err
		}
		u.log.Warn("the pool is changed while it cannot be seen whether it is being updated", "err", err)
	}
	return do(ctx)
}

func newID() (string, error) {
	raw := make([]byte, 8)
	_, err := rand.Read(raw)
	return hex.EncodeToString(raw), err
}

// join gives a ticket for the update that is under way, if it is what is asked for.
func (u *Updater) join(w *work, want *Update) (*Ticket, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	is := w.update.clone()
	if !is.same(want) {
		return nil, &BusyError{By: is}
	}
	return &Ticket{is, u, w}, nil
}

// outlives reports that an update is over by what is written down, and waits until this process knows that too: who has read
// it there asks for the next one before the answer has come to whoever wrote it.
func (u *Updater) outlives(ctx context.Context, w *work) bool {
	r, err := u.written(ctx)
	if err != nil {
		return false
	}
	if found := r.find(u.copyOf(w).ID); found == nil || found.Outcome == nil {
		return false
	}
	u.Nudge()
	select {
	case <-w.over:
		return true
	case <-ctx.Done():
	case <-u.ctx.Done():
	}
	return false
}

// copyOf is a work's update as it is now.
func (u *Updater) copyOf(w *work) *Update {
	u.mu.Lock()
	defer u.mu.Unlock()
	return w.update.clone()
}

// elsewhere deals with a pool that another process works on.
func (u *Updater) elsewhere(want *Update, err error) (*Ticket, error) {
	var busy *BusyError
	if errors.As(err, &busy) && busy.By != nil && busy.By.same(want) {
		return &Ticket{busy.By, u, nil}, nil
	}
	return nil, err
}

// begin works on the update that is written down as the current one. The slot is ours.
func (u *Updater) begin(r *record) *work {
	w := &work{record: r, update: r.Current, wake: make(chan struct{}, 1), over: make(chan struct{}), told: make(chan struct{})}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.current = w
	u.works.Go(func() { u.work(u.ctx, w) })
	return w
}

// work takes one turn after another until the update is over.
func (u *Updater) work(ctx context.Context, w *work) {
	for !u.step(ctx, w) {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-time.After(u.o.Pace.Poll):
		}
	}
}

// step does what is due, and reports that the update is over.
func (u *Updater) step(ctx context.Context, w *work) bool {
	held := u.slot.Held() // before the record is read, which nobody else writes from then on
	if !held {
		u.slot.Want(true, time.Time{}) // as it is already, but for one that was given back in between
	}
	if !held || u.isBehind(w) {
		over, err := u.catchUp(ctx, w, held)
		if err != nil && ctx.Err() == nil {
			u.cutOff(w, err)
		}
		if over || !held || err != nil {
			return over
		}
	}
	outcome, err := u.turn(ctx, w)
	if err != nil && ctx.Err() == nil {
		outcome = u.trouble(w, err)
	} else {
		w.troubled = time.Time{}
	}
	switch {
	case outcome == nil:
		return false
	case outcome.Result != Done && !isFinal(err) && w.update.owes():
		u.leaveWaiting(ctx, w, outcome)
		return false
	}
	return u.finish(ctx, w, outcome)
}

// leaveWaiting answers who waits for an update that has troubles, and that is not over before what it owes is done: ended now,
// it would leave the pool one machine short, or a machine without its protection, for good.
func (u *Updater) leaveWaiting(ctx context.Context, w *work, outcome *Outcome) {
	if w.left {
		return
	}
	w.left = true
	outcome.At = time.Now().UTC()
	outcome.Detail += "; the update goes on until " + w.update.debt()
	u.set(w, func(up *Update) { up.Told = outcome })
	if err := u.save(ctx, w); err != nil { // it is written down with what comes next
		u.log.Warn("cannot write down that an update's clients were answered", "update", w.update.ID, "err", err)
	}
	u.log.Warn("an update has troubles, and goes on without its clients", "update", w.update.ID, "result", outcome.Result, "detail", outcome.Detail)
	close(w.told)
}

// cutOff answers who waits for an update of which this process has not been able to see for long what becomes of it. It goes on,
// here or in another process, and who asks again is told how.
func (u *Updater) cutOff(w *work, err error) {
	if w.troubled.IsZero() {
		w.troubled = time.Now()
	}
	if w.left || time.Since(w.troubled) < u.o.Pace.Trouble {
		return
	}
	w.left = true
	u.set(w, func(up *Update) { up.Told = unseenFor(up, clusterFailure("reading the record of updates", err)) })
	close(w.told)
}

func (u *Updater) isBehind(w *work) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return w.behind
}

// catchUp reads the record again, and goes on from there: while the slot is another's, that one works on the update, and
// may end it. It reports that the update is over.
func (u *Updater) catchUp(ctx context.Context, w *work, held bool) (over bool, err error) {
	u.mu.Lock()
	w.behind = true
	u.mu.Unlock()
	r, err := u.store.load(ctx)
	if err != nil {
		if ctx.Err() == nil {
			u.log.Warn("cannot see what has become of an update", "update", w.update.ID, "err", err)
		}
		return false, err
	}
	found := r.find(w.update.ID)
	if found == nil {
		found = w.update.lost()
	}
	if found.Outcome != nil {
		u.log.Info("another process has ended an update", "update", found.ID, "result", found.Outcome.Result)
		u.end(w, found)
		return true, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	w.record, *w.update, w.behind = r, *found, !held
	if !held {
		w.troubled = time.Time{} // whoever has the slot works on it
	}
	switch {
	case found.Told != nil && !w.left: // by another process
		w.left = true
		close(w.told)
	case found.Told == nil && w.left:
		w.left, w.told = false, make(chan struct{})
	}
	return false, nil
}

// trouble notes that a turn failed. When nothing else has happened for too long the update is given up; what was begun
// goes on, since the retirements are not this process's.
func (u *Updater) trouble(w *work, err error) *Outcome {
	u.log.Warn("an update meets an error, and tries again", "update", w.update.ID, "err", err)
	if w.troubled.IsZero() {
		w.troubled = time.Now()
	}
	u.set(w, func(up *Update) { up.Message = err.Error() })
	if time.Since(w.troubled) < u.o.Pace.Trouble {
		return nil
	}
	return &Outcome{Result: resultOf(err), Detail: err.Error(), Removed: w.update.removed()}
}

// set changes the update.
func (u *Updater) set(w *work, change func(*Update)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(w.update)
}

// save writes the update down. That fails when another process has written since the record was read; what this one knows
// of the update is then not to be acted upon any more.
func (u *Updater) save(ctx context.Context, w *work) error {
	return u.write(ctx, w, u.copyOf(w))
}

func (u *Updater) write(ctx context.Context, w *work, now *Update) error {
	err := u.store.save(ctx, &record{Current: now, Past: w.record.Past, Raised: w.record.Raised})
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		u.mu.Lock()
		defer u.mu.Unlock()
		w.behind = true
	}
	return err
}

// finish writes down that the update is over, which nobody is told before. It reports false when that failed, and is to be
// tried again.
func (u *Updater) finish(ctx context.Context, w *work, outcome *Outcome) bool {
	outcome.At = time.Now().UTC()
	over := u.copyOf(w)
	over.Outcome, over.Message = outcome, ""
	if err := u.write(ctx, w, over); err != nil {
		u.log.Warn("cannot write down that an update is over", "update", over.ID, "err", err)
		return false
	}
	u.log.Info("an update is over", "update", over.ID, "result", outcome.Result, "removed", outcome.Removed, "detail", outcome.Detail)
	u.o.Metrics.finished(over)
	u.end(w, over)
	return true
}

// end has those who wait told how the update ended, and leaves the pool to others.
func (u *Updater) end(w *work, over *Update) {
	u.mu.Lock()
	u.slot.Want(false, time.Time{}) // before the next one can want it, which would have it taken away
	*w.update, u.current = *over, nil
	u.mu.Unlock()
	close(w.over)
}
