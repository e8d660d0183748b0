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

// State is the state of a machine.
type State string

const (
	Requested   State = "REQUESTED"
	Rejected    State = "REJECTED"
	Pending     State = "PENDING"
	Running     State = "RUNNING"
	Terminating State = "TERMINATING"
	Terminated  State = "TERMINATED"
)

// IsAllocated reports whether a machine in this state counts in its pool.
func (s State) IsAllocated() bool { return s == Requested || s == Pending || s == Running }

// Membership tells what the pool may do with a machine.
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

	// Serial is the machine's number in its pool, from 0. The API does not show it.
	Serial int `json:"-"`
	// NodeName and ProviderID belong to the machine's Node. The API does not show them.
	NodeName   string `json:"-"`
	ProviderID string `json:"-"`

	terminationAccepted bool // its termination is accepted, but has no effect yet
}

func (m *Machine) isActive() bool { return m.State.IsAllocated() && m.Membership.Active }

// NodeManager adds and removes the Nodes of machines. Both methods are called without a lock, and may take time.
type NodeManager interface {
	// AddNode adds the Node of a running machine.
	AddNode(ctx context.Context, m Machine) error
	// PowerOffNode powers off a machine that ends. Its Node may be deleted already.
	PowerOffNode(ctx context.Context, m Machine) error
}

// Policy selects the machines to terminate when the pool shrinks.
type Policy string

const (
	Newest Policy = "NEWEST"
	Oldest Policy = "OLDEST"
)

// Options configures a Pool. The zero value is a pool of OpenStack servers without delays.
type Options struct {
	// Name is part of the machines' names. Empty means "pool".
	Name string
	// CacheAge is the maximum age of the cache. 0 means no cache.
	CacheAge time.Duration
	// CallDelay is the time from the response of a call to its effect.
	CallDelay time.Duration
	// LaunchTime is the time in REQUESTED, and again in PENDING. Terminate is the time in TERMINATING.
	LaunchTime, TerminateTime time.Duration
	// JoinTime is the time until the Node of a running machine joins.
	JoinTime time.Duration
	// KeepTerminated is the time that a TERMINATED machine stays listed.
	KeepTerminated time.Duration
	// ResizeInterval is the interval of the pool's loop. 0 means only after changes.
	ResizeInterval time.Duration
	// Policy is Newest if empty.
	Policy Policy
	// Kind is the kind of the machines. Empty means OpenStack.
	Kind Kind
	// Region is the machines' region. Empty means RegionOne.
	Region string
	// Quota is the maximum number of allocated machines. More machines are REJECTED. 0 means no limit.
	Quota int
	// NoMetadata omits the cloud's own description of a machine.
	NoMetadata bool
	// Nodes adds the machines' Nodes. Nil means no Nodes.
	Nodes NodeManager
	// User and Password, or Token, are required of clients if set.
	User, Password, Token string
	// SkipRequestLog disables the record of requests, for benchmarks with very many.
	SkipRequestLog bool
	// Log may be nil.
	Log *slog.Logger
}

// Pool is an emulated pool. Its methods may be called concurrently. Call Close to end it.
type Pool struct {
	opts Options
	log  *slog.Logger
	// resize wakes the loop.
	resize  chan struct{}
	number  uint32          // number of this pool in this process
	ctx     context.Context // ends at Close
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	machines []*Machine
	detached []*Machine // running machines that were detached
	serial   int
	desired  int
	started  bool
	config   []byte
	cache    *observation
	stale    *armedFault // the fault that sets the age of reads, or nil
	faults   []*armedFault
	requests []Request
	changed  chan struct{}
}

// observation is one read of the cloud.
type observation struct {
	at       time.Time
	machines []Machine
}

// New returns a started pool without machines.
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
		opts: o, log: o.Log, resize: make(chan struct{}, 1), ctx: ctx, stop: stop, started: true,
		config: []byte(`{"name":"` + o.Name + `"}`), changed: make(chan struct{}), number: poolCount.Add(1),
	}
	p.running.Go(p.runResizeLoop)
	return p
}

// Close ends the work in progress, and waits for it.
func (p *Pool) Close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.running.Wait()
}

// goLocked runs work until the pool is closed.
func (p *Pool) goLocked(work func(context.Context)) {
	if p.ctx.Err() == nil {
		p.running.Go(func() { work(p.ctx) })
	}
}

// sleep waits for d, and reports false if the pool was closed first.
func sleep(ctx context.Context, d time.Duration) (elapsed bool) {
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

// AddMachines adds n running machines with their Nodes, and raises the desired size by n.
func (p *Pool) AddMachines(ctx context.Context, n int) ([]Machine, error) {
	p.mu.Lock()
	added := make([]Machine, n)
	for i := range n {
		m := p.newMachineLocked()
		p.markRunningLocked(m)
		added[i] = *m
	}
	p.desired += n
	p.notifyWaitersLocked()
	p.mu.Unlock()
	if p.opts.Nodes == nil {
		return added, nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentJoins)
	for _, m := range added {
		group.Go(func() error {
			if err := p.opts.Nodes.AddNode(ctx, m); err != nil {
				return fmt.Errorf("add the node of machine %s: %w", m.ID, err)
			}
			return nil
		})
	}
	return added, group.Wait()
}

// maxConcurrentJoins is the number of Nodes that join concurrently.
const maxConcurrentJoins = 16

// AddMachineInState adds a machine in a given state, without a Node. It raises the desired size if the state counts.
func (p *Pool) AddMachineInState(s State, change func(*Machine)) Machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.newMachineLocked()
	if s != Requested && s != Rejected {
		p.markRunningLocked(m)
	}
	m.State = s
	if change != nil {
		change(m)
	}
	if m.isActive() {
		p.desired++
	}
	p.cache = nil
	p.notifyWaitersLocked()
	return *m
}

// newMachineLocked creates a requested machine.
func (p *Pool) newMachineLocked() *Machine {
	now := time.Now().UTC()
	m := &Machine{
		State: Requested, Membership: Membership{true, true}, ServiceState: "UNKNOWN", Provider: string(p.opts.Kind),
		Region: p.opts.Region, RequestTime: &now, PublicIPs: []string{}, PrivateIPs: []string{}, Serial: p.serial,
		NodeName: fmt.Sprintf("%s-%d", p.opts.Name, p.serial),
	}
	p.serial++
	p.setIdentity(m, uuid.NewString())
	p.machines = append(p.machines, m)
	return m
}

// markRunningLocked sets a machine to RUNNING.
func (p *Pool) markRunningLocked(m *Machine) {
	now := time.Now().UTC()
	m.State, m.LaunchTime = Running, &now
	m.PrivateIPs = []string{p.machineAddress(m.Serial).String()}
}

// poolCount counts the pools of this process.
var poolCount atomic.Uint32

// machineAddress returns an address that is unique among all pools of this process, for up to 4096 pools of 4096 machines. With
// a duplicate address the machine of a node would be ambiguous.
func (p *Pool) machineAddress(serial int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(p.number >> 4), byte(p.number<<4) | byte(serial>>8)&0xf, byte(serial)})
}

func (p *Pool) findMachineLocked(id string) *Machine {
	for _, m := range p.machines {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// Machines returns the machines that exist in the cloud and have not ended, without the cache.
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

// DesiredSize returns the desired size.
func (p *Pool) DesiredSize() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired
}

// SetDesiredSize sets the desired size without waking the loop, as a client does that bypasses all proxies.
func (p *Pool) SetDesiredSize(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.desired = n
}

// Unconfigure stops the pool and removes its configuration.
func (p *Pool) Unconfigure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.started = nil, false
}

// EndMachine ends a machine without a request. The pool does not replace it.
func (p *Pool) EndMachine(id string) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.findMachineLocked(id)
	if m == nil {
		return false
	}
	p.desired = max(0, p.desired-1)
	p.removeMachineLocked(m)
	p.cache = nil
	return true
}

func (p *Pool) removeMachineLocked(m *Machine) {
	m.State = Terminated
	p.machines = slices.DeleteFunc(p.machines, func(o *Machine) bool { return o == m })
	p.notifyWaitersLocked()
}

// detachMachineLocked ends a machine's membership. The machine continues to run outside the pool.
func (p *Pool) detachMachineLocked(m *Machine) {
	p.machines = slices.DeleteFunc(p.machines, func(o *Machine) bool { return o == m })
	p.detached = append(p.detached, m)
	p.notifyWaitersLocked()
}

// attachMachineLocked makes a running machine outside the pool a member, and raises the desired size. It reports false if there
// is no such machine.
func (p *Pool) attachMachineLocked(id string) (found bool) {
	i := slices.IndexFunc(p.detached, func(m *Machine) bool { return m.ID == id })
	if i < 0 {
		return false
	}
	m := p.detached[i]
	p.detached = slices.Delete(p.detached, i, i+1)
	p.machines = append(p.machines, m)
	p.desired++
	p.notifyWaitersLocked()
	return true
}

// RemoveMembership ends a machine's membership without a request.
func (p *Pool) RemoveMembership(id string) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.findMachineLocked(id)
	if m == nil {
		return false
	}
	p.detachMachineLocked(m)
	p.cache = nil
	return true
}

func (p *Pool) notifyWaitersLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// AwaitMachines waits until done returns true for the machines. It returns ctx's error if ctx ends first.
func (p *Pool) AwaitMachines(ctx context.Context, done func([]Machine) bool) error {
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
			return fmt.Errorf("waiting for the machines of %s: %w", p.opts.Name, context.Cause(ctx))
		}
	}
}

// cachedObservationLocked reads the pool through its cache.
func (p *Pool) cachedObservationLocked() *observation {
	if p.cache != nil && (p.stale != nil && p.stale.After == 0 || time.Since(p.cache.at) < p.maxCacheAgeLocked()) {
		return p.cache
	}
	o := &observation{at: time.Now().UTC()}
	for _, m := range p.machines {
		o.machines = append(o.machines, *m)
	}
	p.cache = o
	return o
}

func (p *Pool) maxCacheAgeLocked() time.Duration {
	if p.stale != nil {
		return p.stale.After
	}
	return p.opts.CacheAge
}
