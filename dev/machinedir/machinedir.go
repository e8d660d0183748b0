//go:build unix

// Package machinedir connects the machines of the sample plugin, which are files in a directory, to the nodes of a
// control plane. A booted machine joins as a node, and the node of a removed machine is powered off.
package machinedir

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/examples/directory/machines"
)

// Cluster is the part of a control plane that this package needs.
type Cluster interface {
	AddNodes(ctx context.Context, specs ...controlplane.NodeSpec) error
	PowerOff(ctx context.Context, node string) error
}

// pollInterval is the polling interval of the directory.
const pollInterval = 50 * time.Millisecond

// SyncNodes keeps the nodes in line with the machines of a host until ctx ends, and then returns nil.
func SyncNodes(ctx context.Context, c Cluster, hypervisor machines.Hypervisor, host string) error {
	joined := map[string]bool{}
	for {
		running := map[string]controlplane.NodeSpec{}
		err := hypervisor.WithLock(ctx, func(v machines.View) error { return addBootedNodes(v, host, running) })
		if err == nil {
			err = syncNodesOnce(ctx, c, running, joined)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended
		}
		if err != nil {
			return fmt.Errorf("sync the nodes of %s: %w", hypervisor.Root, err)
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// addBootedNodes adds the node specs of the running machines to a map.
func addBootedNodes(v machines.View, host string, to map[string]controlplane.NodeSpec) error {
	groups, err := v.Groups()
	for _, group := range groups {
		all, wrong := v.Machines(group)
		g, none := v.Group(group)
		err = errors.Join(err, wrong, none)
		for name, m := range all {
			if !m.IsBooted(time.Now()) {
				continue
			}
			spec := controlplane.NodeSpec{
				Name: name, ProviderID: "directory://" + host + "/" + group + "/" + name,
				Labels: map[string]string{"directory.slipway.dev/group": group},
			}
			for _, t := range g.Templates {
				if t.Name == m.Template {
					spec.CPU, spec.Memory = t.Capacity["cpu"], t.Capacity["memory"]
					maps.Copy(spec.Labels, t.Labels)
				}
			}
			to[name] = spec
		}
	}
	return err
}

// syncNodesOnce adds nodes for new machines, and powers off the nodes of removed machines.
func syncNodesOnce(ctx context.Context, c Cluster, running map[string]controlplane.NodeSpec, joined map[string]bool) error {
	var newNodes []controlplane.NodeSpec
	for name, spec := range running {
		if !joined[name] {
			newNodes = append(newNodes, spec)
		}
	}
	if err := c.AddNodes(ctx, newNodes...); err != nil {
		return err
	}
	for _, spec := range newNodes {
		joined[spec.Name] = true
	}
	for name := range joined {
		if _, ok := running[name]; ok {
			continue
		}
		if err := c.PowerOff(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		delete(joined, name)
	}
	return nil
}
