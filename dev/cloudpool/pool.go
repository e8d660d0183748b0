package cloudpool

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// State is how far a machine's life has come.
type State string

// The states of a machine.
const (
	Requested   State = "REQUESTED"
	Rejected    State = "REJECTED"
	Pending     State = "PENDING"
	Running     State = "RUNNING"
	Terminating State = "TERMINATING"
	Terminated  State = "TERMINATED"
)

// Allocated reports a state in which a machine counts to its pool.
func (s State) Allocated() bool { return s == Requested || s == Pending || s == Running }

// Membership is what a machine's pool may do with it.
type Membership struct {
	Active    bool `json:"active"`
	Evictable bool `json:"evictable"`
}

// Machine is one machine of a pool.
type Machine struct {
	ID           string         `json:"id"`
	State        State          `json:"machineState"`
	Membership   Membership     `json:"membershipStatus"`
	ServiceState string         `json:"serviceState"`
	Provider     string         `json:"cloudProvider"`
	Region       string         `json:"region"`
	Size         string         `json:"machineSize"`
	RequestTime  *time.Time     `json:"requestTime,omitempty"`
	LaunchTime   *time.Time     `json:"launchTime,omitempty"`
	PublicIPs    []string       `json:"publicIps"`
	PrivateIPs   []string       `json:"privateIps"`
	Metadata     map[string]any `json:"metadata,omitempty"`

	// Serial is the machine's number in its pool, from 0 on; the API does not show it.
	Serial int `json:"-"`
	// NodeName and ProviderID are those that the machine's Node has; the API does not show them as such.
	NodeName   string `json:"-"`
	ProviderID string `json:"-"`

	doomed bool // its termination was taken, and has no effect yet
}

func (m *Machine) active() bool { return m.State.Allocated() && m.Membership.Active }

// Nodes are the Nodes that machines are. Both are called while no lock is held, and may take their time.
type Nodes interface {
	// Join adds the Node of a machine that has come to run.
	Join(ctx context.Context, m Machine) error
	// Leave takes the power from a machine that ends. Its Node may be gone already.
	Leave(ctx context.Context, m Machine) error
}

// Policy says which machines a pool takes to shrink.
type Policy string

// The policies of the reference server.
const (
	Newest Policy = "NEWEST"
	Oldest Policy = "OLDEST"
)

// Options configure a Pool. The zero value is a pool of OpenStack servers that answers at once and forgets at once.
type Options struct {
	// Name is part of the machines' names; empty is "pool".
	Name string
	// Refresh is how old what is read may be; 0 is always fresh.
	Refresh time.Duration
	// Lag is how long a call takes to have any effect, after it was answered.
	Lag time.Duration
	// Launch is how long a machine stays REQUESTED, and then PENDING; Terminate is how long it stays TERMINATING.
	Launch, Terminate time.Duration
	// Register is how long after it runs a machine's Node joins.
	Register time.Duration
	// Linger is how long a TERMINATED machine is listed.
	Linger time.Duration
	// Resize is the time between two turns of the pool's loop; 0 is only when something has changed.
	Resize time.Duration
	// Policy is empty for Newest.
	Policy Policy
	// Kind is what the machines are; empty is OpenStack.
	Kind Kind
	// Region of the machines; empty is RegionOne.
	Region string
	// Quota is how many machines may be allocated; those beyond are REJECTED. 0 is no limit.
	Quota int
	// NoMetadata leaves the cloud's own description of a machine out.
	NoMetadata bool
	// Nodes are the Nodes that the machines are; nil when there are none.
	Nodes Nodes
	// User and Password, or Token, are asked for when they are set.
	User, Password, Token string
	// Unrecorded requests are forgotten, of which there may be very many.
	Unrecorded bool
	// Log is discarded when nil.
	Log *slog.Logger
}

// Pool is one pool. Its methods may be called from several goroutines. Close ends it.
type Pool struct {
	o   Options
	log *slog.Logger
	// resize wakes the loop.
	resize chan struct{}
	number uint32          // among the pools of this process
	ctx    context.Context // ends at Close
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	machines []*Machine
	outside  []*Machine // those that run and were detached
	serial   int
	desired  int
	started  bool
	config   []byte
	cache    *observation
	stale    *armed // reads are as old as it says
	faults   []*armed
	requests []Request
	changed  chan struct{}
}

// observation is what a read of the cloud found.
type observation struct {
	at       time.Time
	machines []Machine
}

// New gives a started pool without machines.
func New(o Options) *Pool {
	o.Name = cmp.Or(o.Name, "pool")
	o.Region = cmp.Or(o.Region, "RegionOne")
	o.Policy = cmp.Or(o.Policy, Newest)
	if o.Kind == "" {
		o.Kind = OpenStack
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{
		o: o, log: o.Log, resize: make(chan struct{}, 1), ctx: ctx, stop: stop, started: true,
		config: []byte(`{"name":"` + o.Name + `"}`), changed: make(chan struct{}), number: pools.Add(1),
	}
	p.work.Go(p.loop)
	return p
}

// Close ends what is under way, and waits for it.
func (p *Pool) Close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.work.Wait()
}

// goLocked runs something until the pool is closed.
func (p *Pool) goLocked(work func(context.Context)) {
	if p.ctx.Err() == nil {
		p.work.Go(func() { work(p.ctx) })
	}
}

// rest waits, and reports whether the time has passed rather than the pool been closed.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Add adds n machines that run, with the Nodes that they are, and raises the desired size by as many.
func (p *Pool) Add(ctx context.Context, n int) ([]Machine, error) {
	p.mu.Lock()
	added := make([]Machine, n)
	for i := range n {
		m := p.makeLocked()
		p.startLocked(m)
		added[i] = *m
	}
	p.desired += n
	p.announceLocked()
	p.mu.Unlock()
	if p.o.Nodes == nil {
		return added, nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(joinsAtOnce)
	for _, m := range added {
		group.Go(func() error {
			if err := p.o.Nodes.Join(ctx, m); err != nil {
				return fmt.Errorf("node of machine %s: %w", m.ID, err)
			}
			return nil
		})
	}
	return added, group.Wait()
}

// joinsAtOnce is how many Nodes of a batch join at the same time.
const joinsAtOnce = 16

// Place adds a machine in a state of the caller's choice, without a Node, and raises the desired size if it counts.
func (p *Pool) Place(s State, change func(*Machine)) Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.makeLocked()
	if s != Requested && s != Rejected {
		p.startLocked(m)
	}
	m.State = s
	if change != nil {
		change(m)
	}
	if m.active() {
		p.desired++
	}
	p.cache = nil
	p.announceLocked()
	return *m
}

// makeLocked makes a machine that is requested.
func (p *Pool) makeLocked() *Machine {
	now := time.Now().UTC()
	m := &Machine{
		State: Requested, Membership: Membership{true, true}, ServiceState: "UNKNOWN", Provider: string(p.o.Kind),
		Region: p.o.Region, RequestTime: &now, PublicIPs: []string{}, PrivateIPs: []string{}, Serial: p.serial,
		NodeName: fmt.Sprintf("%s-%d", p.o.Name, p.serial),
	}
	p.serial++
	p.identify(m, uuid.NewString())
	p.machines = append(p.machines, m)
	return m
}

// startLocked has a machine run.
func (p *Pool) startLocked(m *Machine) {
	now := time.Now().UTC()
	m.State, m.LaunchTime = Running, &now
	m.PrivateIPs = []string{p.address(m.Serial).String()}
}

// pools counts the pools of this process.
var pools atomic.Uint32

// address is a machine's own among those of all pools of this process, as long as they are no more than 4096 with as many
// machines each: the machine of another pool that had it, too, would make it unclear whose a node is.
func (p *Pool) address(serial int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(p.number >> 4), byte(p.number<<4) | byte(serial>>8)&0xf, byte(serial)})
}

func (p *Pool) findLocked(id string) *Machine {
	for _, m := range p.machines {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// Machines are those that the cloud has and that have not ended, whatever is read from the cache.
func (p *Pool) Machines() []Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Machine
	for _, m := range p.machines {
		if m.State != Terminated && m.State != Rejected {
			all = append(all, *m)
		}
	}
	return all
}

// Desired is the desired size.
func (p *Pool) Desired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired
}

// SetDesired sets it, as somebody would who goes past all proxies, without waking the loop.
func (p *Pool) SetDesired(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.desired = n
}

// Unconfigure stops the pool, and leaves it as it was before anybody has given it a configuration.
func (p *Pool) Unconfigure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.started = nil, false
}

// Lose has a machine end by itself. The pool does not want it back.
func (p *Pool) Lose(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.findLocked(id)
	if m == nil {
		return false
	}
	p.desired = max(0, p.desired-1)
	p.removeLocked(m)
	p.cache = nil
	return true
}

func (p *Pool) removeLocked(m *Machine) {
	m.State = Terminated
	p.machines = slices.DeleteFunc(p.machines, func(o *Machine) bool { return o == m })
	p.announceLocked()
}

// forgetLocked ends a machine's membership. It runs on, as a machine of nobody's.
func (p *Pool) forgetLocked(m *Machine) {
	p.machines = slices.DeleteFunc(p.machines, func(o *Machine) bool { return o == m })
	p.outside = append(p.outside, m)
	p.announceLocked()
}

// admitLocked makes a machine a member that runs outside of the pool, and raises the desired size. It reports false when
// there is none of that ID.
func (p *Pool) admitLocked(id string) bool {
	i := slices.IndexFunc(p.outside, func(m *Machine) bool { return m.ID == id })
	if i < 0 {
		return false
	}
	m := p.outside[i]
	p.outside = slices.Delete(p.outside, i, i+1)
	p.machines = append(p.machines, m)
	p.desired++
	p.announceLocked()
	return true
}

// Forget ends a machine's membership behind its pool's back.
func (p *Pool) Forget(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.findLocked(id)
	if m == nil {
		return false
	}
	p.forgetLocked(m)
	p.cache = nil
	return true
}

func (p *Pool) announceLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Wait returns when done is true of the machines, or with ctx's error.
func (p *Pool) Wait(ctx context.Context, done func([]Machine) bool) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if done(p.Machines()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the machines of %s: %w", p.o.Name, context.Cause(ctx))
		}
	}
}

// observeLocked reads the pool through its cache.
func (p *Pool) observeLocked() *observation {
	if p.cache != nil && (p.stale != nil && p.stale.After == 0 || time.Since(p.cache.at) < p.refreshLocked()) {
		return p.cache
	}
	o := &observation{at: time.Now().UTC()}
	for _, m := range p.machines {
		o.machines = append(o.machines, *m)
	}
	p.cache = o
	return o
}

func (p *Pool) refreshLocked() time.Duration {
	if p.stale != nil {
		return p.stale.After
	}
	return p.o.Refresh
}
