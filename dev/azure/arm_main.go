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

// armSettings are the flags of an Azure Resource Manager that Main serves beside the emulator.
type armSettings struct{ listen, caFile string }

func (s armSettings) check() error {
	if (s.listen == "") != (s.caFile == "") {
		return errors.New("--arm-listen and --arm-ca-file: want both or neither, as clients have to trust its certificate")
	}
	if s.listen == "" {
		return nil
	}
	return requireLoopback("--arm-listen", s.listen)
}

// serve serves an Azure Resource Manager whose scale sets have the machines that the nodes say, until ctx ends. New
// machines are made nodes by the joiner, if there is one.
func (s armSettings) serve(ctx context.Context, e *Emulator, nodes *Nodes, joiner Joiner) error {
	if s.listen == "" {
		return nil
	}
	arm := NewARM(e, ARMOptions{Joiner: joiner})
	for _, name := range nodes.ScaleSets() {
		arm.adopt(ScaleSetSpec{
			Name: name, Spot: nodes.spot(name), Zones: []string{"1", "2", "3"},
		}, nodes.instances(name))
	}
	server, err := arm.Serve(s.listen) //nolint:contextcheck // it ends with ctx, a few lines on
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := os.WriteFile(s.caFile, server.CA, 0o600); err != nil {
		return fmt.Errorf("certificate of ARM: %w", err)
	}
	return nil
}

// adopt makes a scale set with the machines of these instance IDs, which run already.
func (a *ARM) adopt(spec ScaleSetSpec, instances []int) {
	a.AddScaleSet(spec, 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	set := a.sets[strings.ToLower(spec.Name)]
	set.capacity = len(instances)
	for _, instance := range instances {
		set.next = instance
		a.newMachineLocked(set, Succeeded, Running)
	}
	a.announceLocked()
}

// instances lists the instance IDs of the machines of a uniform scale set that are nodes, ascending.
func (n *Nodes) instances(scaleSet string) []int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var ids []int
	for resource := range n.byResource {
		number, is := strings.CutPrefix(resource, strings.ToLower(scaleSet)+"_")
		if id, err := strconv.Atoi(number); is && err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// spot reports a scale set whose nodes say that they are Spot machines, by the label that AKS sets.
func (n *Nodes) spot(scaleSet string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.spotSets[strings.ToLower(scaleSet)]
}
