package azure

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// found is a machine as Azure describes it, and what its deletion needs to know.
type found struct {
	cloud.Instance
	id       providerid.ID
	flexible string // the flexible scale set that it is in, if any
	// detaches are the disks and network interfaces that Azure leaves behind when it deletes a machine on its own.
	detaches []string
}

// Instances lists the machines of a group.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	g, err := p.group(name)
	if err != nil {
		return nil, err
	}
	var machines []found
	if g.isPool() {
		machines, err = p.listPool(ctx, g)
	} else {
		machines, err = p.listSet(ctx, g)
	}
	if err != nil {
		return nil, err
	}
	instances := make([]cloud.Instance, 0, len(machines))
	for _, m := range machines {
		m.Group = g.name
		instances = append(instances, m.Instance)
	}
	return instances, nil
}

// listSet lists a scale set. That it exists and of which kind it is, is asked first: a list of the machines of a
// flexible scale set that does not exist is empty, and so is that of a uniform one.
func (p *Provider) listSet(ctx context.Context, g group) ([]found, error) {
	set, err := p.getSet(ctx, g)
	if err != nil {
		return nil, err
	}
	return p.listMachines(ctx, g, set)
}

// listMachines lists the machines of a scale set that has been read.
func (p *Provider) listMachines(ctx context.Context, g group, set armcompute.VirtualMachineScaleSet) ([]found, error) {
	if set.Properties == nil {
		return nil, fmt.Errorf("reading %s: %w: it has no properties", g, errIncomplete)
	}
	if value(set.Properties.OrchestrationMode) == armcompute.OrchestrationModeFlexible {
		return p.listFlexible(ctx, g)
	}
	return p.listUniform(ctx, g)
}

func (p *Provider) listUniform(ctx context.Context, g group) ([]found, error) {
	pager := p.clients.instances.NewListPager(g.resourceGroup, g.scaleSet,
		&armcompute.VirtualMachineScaleSetVMsClientListOptions{Expand: to.Ptr("instanceView")})
	instances := func(r armcompute.VirtualMachineScaleSetVMsClientListResponse) []*armcompute.VirtualMachineScaleSetVM {
		return r.Value
	}
	all, err := listAll(ctx, fmt.Sprintf("listing the instances of %s", g), pager, instances, ofScaleSetVM)
	return all, goneGroup(g, err)
}

// listFlexible lists the machines of a flexible scale set, which are virtual machines that name their set.
func (p *Provider) listFlexible(ctx context.Context, g group) ([]found, error) {
	setID := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachineScaleSets/%s",
		p.config.Subscription, g.resourceGroup, g.scaleSet)
	pager := p.clients.vms.NewListPager(g.resourceGroup, &armcompute.VirtualMachinesClientListOptions{
		Filter: to.Ptr("'virtualMachineScaleSet/id' eq '" + setID + "'"),
		Expand: to.Ptr(armcompute.ExpandTypeForListVMsInstanceView),
	})
	vms := func(r armcompute.VirtualMachinesClientListResponse) []*armcompute.VirtualMachine { return r.Value }
	machines, err := listAll(ctx, fmt.Sprintf("listing the machines of %s", g), pager, vms, ofVM)
	return slices.DeleteFunc(machines, func(m found) bool { return !strings.EqualFold(m.flexible, g.scaleSet) }), goneGroup(g, err)
}

// listAll reads every page of a list, and every item of a page: all of them or an error (I7). A page without a value is
// an answer cut short.
func listAll[Page, Item, T any](ctx context.Context, doing string, pager *runtime.Pager[Page],
	items func(Page) []Item, read func(Item) (T, error),
) ([]T, error) {
	var all []T
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, ofSDK(doing, err)
		}
		list := items(page)
		if list == nil {
			return nil, fmt.Errorf("%s: %w: a page has no value", doing, errIncomplete)
		}
		for _, item := range list {
			t, err := read(item)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", doing, err)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// Instance reads one machine.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	id, err := p.own(providerID)
	if err != nil {
		return cloud.Instance{}, err
	}
	if err := p.justGone(id); err != nil {
		return cloud.Instance{}, err
	}
	at := time.Now()
	m, err := p.instance(ctx, id)
	if err != nil {
		return cloud.Instance{}, err
	}
	if id.ScaleSet != "" || m.flexible != "" { // that a machine on its own is gone Azure does not say when it is asked to delete it
		p.rememberRead(id, read{found: m, at: at})
	}
	member, inPool, err := p.member(ctx, id)
	if err != nil {
		return cloud.Instance{}, err
	}
	if inPool {
		m.Group = member.pool.name
		keeps, err := p.poolKeeps(ctx, member.pool)
		if err != nil {
			return cloud.Instance{}, err
		}
		m.keep(keeps)
	}
	return m.Instance, nil
}

// read is what was read of a machine, and when.
type read struct {
	found
	gone error // says that there is no such machine
	at   time.Time
}

// readHolds is for how long a read serves who asks for a machine's deletion, and for the rights to it, right after Instance, and
// who asks for the machine right after Status has found that it is gone.
const readHolds = 5 * time.Second

func (p *Provider) rememberRead(id providerid.ID, r read) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.reads, func(_ string, old read) bool { return time.Since(old.at) >= readHolds })
	p.reads[id.String()] = r
}

// recent gives a machine as Instance has just read it, or else reads it.
func (p *Provider) recent(ctx context.Context, id providerid.ID) (found, error) {
	p.mu.Lock()
	r, is := p.reads[id.String()]
	p.mu.Unlock()
	if is && r.gone == nil && time.Since(r.at) < readHolds {
		return r.found, nil
	}
	return p.instance(ctx, id)
}

// justGone is the answer that a machine is gone which Status has got a moment ago, once; nil without one.
func (p *Provider) justGone(id providerid.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.reads[id.String()]
	if r.gone == nil || time.Since(r.at) >= readHolds {
		return nil
	}
	delete(p.reads, id.String())
	return r.gone
}

// forget has the next one who asks for a machine read it.
func (p *Provider) forget(id providerid.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reads, id.String())
}

// ProvesGone is true of every machine of the subscription: Instance asks compute for it by its resource ID, whichever group
// it is in, and AKS only afterwards, about a machine that there is. That holds for an instance of a uniform scale set, a
// machine of a flexible one, also when it was detached, which leaves its ID as it is, one that AKS manages by itself, and
// one on its own. A machine that the credential may not read is AuthorizationFailed, and one whose subscription or resource
// group does not answer no [cloud.NotFoundError] either, see goneCodes.
//
// A machine that was moved to another resource group has another ID there. Its Node, which keeps the old one, is without a
// machine to Azure's own cloud-provider too, which deletes it as soon as it is not Ready.
func (p *Provider) ProvesGone(providerID string) bool {
	_, err := p.own(providerID)
	return err == nil
}

// instance reads a machine and names its group, were it not in an agent pool.
func (p *Provider) instance(ctx context.Context, id providerid.ID) (found, error) {
	doing := "reading machine " + id.String()
	failed := func(err error) error {
		if err = ofSDK(doing, err); gone(err) {
			return fmt.Errorf("%w (%w)", &cloud.NotFoundError{Kind: "instance", Name: id.String()}, err)
		}
		return err
	}
	var m found
	if id.ScaleSet != "" {
		answer, err := p.clients.instances.Get(ctx, id.ResourceGroup, id.ScaleSet, id.Name,
			&armcompute.VirtualMachineScaleSetVMsClientGetOptions{Expand: to.Ptr(armcompute.InstanceViewTypesInstanceView)})
		if err != nil {
			return m, failed(err)
		}
		if m, err = ofScaleSetVM(&answer.VirtualMachineScaleSetVM); err != nil {
			return m, fmt.Errorf("%s: %w", doing, err)
		}
		m.Group = p.groupOfSet(id.ResourceGroup, id.ScaleSet)
	} else {
		answer, err := p.clients.vms.Get(ctx, id.ResourceGroup, id.Name,
			&armcompute.VirtualMachinesClientGetOptions{Expand: to.Ptr(armcompute.InstanceViewTypesInstanceView)})
		if err != nil {
			return m, failed(err)
		}
		if m, err = ofVM(&answer.VirtualMachine); err != nil {
			return m, fmt.Errorf("%s: %w", doing, err)
		}
		if m.flexible != "" {
			m.Group = p.groupOfSet(id.ResourceGroup, m.flexible)
		}
	}
	if !m.id.Same(id) {
		return m, fmt.Errorf("%s: the answer is about %s", doing, m.id)
	}
	return m, m.crossCheck()
}

// ofScaleSetVM reads an instance of a uniform scale set. One without ID or state is an answer cut short.
func ofScaleSetVM(vm *armcompute.VirtualMachineScaleSetVM) (found, error) {
	if vm == nil || vm.ID == nil || vm.Properties == nil {
		return found{}, fmt.Errorf("%w: an instance has no ID or no properties", errIncomplete)
	}
	properties := vm.Properties
	m, err := identified(*vm.ID, vm.Name, vm.Zones, vm.Tags, properties.TimeCreated, properties.OSProfile)
	if err != nil {
		return found{}, err
	}
	m.UniqueID = value(properties.VMID)
	if vm.SKU != nil {
		m.Type = value(vm.SKU.Name)
	}
	var statuses []*armcompute.InstanceViewStatus
	if properties.InstanceView != nil {
		statuses = properties.InstanceView.Statuses
	}
	m.readState(value(properties.ProvisioningState), statuses)
	if policy := properties.ProtectionPolicy; policy != nil && value(policy.ProtectFromScaleSetActions) && m.State != cloud.Deleting {
		m.Kept, m.KeptReason = true, "its protection policy has protectFromScaleSetActions"
	}
	return m, nil
}

// KeepsMachines implements [cloud.Keeper]: an instance of a uniform scale set, an agent pool's too, is kept whose protection
// policy has protectFromScaleSetActions, since neither the scale set nor AKS deletes it. protectFromScaleIn does not keep
// one: it is about whom Azure chooses itself. A machine of an agent pool with the scaleDownMode Deallocate is kept too.
func (p *Provider) KeepsMachines() {}

// ofVM reads a virtual machine on its own or of a flexible scale set.
func ofVM(vm *armcompute.VirtualMachine) (found, error) {
	if vm == nil || vm.ID == nil || vm.Properties == nil {
		return found{}, fmt.Errorf("%w: a machine has no ID or no properties", errIncomplete)
	}
	properties := vm.Properties
	m, err := identified(*vm.ID, vm.Name, vm.Zones, vm.Tags, properties.TimeCreated, properties.OSProfile)
	if err != nil {
		return found{}, err
	}
	m.UniqueID = value(properties.VMID)
	if properties.HardwareProfile != nil {
		m.Type = string(value(properties.HardwareProfile.VMSize))
	}
	if set := properties.VirtualMachineScaleSet; set != nil && set.ID != nil {
		m.flexible = (*set.ID)[strings.LastIndex(*set.ID, "/")+1:]
	}
	var statuses []*armcompute.InstanceViewStatus
	if properties.InstanceView != nil {
		statuses = properties.InstanceView.Statuses
	}
	m.readState(value(properties.ProvisioningState), statuses)
	m.detaches = detachesOf(properties)
	return m, nil
}

// detachesOf names a machine's disks and network interfaces that have another deleteOption than Delete.
func detachesOf(properties *armcompute.VirtualMachineProperties) (names []string) {
	disk := func(kind string, name *string, option *armcompute.DiskDeleteOptionTypes) {
		if value(option) != armcompute.DiskDeleteOptionTypesDelete {
			names = append(names, kind+" "+value(name))
		}
	}
	if storage := properties.StorageProfile; storage != nil {
		if os := storage.OSDisk; os != nil {
			disk("OS disk", os.Name, os.DeleteOption)
		}
		for _, data := range storage.DataDisks {
			if data != nil {
				disk("data disk", data.Name, data.DeleteOption)
			}
		}
	}
	if network := properties.NetworkProfile; network != nil {
		for _, nic := range network.NetworkInterfaces {
			if nic == nil || nic.Properties != nil && value(nic.Properties.DeleteOption) == armcompute.DeleteOptionsDelete {
				continue
			}
			id := value(nic.ID)
			names = append(names, "network interface "+id[strings.LastIndex(id, "/")+1:])
		}
	}
	return names
}

// identified is a machine as far as both kinds of answer describe it alike.
func identified(resource string, name *string, zones []*string, tags map[string]*string, created *time.Time,
	system *armcompute.OSProfile,
) (found, error) {
	id, err := providerid.ParseResource(resource)
	if err != nil {
		return found{}, err
	}
	m := found{id: id, Instance: cloud.Instance{
		ProviderID: id.String(), Name: value(name), Zone: first(zones), Tags: text(tags), Created: value(created),
	}}
	if system != nil {
		m.ComputerName = value(system.ComputerName)
	}
	return m, nil
}

// readState reads how far a machine's life has come from its provisioning state, and whether it runs from the statuses of
// its instance view, which it may lack. The message is Azure's own of a failure.
func (m *found) readState(provisioning string, statuses []*armcompute.InstanceViewStatus) {
	const failed = "provisioningstate/failed"
	power, reason := "", ""
	for _, s := range statuses {
		if s == nil {
			continue
		}
		code := value(s.Code)
		if state, ok := strings.CutPrefix(strings.ToLower(code), "powerstate/"); ok {
			power = state
		}
		if strings.EqualFold(provisioning, "failed") && strings.HasPrefix(strings.ToLower(code), failed) {
			reason = strings.TrimPrefix(strings.ToLower(code)[len(failed):], "/")
			failure := apiError{Code: code[strings.LastIndex(code, "/")+1:], Message: value(s.Message)}
			m.Refusal, m.Message = failure.refusal(), cloud.Printable(code+": "+failure.Message, maxMessage)
		}
	}
	if m.State = stateOf(provisioning, power, reason); m.State != cloud.Failed {
		m.Refusal, m.Message = "", ""
	}
}

// stateOf combines a machine's provisioning state, its power state and the code of its failure; each may be empty. Failed is the result
// of the last operation: a machine that runs has been made, and something else failed afterwards. It is believed only of a machine
// that is known not to run, as one that could not be made.
func stateOf(provisioning, power, reason string) cloud.State {
	switch strings.ToLower(provisioning) {
	case "creating":
		return cloud.Pending
	case "deleting":
		return cloud.Deleting
	case "failed":
		switch power {
		case "running", "starting":
			return cloud.Running
		case "stopped", "stopping", "deallocated", "deallocating":
			return cloud.Failed
		case "":
			if reason != "" && !failsWhileRunning(reason) {
				return cloud.Failed
			}
		}
	case "succeeded", "updating", "migrating":
		switch power {
		case "stopped", "stopping", "deallocated", "deallocating":
			return cloud.Stopped
		}
		return cloud.Running
	}
	return cloud.Unknown
}

// failsWhileRunning reports whether a code is of a failure in a machine that runs. Azure leaves the power state out of an instance
// view now and then (https://learn.microsoft.com/azure/virtual-machines/states-billing), so that it may run all the same.
func failsWhileRunning(code string) bool {
	return slices.ContainsFunc([]string{"vmextension", "vmagent", "osprovisioning"}, func(prefix string) bool { return strings.HasPrefix(code, prefix) })
}

func first(list []*string) string {
	if len(list) == 0 {
		return ""
	}
	return value(list[0])
}

func text(tags map[string]*string) map[string]string {
	plain := make(map[string]string, len(tags))
	for k, v := range maps.All(tags) {
		plain[k] = value(v)
	}
	return plain
}

// followPause is how long a machine that is being deleted is left alone between two looks.
const followPause = 5 * time.Second
