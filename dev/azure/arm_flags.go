package azure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// armSettings holds the flags of the Azure Resource Manager that RunEmulator serves in addition to the metadata
// service.
type armSettings struct{ listen, caFile string }

func (s armSettings) validate() error {
	if (s.listen == "") != (s.caFile == "") {
		return errors.New("--arm-listen and --arm-ca-file must be set together, because clients must trust the certificate")
	}
	if s.listen == "" {
		return nil
	}
	return requireLoopback("--arm-listen", s.listen)
}

// serveARM serves an Azure Resource Manager until ctx ends. The Resource Manager has the scale sets and machines of
// the existing nodes. The joiner, if not nil, adds the nodes of new machines.
func (s armSettings) serveARM(ctx context.Context, e *Emulator, nodes *NodeMap, joiner NodeJoiner) error {
	if s.listen == "" {
		return nil
	}
	arm := NewARM(e, ARMOptions{Joiner: joiner})
	for _, name := range nodes.ScaleSets() {
		arm.addExistingScaleSet(ScaleSetSpec{
			Name: name, Spot: nodes.isSpotScaleSet(name), Zones: []string{"1", "2", "3"},
		}, nodes.instanceIDs(name))
	}
	server, err := arm.Serve(s.listen) //nolint:contextcheck // it ends with ctx, a few lines on
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := os.WriteFile(s.caFile, server.CA, 0o600); err != nil {
		return fmt.Errorf("write the certificate of ARM: %w", err)
	}
	return nil
}

// addExistingScaleSet creates a scale set with one running machine for each given instance ID.
func (a *ARM) addExistingScaleSet(spec ScaleSetSpec, instances []int) {
	a.AddScaleSet(spec, 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.sets[strings.ToLower(spec.Name)]
	set.capacity = len(instances)
	for _, instance := range instances {
		set.next = instance
		a.newVMLocked(set, Succeeded, Running)
	}
	a.notifyWaitersLocked()
}

// instanceIDs returns the instance IDs of a uniform scale set's nodes in ascending order.
func (n *NodeMap) instanceIDs(scaleSet string) []int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var ids []int
	for resource := range n.byResource {
		number, ok := strings.CutPrefix(resource, strings.ToLower(scaleSet)+"_")
		if id, err := strconv.Atoi(number); ok && err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// isSpotScaleSet reports whether a scale set's nodes have the Spot label of AKS.
func (n *NodeMap) isSpotScaleSet(scaleSet string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.spotSets[strings.ToLower(scaleSet)]
}
