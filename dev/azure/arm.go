package azure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// The Azure that an ARM is when it is not told otherwise.
const (
	DefaultSubscription  = "00000000-0000-0000-0000-000000000001"
	DefaultResourceGroup = "mc_demo"
	DefaultLocation      = "westeurope"
	DefaultTenant        = "00000000-0000-0000-0000-00000000000a"
)

// defaultPageSize is how many entries a page of a list has. Azure's pages are larger; small ones make clients turn them.
const defaultPageSize = 50

// ARMOptions configure an ARM. The zero value is one whose machines come and go at once, and are no nodes.
type ARMOptions struct {
	Subscription, ResourceGroup, Location, Tenant string
	// Joiner makes the node of a new machine. When nil, new machines have none.
	Joiner Joiner
	// BootTime is how long a new machine is in the state Creating before its node joins, DeleteTime how long one is in
	// the state Deleting after it lost its power.
	BootTime, DeleteTime time.Duration
	// RetryAfter is the header of that name of an operation under way, in whole seconds; none when less than one.
	RetryAfter time.Duration
	// PageSize is how many entries a page of a list has; 50 when zero.
	PageSize int
	// Quota is how many machines the subscription may have; zero is no limit.
	Quota int
	// Follow says by which headers an answer says where its operation can be followed; empty is by both.
	Follow FollowHeaders
	// OneAtATime refuses a change of a scale set while another one of it is under way, as compute does at times.
	OneAtATime bool
}

// FollowHeaders are the headers that say where a running operation can be followed.
type FollowHeaders string

// The headers that ARM's services use; see
// https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations.
const (
	FollowLocation FollowHeaders = "Location"
	FollowAsync    FollowHeaders = "Azure-AsyncOperation"
)

// Joiner makes the node of a new machine join its cluster, and returns when it has.
type Joiner interface {
	Join(ctx context.Context, m VM) error
}

// VM is one virtual machine, as those outside of the emulator see it.
type VM struct {
	// Resource is the machine's name in Azure, which events name it by: set_3, or a name of its own.
	Resource     string `json:"resource"`
	ScaleSet     string `json:"scaleSet,omitempty"`
	InstanceID   string `json:"instanceId,omitempty"`
	ComputerName string `json:"computerName"`
	// UniqueID is Azure's vmId, which a machine that is made anew under the same name does not have.
	UniqueID   string            `json:"vmId"`
	ProviderID string            `json:"providerID"`
	AgentPool  string            `json:"agentPool,omitempty"`
	Size       string            `json:"size"`
	Zone       string            `json:"zone,omitempty"`
	Spot       bool              `json:"spot,omitempty"`
	State      ProvisioningState `json:"provisioningState"`
	Power      PowerState        `json:"powerState"`
	Created    time.Time         `json:"timeCreated"`
	Tags       map[string]string `json:"tags,omitempty"`
	// Protected refuses the machine's deletion, as protectFromScaleSetActions does.
	Protected bool `json:"protected,omitempty"`
	// Failure is the code of the operation that left the machine Failed; empty is InternalExecutionError.
	Failure string `json:"failure,omitempty"`
	// Attached are the network interface and the disks of a machine on its own.
	Attached []Attachment `json:"attached,omitempty"`
}

// Attachment is a resource of a machine on its own.
type Attachment struct {
	Kind string `json:"kind"` // NetworkInterface, OSDisk or DataDisk
	Name string `json:"name"`
	// DeleteOption is Delete or Detach, what happens to it when its machine is deleted; empty is not said.
	DeleteOption string `json:"deleteOption,omitempty"`
}

// ProvisioningState is how far ARM has come with a resource.
type ProvisioningState string

// The provisioning states that machines and pools go through.
const (
	Creating  ProvisioningState = "Creating"
	Updating  ProvisioningState = "Updating"
	Succeeded ProvisioningState = "Succeeded"
	Deleting  ProvisioningState = "Deleting"
	Failed    ProvisioningState = "Failed"
)

// PowerState is whether a machine runs.
type PowerState string

// The power states.
const (
	Running     PowerState = "running"
	Stopped     PowerState = "stopped"
	Deallocated PowerState = "deallocated"
)

// ARM is an emulated Azure Resource Manager: the scale sets, virtual machines and AKS agent pools that an Emulator's
// metadata service speaks for. Its methods may be called from several goroutines at once. It ends with its Emulator.
type ARM struct {
	emulator *Emulator
	opts     ARMOptions
	log      *slog.Logger

	mu       sync.Mutex
	sets     map[string]*armSet     // by name in lower case
	machines map[string]*armMachine // by resource name in lower case
	pools    map[string]*armPool    // by cluster/pool in lower case
	ops      map[string]*armOperation
	faults   []*armedARMFault
	requests []ARMRequest
	tokens   map[string]bool // bearer tokens that were issued
	left     []Attachment    // what deleted machines have left behind
	changed  chan struct{}   // closed and replaced at every change
}

// armSet is a scale set.
type armSet struct {
	ScaleSetSpec
	capacity int
	next     int // instance ID of the next machine of a uniform set
	etag     int
	busy     *armOperation // the last change
	pool     *armPool
}

type armMachine struct {
	VM
	set     *armSet // nil for one on its own
	removed bool
}

// ScaleSetSpec is a scale set to make.
type ScaleSetSpec struct {
	Name     string
	Flexible bool
	Size     string // such as Standard_D16ds_v5, which is the default
	Spot     bool
	// Eviction is what becomes of a Spot machine that is taken away; empty is DeleteEvicted, as AKS has it.
	Eviction EvictionPolicy
	// Restores keeps the place of a machine that was deleted by an eviction, and brings another, as "try and restore" does.
	Restores bool
	// Overprovision makes one machine more than is asked for, and deletes it when the others run.
	Overprovision bool
	// Zones are spread over; none is a regional scale set.
	Zones []string
	Tags  map[string]string
}

// EvictionPolicy is what becomes of a Spot machine that is taken away
// (https://learn.microsoft.com/azure/virtual-machine-scale-sets/use-spot).
type EvictionPolicy string

// The eviction policies.
const (
	DeleteEvicted     EvictionPolicy = "Delete"     // it is deleted, and its scale set has one less
	DeallocateEvicted EvictionPolicy = "Deallocate" // it is stopped, and counts in its scale set
)

// armOperation is a long-running operation.
type armOperation struct {
	id        string
	namespace string
	action    string
	started   time.Time
	ended     time.Time
	err       *armError
}

// ErrUnknownResource is what a command on a resource that is not there is refused with.
var ErrUnknownResource = errors.New("no such resource")

// NewARM gives an Azure Resource Manager over an emulator, which has no resources yet. An emulator has at most one.
// What an event does to a machine for good, as a Preempt does, takes it out of its scale set.
func NewARM(e *Emulator, o ARMOptions) *ARM {
	for field, standard := range map[*string]string{
		&o.Subscription: DefaultSubscription, &o.ResourceGroup: DefaultResourceGroup, &o.Location: DefaultLocation,
		&o.Tenant: DefaultTenant,
	} {
		if *field == "" {
			*field = standard
		}
	}
	if o.PageSize <= 0 {
		o.PageSize = defaultPageSize
	}
	a := &ARM{
		emulator: e, opts: o, log: e.log,
		sets: map[string]*armSet{}, machines: map[string]*armMachine{}, pools: map[string]*armPool{},
		ops: map[string]*armOperation{}, tokens: map[string]bool{}, changed: make(chan struct{}),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arm = a
	return a
}

// AddScaleSet makes a scale set with n machines that run already; their nodes are the caller's to add. Its document
// of events exists from then on.
func (a *ARM) AddScaleSet(spec ScaleSetSpec, n int) []VM {
	a.emulator.ScaleSet(spec.Name)
	a.mu.Lock()
	defer a.mu.Unlock()
	if spec.Size == "" {
		spec.Size = "Standard_D16ds_v5"
	}
	set := &armSet{ScaleSetSpec: spec, capacity: n, etag: 1}
	a.sets[strings.ToLower(spec.Name)] = set
	machines := make([]VM, 0, n)
	for range n {
		m := a.newMachineLocked(set, Succeeded, Running)
		machines = append(machines, m.VM)
	}
	a.announceLocked()
	return machines
}

// AddVM makes a virtual machine of its own, which runs.
func (a *ARM) AddVM(name string, attached ...Attachment) VM {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := &armMachine{VM: VM{
		Resource: name, ComputerName: strings.ToLower(name), UniqueID: uuid.NewString(), Size: "Standard_D4s_v5",
		State: Succeeded, Power: Running, Created: time.Now().UTC(), ProviderID: "azure://" + a.vmID(name), Attached: attached,
	}}
	a.machines[strings.ToLower(name)] = m
	a.announceLocked()
	return m.VM
}

// newMachineLocked makes the next machine of a set.
func (a *ARM) newMachineLocked(set *armSet, state ProvisioningState, power PowerState) *armMachine {
	number := set.next
	set.next++
	m := &armMachine{set: set, VM: VM{
		ScaleSet: set.Name, Size: set.Size, Spot: set.Spot, State: state, Power: power, Created: time.Now().UTC(),
		ComputerName: strings.ToLower(set.Name) + base36(number), UniqueID: uuid.NewString(), Tags: map[string]string{},
	}}
	if len(set.Zones) > 0 {
		m.Zone = set.Zones[number%len(set.Zones)]
	}
	if set.pool != nil {
		m.AgentPool = set.pool.Name
	}
	for k, v := range set.Tags {
		m.Tags[k] = v
	}
	if set.Flexible {
		m.Resource = set.Name + "_" + uuid.NewString()[:8]
		m.InstanceID = m.Resource
		m.ProviderID = "azure://" + a.vmID(m.Resource)
	} else {
		m.InstanceID = strconv.Itoa(number)
		m.Resource = set.Name + "_" + m.InstanceID
		m.ProviderID = "azure://" + a.instanceID(set.Name, m.InstanceID)
	}
	a.machines[strings.ToLower(m.Resource)] = m
	return m
}

// base36 is the end of a computer name in a scale set: the instance in six digits of base 36.
func base36(number int) string {
	digits := strconv.FormatInt(int64(number), 36)
	return strings.Repeat("0", max(0, 6-len(digits))) + digits
}

// The IDs of resources, spelt as cloud-provider-azure writes them in a node's provider ID.
func (a *ARM) groupID() string {
	return "/subscriptions/" + a.opts.Subscription + "/resourceGroups/" + a.opts.ResourceGroup
}

func (a *ARM) setID(set string) string {
	return a.groupID() + "/providers/Microsoft.Compute/virtualMachineScaleSets/" + set
}
func (a *ARM) instanceID(set, id string) string { return a.setID(set) + "/virtualMachines/" + id }

func (a *ARM) vmID(name string) string {
	return a.groupID() + "/providers/Microsoft.Compute/virtualMachines/" + name
}

// VMs lists the machines there are, by name.
func (a *ARM) VMs() []VM {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machinesLocked()
}

func (a *ARM) machinesLocked() []VM {
	list := make([]VM, 0, len(a.machines))
	for _, m := range a.machines {
		list = append(list, m.VM)
	}
	slices.SortFunc(list, func(x, y VM) int { return compareNatural(x.Resource, y.Resource) })
	return list
}

// compareNatural orders names by their length first, so that set_9 comes before set_10.
func compareNatural(x, y string) int {
	if d := len(x) - len(y); d != 0 {
		return d
	}
	return strings.Compare(x, y)
}

// VM gives the machine of that name, in any letter case.
func (a *ARM) VM(resource string) (VM, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return VM{}, false
	}
	return m.VM, true
}

// Capacity gives how many machines a scale set is meant to have.
func (a *ARM) Capacity(set string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.sets[strings.ToLower(set)]; s != nil {
		return s.capacity
	}
	return 0
}

// Change alters a machine, such as its Power, State, Tags or Protected. What names it must stay.
func (a *ARM) Change(resource string, change func(*VM)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return fmt.Errorf("machine %q: %w", resource, ErrUnknownResource)
	}
	change(&m.VM)
	m.touchLocked()
	a.announceLocked()
	return nil
}

// Lose takes a machine away without anybody's request, as when a Spot machine is evicted: its scale set has one less.
func (a *ARM) Lose(ctx context.Context, resource string) error {
	if machines := a.emulator.opts.Machines; machines != nil {
		if err := machines.PowerOff(ctx, resource); err != nil {
			return fmt.Errorf("losing machine %q: %w", resource, err)
		}
	}
	if !a.remove(resource) {
		return fmt.Errorf("machine %q: %w", resource, ErrUnknownResource)
	}
	return nil
}

// remove takes a machine out of what there is.
func (a *ARM) remove(resource string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return false
	}
	if m.State != Deleting { // a deletion has lowered the capacity when it began
		a.shrinkLocked(m, 1)
	}
	a.removeLocked(m)
	return true
}

func (a *ARM) removeLocked(m *armMachine) {
	m.removed = true
	m.touchLocked()
	for _, attached := range m.Attached {
		if attached.DeleteOption != "Delete" {
			a.left = append(a.left, attached)
		}
	}
	delete(a.machines, strings.ToLower(m.Resource))
	a.announceLocked()
}

// touchLocked changes the ETag of a machine's set, as any write does.
func (m *armMachine) touchLocked() {
	if m.set == nil {
		return
	}
	m.set.etag++
	if m.set.pool != nil {
		m.set.pool.etag++
	}
}

// LeftBehind lists what deleted machines have left behind.
func (a *ARM) LeftBehind() []Attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.left)
}

// shrinkLocked lowers the capacity of a machine's set.
func (a *ARM) shrinkLocked(m *armMachine, by int) {
	if m.set == nil {
		return
	}
	m.set.capacity = max(0, m.set.capacity-by)
	m.touchLocked()
}

// Wait returns when done is true of the machines there are: the present ones, or those after a change.
func (a *ARM) Wait(ctx context.Context, done func([]VM) bool) error {
	for {
		a.mu.Lock()
		machines, changed := a.machinesLocked(), a.changed
		a.mu.Unlock()
		if done(machines) {
			return nil
		}
		select {
		case <-changed:
		case <-a.emulator.ctx.Done():
			return fmt.Errorf("waiting for machines: %w", ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("waiting for machines: %w", context.Cause(ctx))
		}
	}
}

func (a *ARM) announceLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}
