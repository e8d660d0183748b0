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

// vmInstance is an instance as Azure describes it, with the data for its deletion.
type vmInstance struct {
	cloud.Instance
	id       providerid.ID
	flexible string // the flexible scale set of the instance, if any
	// resourcesKeptOnDelete lists the disks and network interfaces that Azure keeps when it deletes a single virtual machine.
	resourcesKeptOnDelete []string
}

// Instances lists the instances of a group.
func (p *Provider) Instances(ctx context.Context, name string) ([]cloud.Instance, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return nil, err
	}
	var machines []vmInstance
	if g.isPool() {
		machines, err = p.listPoolInstances(ctx, g)
	} else {
		machines, err = p.readScaleSetInstances(ctx, g)
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

// readScaleSetInstances lists the instances of a scale set. It reads the scale set first: Azure returns an empty list for a scale set
// that does not exist, uniform or flexible.
func (p *Provider) readScaleSetInstances(ctx context.Context, g group) ([]vmInstance, error) {
	set, err := p.getScaleSet(ctx, g)
	if err != nil {
		return nil, err
	}
	return p.listScaleSetInstances(ctx, g, set)
}

func (p *Provider) listScaleSetInstances(ctx context.Context, g group, set armcompute.VirtualMachineScaleSet) ([]vmInstance, error) {
	if set.Properties == nil {
		return nil, fmt.Errorf("reading %s: %w: it has no properties", g, errIncomplete)
	}
	if deref(set.Properties.OrchestrationMode) == armcompute.OrchestrationModeFlexible {
		return p.listFlexibleInstances(ctx, g)
	}
	return p.listUniformInstances(ctx, g)
}

func (p *Provider) listUniformInstances(ctx context.Context, g group) ([]vmInstance, error) {
	pager := p.clients.instances.NewListPager(g.resourceGroup, g.scaleSet,
		&armcompute.VirtualMachineScaleSetVMsClientListOptions{Expand: to.Ptr("instanceView")})
	instances := func(r armcompute.VirtualMachineScaleSetVMsClientListResponse) []*armcompute.VirtualMachineScaleSetVM {
		return r.Value
	}
	all, err := listAllPages(ctx, fmt.Sprintf("listing the instances of %s", g), pager, instances, fromScaleSetVM)
	return all, toGroupNotFound(g, err)
}

// listFlexibleInstances lists the instances of a flexible scale set, which are virtual machines with a reference to it.
func (p *Provider) listFlexibleInstances(ctx context.Context, g group) ([]vmInstance, error) {
	setID := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachineScaleSets/%s",
		p.config.Subscription, g.resourceGroup, g.scaleSet)
	pager := p.clients.vms.NewListPager(g.resourceGroup, &armcompute.VirtualMachinesClientListOptions{
		Filter: to.Ptr("'virtualMachineScaleSet/id' eq '" + setID + "'"),
		Expand: to.Ptr(armcompute.ExpandTypeForListVMsInstanceView),
	})
	vms := func(r armcompute.VirtualMachinesClientListResponse) []*armcompute.VirtualMachine { return r.Value }
	machines, err := listAllPages(ctx, fmt.Sprintf("listing the instances of %s", g), pager, vms, fromVM)
	return slices.DeleteFunc(machines, func(m vmInstance) bool { return !strings.EqualFold(m.flexible, g.scaleSet) }), toGroupNotFound(g, err)
}

// listAllPages reads all pages of a list and returns all items or an error (I7). A page without a value is truncated.
func listAllPages[Page, Item, T any](ctx context.Context, doing string, pager *runtime.Pager[Page],
	items func(Page) []Item, read func(Item) (T, error),
) ([]T, error) {
	var all []T
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, fromSDKError(doing, err)
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

// Instance reads one instance.
func (p *Provider) Instance(ctx context.Context, providerID string) (cloud.Instance, error) {
	id, err := p.parseID(providerID)
	if err != nil {
		return cloud.Instance{}, err
	}
	if err := p.takeRecentNotFound(id); err != nil {
		return cloud.Instance{}, err
	}
	at := time.Now()
	m, err := p.fetchInstance(ctx, id)
	if err != nil {
		return cloud.Instance{}, err
	}
	if id.ScaleSet != "" || m.flexible != "" { // Azure accepts the deletion of a single VM that is gone without an error
		p.cacheRead(id, recentRead{vmInstance: m, readAt: at})
	}
	member, inPool, err := p.findPoolMember(ctx, id)
	if err != nil {
		return cloud.Instance{}, err
	}
	if inPool {
		m.Group = member.pool.name
		protectedReason, err := p.poolProtectionReason(ctx, member.pool)
		if err != nil {
			return cloud.Instance{}, err
		}
		m.protect(protectedReason)
	}
	return m.Instance, nil
}

// recentRead is a cached read of an instance.
type recentRead struct {
	vmInstance
	notFound error // set if the instance does not exist
	readAt   time.Time
}

// maxReadAge is how long a read is reused: by Delete and by the permission check after Instance, and by Instance after
// Status has found that the instance is gone.
const maxReadAge = 5 * time.Second

func (p *Provider) cacheRead(id providerid.ID, r recentRead) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.recentReads, func(_ string, old recentRead) bool { return time.Since(old.readAt) >= maxReadAge })
	p.recentReads[id.String()] = r
}

// cachedOrFetchedInstance returns an instance from a recent read, or reads it.
func (p *Provider) cachedOrFetchedInstance(ctx context.Context, id providerid.ID) (vmInstance, error) {
	p.mu.Lock()
	r, found := p.recentReads[id.String()]
	p.mu.Unlock()
	if found && r.notFound == nil && time.Since(r.readAt) < maxReadAge {
		return r.vmInstance, nil
	}
	return p.fetchInstance(ctx, id)
}

// takeRecentNotFound returns the error of a recent Status that found the instance gone, once, and nil otherwise.
func (p *Provider) takeRecentNotFound(id providerid.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.recentReads[id.String()]
	if r.notFound == nil || time.Since(r.readAt) >= maxReadAge {
		return nil
	}
	delete(p.recentReads, id.String())
	return r.notFound
}

// forgetRead removes the cached read of an instance.
func (p *Provider) forgetRead(id providerid.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.recentReads, id.String())
}

// NotFoundMeansDeleted returns true for every provider ID of the subscription. Instance reads the resource ID from compute,
// independent of the group. It asks AKS only afterwards, about an instance that exists. That holds for
// uniform and flexible scale sets, also for a detached instance, which keeps its ID, for instances that AKS manages one
// by one, and for single virtual machines.
//
// If the credential may not read the instance, the error is AuthorizationFailed. An unknown subscription or resource
// group is not a [cloud.NotFoundError] either, see goneCodes.
//
// An instance that moved to another resource group has a new ID. Its Node keeps the old ID. The cloud provider of Azure
// itself deletes such a Node as soon as it is not Ready.
func (p *Provider) NotFoundMeansDeleted(providerID string) bool {
	_, err := p.parseID(providerID)
	return err == nil
}

// fetchInstance reads an instance. Group is its scale set, even if it belongs to an agent pool.
func (p *Provider) fetchInstance(ctx context.Context, id providerid.ID) (vmInstance, error) {
	doing := "reading instance " + id.String()
	failed := func(err error) error {
		if err = fromSDKError(doing, err); isGone(err) {
			return fmt.Errorf("%w (%w)", &cloud.NotFoundError{Kind: "instance", Name: id.String()}, err)
		}
		return err
	}
	var m vmInstance
	if id.ScaleSet != "" {
		answer, err := p.clients.instances.Get(ctx, id.ResourceGroup, id.ScaleSet, id.Name,
			&armcompute.VirtualMachineScaleSetVMsClientGetOptions{Expand: to.Ptr(armcompute.InstanceViewTypesInstanceView)})
		if err != nil {
			return m, failed(err)
		}
		if m, err = fromScaleSetVM(&answer.VirtualMachineScaleSetVM); err != nil {
			return m, fmt.Errorf("%s: %w", doing, err)
		}
		m.Group = p.groupNameOfScaleSet(id.ResourceGroup, id.ScaleSet)
	} else {
		answer, err := p.clients.vms.Get(ctx, id.ResourceGroup, id.Name,
			&armcompute.VirtualMachinesClientGetOptions{Expand: to.Ptr(armcompute.InstanceViewTypesInstanceView)})
		if err != nil {
			return m, failed(err)
		}
		if m, err = fromVM(&answer.VirtualMachine); err != nil {
			return m, fmt.Errorf("%s: %w", doing, err)
		}
		if m.flexible != "" {
			m.Group = p.groupNameOfScaleSet(id.ResourceGroup, m.flexible)
		}
	}
	if !m.id.Equal(id) {
		return m, fmt.Errorf("%s: the response is about %s", doing, m.id)
	}
	return m, m.checkComputerNameMatchesID()
}

// fromScaleSetVM converts an instance of a uniform scale set. An instance without ID or state is a truncated response.
func fromScaleSetVM(vm *armcompute.VirtualMachineScaleSetVM) (vmInstance, error) {
	if vm == nil || vm.ID == nil || vm.Properties == nil {
		return vmInstance{}, fmt.Errorf("%w: an instance has no ID or no properties", errIncomplete)
	}
	properties := vm.Properties
	m, err := newVMInstance(*vm.ID, vm.Name, vm.Zones, vm.Tags, properties.TimeCreated, properties.OSProfile)
	if err != nil {
		return vmInstance{}, err
	}
	m.UniqueID = deref(properties.VMID)
	if vm.SKU != nil {
		m.Type = deref(vm.SKU.Name)
	}
	var statuses []*armcompute.InstanceViewStatus
	if properties.InstanceView != nil {
		statuses = properties.InstanceView.Statuses
	}
	m.setState(deref(properties.ProvisioningState), statuses)
	if policy := properties.ProtectionPolicy; policy != nil && deref(policy.ProtectFromScaleSetActions) && m.State != cloud.Deleting {
		m.DeletionProtected, m.DeletionProtectionReason = true, "its protection policy has protectFromScaleSetActions"
	}
	return m, nil
}

// ReportsDeletionProtection marks a provider with deletion protection. The scale set and AKS both refuse to delete an instance with
// protectFromScaleSetActions in its protection policy. protectFromScaleIn does not protect against a deletion by ID.
// Instances of an agent pool with scaleDownMode Deallocate are protected too.
func (p *Provider) ReportsDeletionProtection() {}

// fromVM converts a virtual machine, single or of a flexible scale set.
func fromVM(vm *armcompute.VirtualMachine) (vmInstance, error) {
	if vm == nil || vm.ID == nil || vm.Properties == nil {
		return vmInstance{}, fmt.Errorf("%w: an instance has no ID or no properties", errIncomplete)
	}
	properties := vm.Properties
	m, err := newVMInstance(*vm.ID, vm.Name, vm.Zones, vm.Tags, properties.TimeCreated, properties.OSProfile)
	if err != nil {
		return vmInstance{}, err
	}
	m.UniqueID = deref(properties.VMID)
	if properties.HardwareProfile != nil {
		m.Type = string(deref(properties.HardwareProfile.VMSize))
	}
	if set := properties.VirtualMachineScaleSet; set != nil && set.ID != nil {
		m.flexible = (*set.ID)[strings.LastIndex(*set.ID, "/")+1:]
	}
	var statuses []*armcompute.InstanceViewStatus
	if properties.InstanceView != nil {
		statuses = properties.InstanceView.Statuses
	}
	m.setState(deref(properties.ProvisioningState), statuses)
	m.resourcesKeptOnDelete = listResourcesKeptOnDelete(properties)
	return m, nil
}

// listResourcesKeptOnDelete lists the disks and network interfaces with a deleteOption other than Delete.
func listResourcesKeptOnDelete(properties *armcompute.VirtualMachineProperties) (names []string) {
	disk := func(kind string, name *string, option *armcompute.DiskDeleteOptionTypes) {
		if deref(option) != armcompute.DiskDeleteOptionTypesDelete {
			names = append(names, kind+" "+deref(name))
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
			if nic == nil || nic.Properties != nil && deref(nic.Properties.DeleteOption) == armcompute.DeleteOptionsDelete {
				continue
			}
			id := deref(nic.ID)
			names = append(names, "network interface "+id[strings.LastIndex(id, "/")+1:])
		}
	}
	return names
}

// newVMInstance converts the fields that both kinds of responses share.
func newVMInstance(resource string, name *string, zones []*string, tags map[string]*string, created *time.Time,
	system *armcompute.OSProfile,
) (vmInstance, error) {
	id, err := providerid.ParseResourceID(resource)
	if err != nil {
		return vmInstance{}, err
	}
	m := vmInstance{id: id, Instance: cloud.Instance{
		ProviderID: id.String(), Name: deref(name), Zone: firstValue(zones), Tags: toTags(tags), Created: deref(created),
	}}
	if system != nil {
		m.ComputerName = deref(system.ComputerName)
	}
	return m, nil
}

// setState sets the state from the provisioning state and the instance view, which may be missing, and the message of
// a failure.
func (m *vmInstance) setState(provisioning string, statuses []*armcompute.InstanceViewStatus) {
	const failed = "provisioningstate/failed"
	power, reason := "", ""
	for _, s := range statuses {
		if s == nil {
			continue
		}
		code := deref(s.Code)
		if state, ok := strings.CutPrefix(strings.ToLower(code), "powerstate/"); ok {
			power = state
		}
		if strings.EqualFold(provisioning, "failed") && strings.HasPrefix(strings.ToLower(code), failed) {
			reason = strings.TrimPrefix(strings.ToLower(code)[len(failed):], "/")
			failure := apiError{Code: code[strings.LastIndex(code, "/")+1:], Message: deref(s.Message)}
			m.Refusal, m.Message = failure.refusalReason(), cloud.SanitizeText(code+": "+failure.Message, maxMessageLength)
		}
	}
	if m.State = toState(provisioning, power, reason); m.State != cloud.Failed {
		m.Refusal, m.Message = "", ""
	}
}

// toState combines the provisioning state, the power state and the failure code. Each may be empty. The provisioning
// state Failed is the result of the last operation. A running instance was created, and a later operation failed. So
// the result is Failed only if the instance is known not to run, or was never created.
func toState(provisioning, power, reason string) cloud.State {
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
			if reason != "" && !canFailWhileRunning(reason) {
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

// canFailWhileRunning reports whether a failure code occurs on running instances. Azure sometimes omits the power state
// from the instance view (https://learn.microsoft.com/azure/virtual-machines/states-billing), so the instance may be
// running.
func canFailWhileRunning(code string) bool {
	return slices.ContainsFunc([]string{"vmextension", "vmagent", "osprovisioning"}, func(prefix string) bool { return strings.HasPrefix(code, prefix) })
}

func firstValue(list []*string) string {
	if len(list) == 0 {
		return ""
	}
	return deref(list[0])
}

func toTags(tags map[string]*string) map[string]string {
	plain := make(map[string]string, len(tags))
	for k, v := range maps.All(tags) {
		plain[k] = deref(v)
	}
	return plain
}

// deletionPollInterval is the polling interval for an instance that is being deleted.
const deletionPollInterval = 5 * time.Second
