package azure

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// AgentPoolSpec describes a node pool of a managed cluster to create.
type AgentPoolSpec struct {
	// Cluster and ResourceGroup are the managed cluster's own. Its machines are in another resource group.
	Cluster, ResourceGroup string
	Name                   string
	// ScaleSet is the pool's scale set. It must exist, unless the pool has no machine.
	ScaleSet string
	// AutoScaling lets the cluster autoscaler keep the pool between Min and Max.
	AutoScaling bool
	Min, Max    int
	// SeparateCount gives the pool its own count, which only AKS changes. Machines that compute deletes or evicts stay counted.
	SeparateCount bool
	// Type is VirtualMachineScaleSets (default) or VirtualMachines.
	Type string
	// ScaleDownMode is Delete (default) or Deallocate.
	ScaleDownMode string
	// Labels, Taints ("key=value:effect") and MaxPods apply to the pool's new nodes. MaxPods 0 means not set.
	Labels  map[string]string
	Taints  []string
	MaxPods int
}

// armPool is an agent pool. Its count is the capacity of its scale set, unless SeparateCount gives the pool its own
// count.
type armPool struct {
	AgentPoolSpec
	counted int // the count of a pool that drifts
	tags    map[string]string
	state   ProvisioningState
	etag    int
	set     *armSet
}

// AgentPool is an agent pool of the emulated AKS, as tests see it.
type AgentPool struct {
	Cluster     string            `json:"cluster"`
	Name        string            `json:"name"`
	Count       int               `json:"count"`
	AutoScaling bool              `json:"enableAutoScaling"`
	Min         int               `json:"minCount"`
	Max         int               `json:"maxCount"`
	Tags        map[string]string `json:"tags,omitempty"`
	State       ProvisioningState `json:"provisioningState"`
}

// AddAgentPool creates an agent pool for a scale set.
func (a *ARM) AddAgentPool(spec AgentPoolSpec) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.sets[strings.ToLower(spec.ScaleSet)]
	if set == nil && spec.ScaleSet != "" {
		return fmt.Errorf("agent pool %s: scale set %q: %w", spec.Name, spec.ScaleSet, ErrUnknownResource)
	}
	pool := &armPool{AgentPoolSpec: spec, state: Succeeded, etag: 1, set: set, tags: map[string]string{}}
	a.pools[poolKey(spec.Cluster, spec.Name)] = pool
	if set != nil {
		pool.counted = set.capacity
		set.pool = pool
		for _, m := range a.listMembersLocked(set) {
			m.AgentPool = spec.Name
		}
	}
	return nil
}

// AgentPool returns a copy of an agent pool's current state. It ignores letter case.
func (a *ARM) AgentPool(cluster, name string) (pool AgentPool, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[poolKey(cluster, name)]
	if p == nil {
		return AgentPool{}, false
	}
	return p.toAgentPool(), true
}

// ModifyAgentPool calls change with an agent pool, to set its bounds, tags or autoscaling. This emulates a change by
// another user.
func (a *ARM) ModifyAgentPool(cluster, name string, change func(*AgentPool)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[poolKey(cluster, name)]
	if p == nil {
		return fmt.Errorf("agent pool %s/%s: %w", cluster, name, ErrUnknownResource)
	}
	shown := p.toAgentPool()
	change(&shown)
	p.Min, p.Max, p.tags, p.AutoScaling = shown.Min, shown.Max, shown.Tags, shown.AutoScaling
	p.etag++
	a.notifyWaitersLocked()
	return nil
}

func (p *armPool) toAgentPool() AgentPool {
	tags := make(map[string]string, len(p.tags))
	for k, v := range p.tags {
		tags[k] = v
	}
	return AgentPool{
		Cluster: p.Cluster, Name: p.Name, Count: p.count(), AutoScaling: p.AutoScaling, Min: p.Min, Max: p.Max, Tags: tags, State: p.state,
	}
}

func poolKey(cluster, pool string) string { return strings.ToLower(cluster + "/" + pool) }

func (p *armPool) count() int {
	switch {
	case p.set == nil:
		return 0
	case p.SeparateCount:
		return p.counted
	}
	return p.set.capacity
}

// findRequestedPoolLocked returns the agent pool that the path of a request names.
func (a *ARM) findRequestedPoolLocked(r *http.Request) (*armPool, *armError) {
	cluster, name := r.PathValue("cluster"), r.PathValue("pool")
	pool := a.pools[poolKey(cluster, name)]
	if pool == nil || !strings.EqualFold(pool.ResourceGroup, r.PathValue("group")) {
		return nil, &armError{Status: http.StatusNotFound, Code: "NotFound", flat: true, Message: fmt.Sprintf(
			"Could not find the agent pool %s of managed cluster %s.", name, cluster)}
	}
	return pool, nil
}

func (a *ARM) listPools(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var pools []*armPool
	for _, p := range a.pools {
		if strings.EqualFold(p.Cluster, r.PathValue("cluster")) {
			pools = append(pools, p)
		}
	}
	slices.SortFunc(pools, func(x, y *armPool) int { return compareNatural(x.Name, y.Name) })
	return newPage(a, r, pools, func(p *armPool) string { return p.Name }, a.poolJSON), nil
}

func (a *ARM) getPool(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := a.findRequestedPoolLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	return armResponse{status: http.StatusOK, body: a.poolJSON(pool)}, nil
}

func (p *armPool) id(a *ARM) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.ContainerService/managedClusters/%s/agentPools/%s",
		a.opts.Subscription, p.ResourceGroup, p.Cluster, p.Name)
}

func (a *ARM) poolJSON(p *armPool) any {
	properties := map[string]any{
		"count": p.count(), "provisioningState": p.state, "type": cmp.Or(p.Type, "VirtualMachineScaleSets"), "mode": "User",
		"enableAutoScaling": p.AutoScaling, "osType": "Linux", "eTag": formatETag(p.etag), "tags": p.tags,
		"vmSize": "Standard_D16ds_v5", "orchestratorVersion": "1.34", "currentOrchestratorVersion": "1.34.1",
		"powerState": map[string]any{"code": "Running"}, "scaleDownMode": cmp.Or(p.ScaleDownMode, "Delete"),
		"nodeLabels": p.Labels, "nodeTaints": p.Taints, "scaleSetPriority": "Regular",
	}
	if p.set != nil && p.set.Spot {
		properties["scaleSetPriority"] = "Spot"
	}
	if p.MaxPods > 0 {
		properties["maxPods"] = p.MaxPods
	}
	if p.Type == "VirtualMachines" { // it counts by size
		properties["virtualMachinesProfile"] = map[string]any{"scale": map[string]any{"manual": []any{
			map[string]any{"size": properties["vmSize"], "count": p.count()},
		}}}
		delete(properties, "count")
		delete(properties, "vmSize")
	}
	if p.AutoScaling {
		properties["minCount"], properties["maxCount"] = p.Min, p.Max
	}
	return map[string]any{
		"id": p.id(a), "name": p.Name, "type": "Microsoft.ContainerService/managedClusters/agentPools",
		"properties": properties,
	}
}

// checkPoolIdleLocked returns an error if another change of the pool is running. AKS makes only one change of a pool
// at a time.
func (a *ARM) checkPoolIdleLocked(pool *armPool) *armError {
	if pool.state == Succeeded || pool.state == Failed {
		return nil
	}
	return &armError{Status: http.StatusConflict, Code: "OperationNotAllowed", flat: true, Message: fmt.Sprintf(
		"Operation is not allowed: Another agentpool operation (%s - %s) is in progress, please wait for it to finish before "+
			"starting a new operation. See https://aka.ms/aks-pending-operation for more details", pool.Name, pool.state)}
}

// poolRequest holds the fields of an agent pool that a request may change. A field missing in the request stays
// unchanged.
type poolRequest struct {
	Properties struct {
		Count             *int              `json:"count"`
		MinCount          *int              `json:"minCount"`
		MaxCount          *int              `json:"maxCount"`
		EnableAutoScaling *bool             `json:"enableAutoScaling"`
		Tags              map[string]string `json:"tags"`
	} `json:"properties"`
}

func (a *ARM) putPool(r *http.Request) (armResponse, *armError) {
	var request poolRequest
	if err := decodeBody(r, &request); err != nil {
		return armResponse{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := a.findRequestedPoolLocked(r)
	if err == nil {
		err = a.checkPoolIdleLocked(pool)
	}
	if err == nil {
		err = checkETag(r, pool.etag)
	}
	if err == nil {
		err = request.validate(pool)
	}
	if err != nil {
		return armResponse{}, err
	}
	p := request.Properties
	setIfNotNil(&pool.Min, p.MinCount)
	setIfNotNil(&pool.Max, p.MaxCount)
	setIfNotNil(&pool.AutoScaling, p.EnableAutoScaling)
	pool.tags = p.Tags
	pool.etag++
	var op *armOperation
	if p.Count != nil && pool.set != nil {
		if op, err = a.resizeLocked(aksNamespace, poolWrite, pool.set, *p.Count); err != nil {
			return armResponse{}, err
		}
		pool.counted = *p.Count
	} else {
		op = a.startDeletionLocked(aksNamespace, poolWrite, nil) // nothing to wait for except the operation
	}
	a.setPoolStateDuringLocked(pool, Updating, op)
	return a.newAcceptedResponse(r, op, http.StatusOK, a.poolJSON(pool)), nil
}

func setIfNotNil[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// validate returns an error for bounds and counts that AKS refuses.
func (request poolRequest) validate(pool *armPool) *armError {
	p := request.Properties
	minCount, maxCount, count := pool.Min, pool.Max, pool.count()
	scaling := pool.AutoScaling
	setIfNotNil(&minCount, p.MinCount)
	setIfNotNil(&maxCount, p.MaxCount)
	setIfNotNil(&count, p.Count)
	setIfNotNil(&scaling, p.EnableAutoScaling)
	var problem, target string
	switch {
	case count < 0 || count > maxCapacity:
		problem, target = fmt.Sprintf("The value of parameter agentPoolProfile.count is %d: 0 to %d is allowed.", count, maxCapacity), "agentPoolProfile.count"
	case scaling && (minCount < 0 || maxCount < 1 || minCount > maxCount || maxCount > maxCapacity):
		problem, target = fmt.Sprintf("minCount %d and maxCount %d are not valid for autoscaling.", minCount, maxCount), "agentPoolProfile.maxCount"
	case scaling && (count < minCount || count > maxCount):
		problem, target = fmt.Sprintf("The count %d is not within minCount %d and maxCount %d.", count, minCount, maxCount), "agentPoolProfile.count"
	default:
		return nil
	}
	err := newParameterError(target, "%s", problem)
	err.flat = true
	return err
}

// setPoolStateDuringLocked sets the state of a pool until the operation op ends.
func (a *ARM) setPoolStateDuringLocked(pool *armPool, state ProvisioningState, op *armOperation) {
	pool.state = state
	go a.resetPoolStateAfterOperation(pool, op)
}

// resetPoolStateAfterOperation waits until an operation has ended, and then resets the state of the pool.
func (a *ARM) resetPoolStateAfterOperation(pool *armPool, op *armOperation) {
	for {
		a.mu.Lock()
		done, changed := !op.ended.IsZero(), a.changed
		if done {
			pool.state = Succeeded
			if op.err != nil {
				pool.state = Failed
			}
			pool.etag++
			a.notifyWaitersLocked()
		}
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-a.emulator.ctx.Done():
			return
		}
	}
}

func (a *ARM) deletePoolMachines(r *http.Request) (armResponse, *armError) {
	var request struct {
		MachineNames []string `json:"machineNames"`
	}
	if err := decodeBody(r, &request); err != nil {
		return armResponse{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := a.findRequestedPoolLocked(r)
	if err == nil {
		err = a.checkPoolIdleLocked(pool)
	}
	if err != nil {
		return armResponse{}, err
	}
	var machines []*armVM
	for _, name := range request.MachineNames {
		m := a.findPoolMachineLocked(pool, name)
		if m == nil {
			return armResponse{}, &armError{
				Status: http.StatusBadRequest, Code: "InvalidParameter", flat: true,
				Message: fmt.Sprintf("Cannot find machine %s in agent pool %s.", name, pool.Name),
			}
		}
		machines = append(machines, m)
	}
	if len(machines) == 0 {
		return armResponse{}, &armError{
			Status: http.StatusBadRequest, Code: "InvalidParameter", flat: true,
			Message: "Required parameter machineNames is missing (null).",
		}
	}
	for _, m := range machines {
		if m.State != Deleting {
			pool.counted--
		}
	}
	op := a.startDeletionLocked(aksNamespace, poolDelete, machines)
	a.setPoolStateDuringLocked(pool, "DeletingMachines", op)
	return a.newAcceptedResponse(r, op, http.StatusAccepted, nil), nil
}

// findPoolMachineLocked finds a machine by its name in AKS, which is the machine's computer name.
func (a *ARM) findPoolMachineLocked(pool *armPool, name string) *armVM {
	if pool.set == nil {
		return nil
	}
	for _, m := range a.listMembersLocked(pool.set) {
		if strings.EqualFold(m.ComputerName, name) {
			return m
		}
	}
	return nil
}

func (a *ARM) listPoolMachines(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := a.findRequestedPoolLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	machines := a.listVMsLocked()
	if stale := staleVMs(r); stale != nil {
		machines = stale
	}
	machines = slices.DeleteFunc(slices.Clone(machines), func(m VM) bool {
		return pool.set == nil || !strings.EqualFold(m.ScaleSet, pool.set.Name)
	})
	return newPage(a, r, machines, func(m VM) string { return m.ComputerName }, func(m VM) any {
		return a.poolMachineJSON(pool, m)
	}), nil
}

func (a *ARM) getPoolMachine(r *http.Request) (armResponse, *armError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := a.findRequestedPoolLocked(r)
	if err != nil {
		return armResponse{}, err
	}
	m := a.findPoolMachineLocked(pool, r.PathValue("machine"))
	if m == nil {
		return armResponse{}, &armError{Status: http.StatusNotFound, Code: "NotFound", flat: true, Message: fmt.Sprintf(
			"Could not find the machine %s of agent pool %s.", r.PathValue("machine"), pool.Name)}
	}
	return armResponse{status: http.StatusOK, body: a.poolMachineJSON(pool, m.VM)}, nil
}

func (a *ARM) poolMachineJSON(pool *armPool, m VM) any {
	return map[string]any{
		"id": pool.id(a) + "/machines/" + m.ComputerName, "name": m.ComputerName,
		"type":       "Microsoft.ContainerService/managedClusters/agentPools/machines",
		"properties": map[string]any{"resourceId": a.capitalizeGroup(strings.TrimPrefix(m.ProviderID, "azure://"))},
	}
}
