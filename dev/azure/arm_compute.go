package azure

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// findRequestedScaleSetLocked returns the scale set in a request's path. The caller holds the lock.
func (a *ARM) findRequestedScaleSetLocked(r *http.Request) (*armSet, *armError) {
	set := a.sets[strings.ToLower(r.PathValue("set"))]
	if set == nil || !strings.EqualFold(r.PathValue("group"), a.opts.ResourceGroup) {
		return nil, newNotFoundError("Microsoft.Compute/virtualMachineScaleSets", r.PathValue("set"))
	}
	return set, nil
}

func (a *ARM) listScaleSets(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var sets []*armSet
	for _, set := range a.sets {
		sets = append(sets, set)
	}
	name := func(s *armSet) string { return s.Name }
	slices.SortFunc(sets, func(x, y *armSet) int { return compareNatural(x.Name, y.Name) })
	return newPage(a, r, sets, name, a.scaleSetJSON), nil
}

func (a *ARM) getScaleSet(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set, err := a.findRequestedScaleSetLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	return armResponse{status: http.StatusOK, body: a.scaleSetJSON(set)}, nil
}

func (a *ARM) scaleSetJSON(set *armSet) any {
	mode, priority := "Uniform", "Regular"
	if set.Flexible {
		mode = "Flexible"
	}
	if set.Spot {
		priority = "Spot"
	}
	profile := map[string]any{"priority": priority}
	if set.Spot {
		profile["evictionPolicy"] = cmp.Or(set.EvictionPolicy, EvictionDelete)
	}
	return map[string]any{
		"name": set.Name, "id": a.capitalizeGroup(a.scaleSetID(set.Name)), "type": "Microsoft.Compute/virtualMachineScaleSets",
		"location": a.opts.Location, "tags": set.Tags, "zones": set.Zones, "etag": formatETag(set.etag),
		"sku": map[string]any{"name": set.Size, "tier": "Standard", "capacity": set.capacity},
		"properties": map[string]any{
			"orchestrationMode": mode, "provisioningState": set.state(), "singlePlacementGroup": false, "overprovision": set.Overprovision,
			"upgradePolicy":         map[string]any{"mode": "Manual"},
			"virtualMachineProfile": profile,
			"spotRestorePolicy":     map[string]any{"enabled": set.RestoreEvicted},
		},
	}
}

// state returns Updating during the last change through compute, and then its result.
func (s *armSet) state() ProvisioningState {
	switch {
	case s.busy == nil:
		return Succeeded
	case s.busy.ended.IsZero():
		return Updating
	case s.busy.err != nil:
		return Failed
	}
	return Succeeded
}

func formatETag(n int) string { return `"` + strconv.Itoa(n) + `"` }

// capitalizeGroup writes an ID as Azure's responses do, with the resource group in capitals.
func (a *ARM) capitalizeGroup(id string) string {
	return strings.Replace(id, a.opts.ResourceGroup, strings.ToUpper(a.opts.ResourceGroup), 1)
}

// checkETag refuses a change of a resource that has changed since the client read it.
func checkETag(r *http.Request, now int) *armError {
	if want := r.Header.Get("If-Match"); want != "" && want != "*" && want != formatETag(now) {
		return &armError{
			Status: http.StatusPreconditionFailed, Code: "PreconditionFailed",
			Message: "The precondition given in the request header(s) evaluated to false.",
		}
	}
	return nil
}

func (a *ARM) patchScaleSet(r *http.Request) (armResponse, *armError) {
	var request struct {
		SKU struct {
			Capacity *int `json:"capacity"`
		} `json:"sku"`
		Tags map[string]string `json:"tags"`
	}
	if err := decodeBody(r, &request); err != nil {
		return armResponse{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	set, err := a.findRequestedScaleSetLocked(r)
	if err == nil {
		err = checkETag(r, set.etag)
	}
	if err != nil {
		return armResponse{}, err
	}
	if busy := a.checkScaleSetIdleLocked(set); busy != nil {
		return armResponse{}, busy
	}
	if request.Tags != nil {
		set.Tags = request.Tags
		set.etag++
	}
	if request.SKU.Capacity == nil {
		return armResponse{status: http.StatusOK, body: a.scaleSetJSON(set)}, nil
	}
	if n := *request.SKU.Capacity; n < 0 || n > maxCapacity {
		return armResponse{}, newParameterError("sku.capacity", "The value %d of parameter 'sku.capacity' is out of range: 0 to %d.", n, maxCapacity)
	}
	op, err := a.resizeLocked(computeNamespace, setWrite, set, *request.SKU.Capacity)
	if err != nil {
		return armResponse{}, err
	}
	set.busy = op
	return a.newAcceptedResponse(r, op, http.StatusOK, a.scaleSetJSON(set)), nil
}

// checkScaleSetIdleLocked refuses a change during another change of the scale set, if SerializeChanges is set.
func (a *ARM) checkScaleSetIdleLocked(set *armSet) *armError {
	if !a.opts.SerializeChanges || set.busy == nil || !set.busy.ended.IsZero() {
		return nil
	}
	return &armError{Status: http.StatusConflict, Code: "OperationNotAllowed", Message: fmt.Sprintf(
		"Operation is not allowed on VM Scale Set '%s' since another operation is in progress.", set.Name)}
}

// maxCapacity is the documented limit of a scale set on a marketplace image.
const maxCapacity = 1000

func (a *ARM) deleteInstances(r *http.Request) (armResponse, *armError) {
	var request struct {
		InstanceIDs []string `json:"instanceIds"`
	}
	if err := decodeBody(r, &request); err != nil {
		return armResponse{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	set, err := a.findRequestedScaleSetLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	if len(request.InstanceIDs) == 0 {
		return armResponse{}, newParameterError("instanceIds", "Required parameter 'instanceIds' is missing (null).")
	}
	var machines []*armVM
	for _, id := range request.InstanceIDs {
		m := a.findMemberLocked(set, id)
		if m == nil {
			return armResponse{}, newParameterError("instanceIds",
				"The provided instanceId %s is not an active Virtual Machine Scale Set VM instanceId.", id)
		}
		machines = append(machines, m)
	}
	if busy := a.checkScaleSetIdleLocked(set); busy != nil {
		return armResponse{}, busy
	}
	return a.startDeletionUnlessProtected(r, setDelete, machines)
}

// startDeletionUnlessProtected starts a deletion in compute, unless a machine is protected.
func (a *ARM) startDeletionUnlessProtected(r *http.Request, action string, machines []*armVM) (armResponse, *armError) {
	for _, m := range machines {
		if m.Protected {
			return armResponse{}, &armError{
				Status: http.StatusConflict, Code: "OperationNotAllowed",
				Message: fmt.Sprintf("Delete is not allowed on VM %s: ProtectFromScaleSetActions is enabled.", m.Resource),
			}
		}
	}
	op := a.startDeletionLocked(computeNamespace, action, machines)
	for _, m := range machines {
		if m.set != nil {
			m.set.busy = op
		}
	}
	return a.newAcceptedResponse(r, op, http.StatusAccepted, nil), nil
}

// findMemberLocked finds a machine of a set by its instance ID.
func (a *ARM) findMemberLocked(set *armSet, id string) *armVM {
	name := set.Name + "_" + id
	if set.Flexible {
		name = id
	}
	if m := a.machines[strings.ToLower(name)]; m != nil && m.set == set {
		return m
	}
	return nil
}

func (a *ARM) listInstances(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set, err := a.findRequestedScaleSetLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	if set.Flexible {
		return armResponse{}, &armError{Status: http.StatusBadRequest, Code: "BadRequest", Message: fmt.Sprintf(
			"Operation 'VirtualMachineScaleSets.virtualMachines.GET' is not allowed on Virtual Machine Scale Set '%s'.", set.Name)}
	}
	return a.newVMPageLocked(r, func(m VM) bool { return strings.EqualFold(m.ScaleSet, set.Name) }), nil
}

func (a *ARM) newVMPageLocked(r *http.Request, wanted func(VM) bool) armResponse {
	machines := a.listVMsLocked()
	if stale := staleVMs(r); stale != nil {
		machines = stale
	}
	machines = slices.DeleteFunc(slices.Clone(machines), func(m VM) bool { return !wanted(m) })
	view := strings.EqualFold(r.URL.Query().Get("$expand"), "instanceView")
	return newPage(a, r, machines, func(m VM) string { return m.Resource }, func(m VM) any {
		return a.machineJSON(m, view)
	})
}

// findRequestedInstanceLocked returns the instance in a request's path.
func (a *ARM) findRequestedInstanceLocked(r *http.Request) (*armVM, *armError) {
	set, err := a.findRequestedScaleSetLocked(r)
	if err != nil {
		return nil, err
	}
	m := a.findMemberLocked(set, r.PathValue("instance"))
	if m == nil {
		return nil, newNotFoundError("Microsoft.Compute/virtualMachineScaleSets/"+set.Name+"/virtualMachines", r.PathValue("instance"))
	}
	return m, nil
}

func (a *ARM) getInstance(r *http.Request) (armResponse, *armError) {
	return a.serveVM(r, a.findRequestedInstanceLocked, true)
}

func (a *ARM) getInstanceView(r *http.Request) (armResponse, *armError) {
	return a.serveInstanceView(r, a.findRequestedInstanceLocked)
}

func (a *ARM) getVM(r *http.Request) (armResponse, *armError) {
	return a.serveVM(r, a.findRequestedVMLocked, false)
}

func (a *ARM) getVMView(r *http.Request) (armResponse, *armError) {
	return a.serveInstanceView(r, a.findRequestedVMLocked)
}

// serveVM returns a machine, if it matches the kind of the path.
func (a *ARM) serveVM(r *http.Request, find func(*http.Request) (*armVM, *armError), inSet bool) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m, err := find(r)
	if err != nil {
		return armResponse{}, err
	}
	if inSet && m.set.Flexible {
		return armResponse{}, newNotFoundError("Microsoft.Compute/virtualMachineScaleSets/virtualMachines", m.InstanceID)
	}
	view := strings.EqualFold(r.URL.Query().Get("$expand"), "instanceView")
	return armResponse{status: http.StatusOK, body: a.machineJSON(m.VM, view)}, nil
}

func (a *ARM) serveInstanceView(r *http.Request, find func(*http.Request) (*armVM, *armError)) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m, err := find(r)
	if err != nil {
		return armResponse{}, err
	}
	return armResponse{status: http.StatusOK, body: instanceViewJSON(m.VM)}, nil
}

func (a *ARM) deleteInstance(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m, err := a.findRequestedInstanceLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	return a.startDeletionUnlessProtected(r, instanceDel, []*armVM{m})
}

// findRequestedVMLocked returns the standalone machine, or machine of a flexible scale set, in a request's path.
func (a *ARM) findRequestedVMLocked(r *http.Request) (*armVM, *armError) {
	m := a.machines[strings.ToLower(r.PathValue("vm"))]
	if m == nil || (m.set != nil && !m.set.Flexible) {
		return nil, newNotFoundError("Microsoft.Compute/virtualMachines", r.PathValue("vm"))
	}
	return m, nil
}

func (a *ARM) listVMs(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := func(m VM) bool {
		set := a.sets[strings.ToLower(m.ScaleSet)]
		return set == nil || set.Flexible
	}
	if filter := r.URL.Query().Get("$filter"); filter != "" {
		id, ok := strings.CutPrefix(filter, "'virtualMachineScaleSet/id' eq '")
		if !ok || !strings.HasSuffix(id, "'") {
			return armResponse{}, newParameterError("$filter", "The filter %q is not supported.", filter)
		}
		inGroup := wanted
		wanted = func(m VM) bool {
			return inGroup(m) && m.ScaleSet != "" && strings.EqualFold(a.scaleSetID(m.ScaleSet)+"'", id)
		}
	}
	return a.newVMPageLocked(r, wanted), nil
}

func (a *ARM) deleteVM(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[strings.ToLower(r.PathValue("vm"))]
	if m == nil || (m.set != nil && !m.set.Flexible) {
		return armResponse{status: http.StatusNoContent}, nil // deleting a missing machine succeeds
	}
	return a.startDeletionUnlessProtected(r, vmDelete, []*armVM{m})
}

func (a *ARM) machineJSON(m VM, includeInstanceView bool) any {
	id := strings.TrimPrefix(m.ProviderID, "azure://")
	properties := map[string]any{
		"provisioningState": m.State, "timeCreated": m.Created.Format(time.RFC3339Nano),
		"osProfile": map[string]any{"computerName": m.ComputerName}, "vmId": m.UniqueID,
	}
	body := map[string]any{
		"name": m.Resource, "id": a.capitalizeGroup(id), "location": a.opts.Location, "tags": m.Tags, "properties": properties,
		"type": "Microsoft.Compute/virtualMachines",
	}
	if includeInstanceView {
		properties["instanceView"] = instanceViewJSON(m)
	}
	if m.Zone != "" {
		body["zones"] = []string{m.Zone}
	}
	if set := a.sets[strings.ToLower(m.ScaleSet)]; set != nil && !set.Flexible {
		body["type"], body["instanceId"] = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines", m.InstanceID
		body["sku"] = map[string]any{"name": m.Size, "tier": "Standard"}
		properties["latestModelApplied"] = true
		if m.Protected {
			properties["protectionPolicy"] = map[string]any{"protectFromScaleIn": true, "protectFromScaleSetActions": true}
		}
		return body
	}
	properties["hardwareProfile"] = map[string]any{"vmSize": m.Size}
	a.addAttachments(properties, m.Attached)
	if m.ScaleSet != "" {
		properties["virtualMachineScaleSet"] = map[string]any{"id": a.capitalizeGroup(a.scaleSetID(m.ScaleSet))}
	}
	return body
}

// addAttachments adds the attached resources of a machine in compute's form.
func (a *ARM) addAttachments(properties map[string]any, attached []Attachment) {
	storage, disks, interfaces := map[string]any{}, []any{}, []any{}
	for _, at := range attached {
		disk := map[string]any{"name": at.Name, "managedDisk": map[string]any{
			"id": a.capitalizeGroup(a.groupID() + "/providers/Microsoft.Compute/disks/" + at.Name),
		}}
		if at.DeleteOption != "" {
			disk["deleteOption"] = at.DeleteOption
		}
		switch at.Kind {
		case "OSDisk":
			storage["osDisk"] = disk
		case "DataDisk":
			disks = append(disks, disk)
		default:
			options := map[string]any{}
			if at.DeleteOption != "" {
				options["deleteOption"] = at.DeleteOption
			}
			interfaces = append(interfaces, map[string]any{
				"id": a.capitalizeGroup(a.groupID() + "/providers/Microsoft.Network/networkInterfaces/" + at.Name), "properties": options,
			})
		}
	}
	storage["dataDisks"] = disks
	properties["storageProfile"] = storage
	properties["networkProfile"] = map[string]any{"networkInterfaces": interfaces}
}

func instanceViewJSON(m VM) any {
	provisioning := map[string]any{
		"code": "ProvisioningState/" + strings.ToLower(string(m.State)), "level": "Info", "displayStatus": "Provisioning " + string(m.State),
	}
	if m.State == Failed {
		provisioning["code"], provisioning["level"] = "ProvisioningState/failed/"+cmp.Or(m.Failure, failureCode), "Error"
		provisioning["message"] = failureMessage
	}
	statuses := []any{provisioning}
	if m.Power != "" { // the machine could not be created
		statuses = append(statuses, map[string]any{
			"code": "PowerState/" + string(m.Power), "level": "Info", "displayStatus": "VM " + string(m.Power),
		})
	}
	return map[string]any{"computerName": m.ComputerName, "statuses": statuses}
}

// Azure's error for a deletion that failed without another reason.
const (
	failureCode    = "InternalExecutionError"
	failureMessage = "An internal execution error occurred. Please retry later."
)

// applyDeletionFault waits and fails as the fault for this machine's deletion demands.
func (a *ARM) applyDeletionFault(ctx context.Context, resource string) *armError {
	for {
		a.mu.Lock()
		fault := a.takeDeletionFaultLocked(resource)
		changed := a.changed
		a.mu.Unlock()
		switch {
		case fault == nil:
			return nil
		case fault.Kind == ARMDeletionFails:
			return &armError{Code: cmp.Or(fault.Code, failureCode), Message: cmp.Or(fault.Message, failureMessage)}
		}
		select { // hangs until the fault is cleared
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
