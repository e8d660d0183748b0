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

// The defaults of ARMOptions.
const (
	DefaultSubscription  = "00000000-0000-0000-0000-000000000001"
	DefaultResourceGroup = "mc_demo"
	DefaultLocation      = "westeurope"
	DefaultTenant        = "00000000-0000-0000-0000-00000000000a"
)

// defaultPageSize is the number of entries per page of a list. Azure's pages are larger; small pages make clients
// request several.
const defaultPageSize = 50

// ARMOptions configures an ARM. With the zero value machines are created and deleted at once, and have no nodes.
type ARMOptions struct {
	Subscription, ResourceGroup, Location, Tenant string
	// Joiner creates the node of a new machine. If it is nil, new machines have no nodes.
	Joiner NodeJoiner
	// BootTime is the time that a new machine stays Creating before its node joins. DeleteTime is the time that a machine
	// stays Deleting after power-off.
	BootTime, DeleteTime time.Duration
	// RetryAfter is the Retry-After header of running operations, in whole seconds. Below 1 s there is no header.
	RetryAfter time.Duration
	// PageSize is the number of entries per page of a list. Zero means 50.
	PageSize int
	// Quota is the maximum number of machines of the subscription. Zero means no limit.
	Quota int
	// OperationHeaders selects the headers with the address of a running operation. Empty means both.
	OperationHeaders OperationHeaders
	// SerializeChanges refuses a change of a scale set during another change of it, as compute sometimes does.
	SerializeChanges bool
}

// OperationHeaders are the response headers with the address of a running operation.
type OperationHeaders string

// The headers that ARM's services use; see
// https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations.
const (
	LocationHeader       OperationHeaders = "Location"
	AsyncOperationHeader OperationHeaders = "Azure-AsyncOperation"
)

// NodeJoiner adds the node of a new machine to its cluster, and returns when the node has joined.
type NodeJoiner interface {
	JoinNode(ctx context.Context, m VM) error
}

// VM is the public state of a virtual machine.
type VM struct {
	// Resource is the machine's Azure name, which events use: set_3, or the name of a standalone VM.
	Resource     string `json:"resource"`
	ScaleSet     string `json:"scaleSet,omitempty"`
	InstanceID   string `json:"instanceId,omitempty"`
	ComputerName string `json:"computerName"`
	// UniqueID is Azure's vmId. A new machine with the same name has another one.
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
	// Failure is the error code of the operation that left the machine Failed. Empty means InternalExecutionError.
	Failure string `json:"failure,omitempty"`
	// Attached are the network interface and the disks of a standalone VM.
	Attached []Attachment `json:"attached,omitempty"`
}

// Attachment is a resource attached to a standalone VM.
type Attachment struct {
	Kind string `json:"kind"` // NetworkInterface, OSDisk or DataDisk
	Name string `json:"name"`
	// DeleteOption is Delete or Detach, applied when the machine is deleted. Empty means not set.
	DeleteOption string `json:"deleteOption,omitempty"`
}

// ProvisioningState is the ARM state of a resource.
type ProvisioningState string

// The provisioning states of machines and pools.
const (
	Creating  ProvisioningState = "Creating"
	Updating  ProvisioningState = "Updating"
	Succeeded ProvisioningState = "Succeeded"
	Deleting  ProvisioningState = "Deleting"
	Failed    ProvisioningState = "Failed"
)

// PowerState is the power state of a machine.
type PowerState string

const (
	Running     PowerState = "running"
	Stopped     PowerState = "stopped"
	Deallocated PowerState = "deallocated"
)

// ARM is an emulated Azure Resource Manager. It has the scale sets, virtual machines and AKS agent pools behind an
// Emulator's metadata service. Its methods may be called concurrently. It ends with its Emulator.
type ARM struct {
	emulator *Emulator
	opts     ARMOptions
	log      *slog.Logger

	mu       sync.Mutex
	sets     map[string]*armSet  // by name in lower case
	machines map[string]*armVM   // by resource name in lower case
	pools    map[string]*armPool // by cluster/pool in lower case
	ops      map[string]*armOperation
	faults   []*armedARMFault
	requests []ARMRequest
	tokens   map[string]bool // issued bearer tokens
	detached []Attachment    // detached resources of deleted machines
	changed  chan struct{}   // closed and replaced at every change
}

type armSet struct {
	ScaleSetSpec
	capacity int
	next     int // instance ID of the next machine of a uniform set
	etag     int
	busy     *armOperation // the last change
	pool     *armPool
}

type armVM struct {
	VM
	set     *armSet // nil for a standalone VM
	removed bool
}

// ScaleSetSpec describes a scale set to create.
type ScaleSetSpec struct {
	Name     string
	Flexible bool
	Size     string // such as Standard_D16ds_v5, the default
	Spot     bool
	// EvictionPolicy is what Azure does to an evicted Spot machine. Empty means EvictionDelete, the default of AKS.
	EvictionPolicy EvictionPolicy
	// RestoreEvicted creates another machine for each evicted and deleted one, as "try and restore" does.
	RestoreEvicted bool
	// Overprovision creates one extra machine, and deletes it when the others run.
	Overprovision bool
	// Zones are the zones of the machines. Empty means a regional scale set.
	Zones []string
	Tags  map[string]string
}

// EvictionPolicy is what Azure does to an evicted Spot machine
// (https://learn.microsoft.com/azure/virtual-machine-scale-sets/use-spot).
type EvictionPolicy string

const (
	EvictionDelete     EvictionPolicy = "Delete"     // the machine is deleted, and the capacity decreases by one
	EvictionDeallocate EvictionPolicy = "Deallocate" // the machine is stopped, and still counts in its scale set
)

type armOperation struct {
	id        string
	namespace string
	action    string
	started   time.Time
	ended     time.Time
	err       *armError
}

// ErrUnknownResource is the error of a command on a resource that does not exist.
var ErrUnknownResource = errors.New("no such resource")

// NewARM returns an Azure Resource Manager without resources for an emulator, which has at most one. An event that ends
// a machine for good, such as a Preempt, removes it from its scale set.
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
		sets: map[string]*armSet{}, machines: map[string]*armVM{}, pools: map[string]*armPool{},
		ops: map[string]*armOperation{}, tokens: map[string]bool{}, changed: make(chan struct{}),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arm = a
	return a
}

// AddScaleSet creates a scale set with n running machines. The caller adds their nodes. The set's document of events
// exists from then on.
func (a *ARM) AddScaleSet(spec ScaleSetSpec, n int) []VM {
	a.emulator.EnsureScaleSet(spec.Name)
	a.mu.Lock()
	defer a.mu.Unlock()
	if spec.Size == "" {
		spec.Size = "Standard_D16ds_v5"
	}
	set := &armSet{ScaleSetSpec: spec, capacity: n, etag: 1}
	a.sets[strings.ToLower(spec.Name)] = set
	machines := make([]VM, 0, n)
	for range n {
		m := a.newVMLocked(set, Succeeded, Running)
		machines = append(machines, m.VM)
	}
	a.notifyWaitersLocked()
	return machines
}

// AddVM creates a running standalone VM.
func (a *ARM) AddVM(name string, attached ...Attachment) VM {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := &armVM{VM: VM{
		Resource: name, ComputerName: strings.ToLower(name), UniqueID: uuid.NewString(), Size: "Standard_D4s_v5",
		State: Succeeded, Power: Running, Created: time.Now().UTC(), ProviderID: "azure://" + a.vmID(name), Attached: attached,
	}}
	a.machines[strings.ToLower(name)] = m
	a.notifyWaitersLocked()
	return m.VM
}

// newVMLocked creates the next machine of a set.
func (a *ARM) newVMLocked(set *armSet, state ProvisioningState, power PowerState) *armVM {
	number := set.next
	set.next++
	m := &armVM{set: set, VM: VM{
		ScaleSet: set.Name, Size: set.Size, Spot: set.Spot, State: state, Power: power, Created: time.Now().UTC(),
		ComputerName: strings.ToLower(set.Name) + formatBase36(number), UniqueID: uuid.NewString(), Tags: map[string]string{},
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

// formatBase36 returns the end of a computer name in a scale set: the instance as six digits of base 36.
func formatBase36(number int) string {
	digits := strconv.FormatInt(int64(number), 36)
	return strings.Repeat("0", max(0, 6-len(digits))) + digits
}

// The IDs of resources, in the spelling of cloud-provider-azure in provider IDs.
func (a *ARM) groupID() string {
	return "/subscriptions/" + a.opts.Subscription + "/resourceGroups/" + a.opts.ResourceGroup
}

func (a *ARM) scaleSetID(set string) string {
	return a.groupID() + "/providers/Microsoft.Compute/virtualMachineScaleSets/" + set
}
func (a *ARM) instanceID(set, id string) string { return a.scaleSetID(set) + "/virtualMachines/" + id }

func (a *ARM) vmID(name string) string {
	return a.groupID() + "/providers/Microsoft.Compute/virtualMachines/" + name
}

// VMs lists the machines, ordered by name.
func (a *ARM) VMs() []VM {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listVMsLocked()
}

func (a *ARM) listVMsLocked() []VM {
	list := make([]VM, 0, len(a.machines))
	for _, m := range a.machines {
		list = append(list, m.VM)
	}
	slices.SortFunc(list, func(x, y VM) int { return compareNatural(x.Resource, y.Resource) })
	return list
}

// compareNatural orders names by length first, so that set_9 comes before set_10.
func compareNatural(x, y string) int {
	if d := len(x) - len(y); d != 0 {
		return d
	}
	return strings.Compare(x, y)
}

// VM returns the machine with this name in any letter case.
func (a *ARM) VM(resource string) (vm VM, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return VM{}, false
	}
	return m.VM, true
}

// Capacity returns the requested number of machines of a scale set.
func (a *ARM) Capacity(set string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.sets[strings.ToLower(set)]; s != nil {
		return s.capacity
	}
	return 0
}

// ModifyVM modifies a machine, such as its Power, State, Tags or Protected. The change must not modify the names.
func (a *ARM) ModifyVM(resource string, change func(*VM)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return fmt.Errorf("machine %q: %w", resource, ErrUnknownResource)
	}
	change(&m.VM)
	m.incrementETagsLocked()
	a.notifyWaitersLocked()
	return nil
}

// RemoveVM removes a machine without a request, as a Spot eviction does. The capacity of its scale set decreases by one.
func (a *ARM) RemoveVM(ctx context.Context, resource string) error {
	if machines := a.emulator.opts.Machines; machines != nil {
		if err := machines.PowerOff(ctx, resource); err != nil {
			return fmt.Errorf("losing machine %q: %w", resource, err)
		}
	}
	if !a.removeVM(resource) {
		return fmt.Errorf("machine %q: %w", resource, ErrUnknownResource)
	}
	return nil
}

// removeVM deletes a machine, and reports whether it existed.
func (a *ARM) removeVM(resource string) (existed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(resource)]
	if m == nil {
		return false
	}
	if m.State != Deleting { // a deletion lowers the capacity when it begins
		a.reduceCapacityLocked(m, 1)
	}
	a.removeVMLocked(m)
	return true
}

func (a *ARM) removeVMLocked(m *armVM) {
	m.removed = true
	m.incrementETagsLocked()
	for _, attached := range m.Attached {
		if attached.DeleteOption != "Delete" {
			a.detached = append(a.detached, attached)
		}
	}
	delete(a.machines, strings.ToLower(m.Resource))
	a.notifyWaitersLocked()
}

// incrementETagsLocked changes the ETag of a machine's set, as any write does.
func (m *armVM) incrementETagsLocked() {
	if m.set == nil {
		return
	}
	m.set.etag++
	if m.set.pool != nil {
		m.set.pool.etag++
	}
}

// DetachedResources lists the detached resources of deleted machines.
func (a *ARM) DetachedResources() []Attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.detached)
}

func (a *ARM) reduceCapacityLocked(m *armVM, count int) {
	if m.set == nil {
		return
	}
	m.set.capacity = max(0, m.set.capacity-count)
	m.incrementETagsLocked()
}

// AwaitVMs waits until done returns true for the list of machines. It checks now and after each change.
func (a *ARM) AwaitVMs(ctx context.Context, done func([]VM) bool) error {
	for {
		a.mu.Lock()
		machines, changed := a.listVMsLocked(), a.changed
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

func (a *ARM) notifyWaitersLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}
