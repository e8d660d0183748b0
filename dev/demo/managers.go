package demo

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
)

// ci is a pool for builds. Nodes without builds are retired.
var ci = controlplane.AKSPool{Name: "ci"}

const (
	ciMachines = 6
	builds     = "builds"
	// buildLabel is the label of a build's pod.
	buildLabel = "example.com/build"
)

// The instances with a special role.
const (
	undeletable = 1 // Azure fails to delete it once
	interrupted = 2 // it is retired first, and the manager is killed meanwhile
)

// cache is not a build. It is evicted slowly, so that the manager can be killed during the drain.
var cache = onlyOn(machine{ci, interrupted}, workload.App{Name: "cache", Replicas: 2, Stop: "4"})

// buildName returns the name of a machine's first build.
func buildName(instance int) string { return fmt.Sprint("build-", instance+1) }

// build is a pod that keeps a machine of the pool in use.
func build(name string, instance int) workload.App {
	return workload.App{
		Namespace: builds, Name: name, Node: ci.NodeName(instance), Stop: "0.5", Labels: map[string]string{buildLabel: "true"},
	}
}

// All times are shorter than in production.
const (
	cooldown   = 3 * time.Second
	deletion   = time.Second // of a machine, by Azure
	leaseTime  = 6 * time.Second
	retryAfter = 2 * time.Second
)

// preparePool adds the pool with its builds, two managers that install the CRDs, and the NodeGroup.
func (s *stage) preparePool(ctx context.Context) error {
	if err := s.AddPool(ctx, ci, ciMachines); err != nil {
		return err
	}
	if err := s.label(ctx, ci.NodeName(interrupted), map[string]string{group(machine{ci, interrupted}): ""}); err != nil {
		return err
	}
	if err := workload.CreateSettled(ctx, s.Client(), workload.Namespace(builds), cache.Deployment()); err != nil {
		return err
	}
	for i := range ciMachines {
		if err := workload.CreateSettled(ctx, s.Client(), build(buildName(i), i).Pod()); err != nil {
			return err
		}
	}
	if err := s.startManagers(ctx); err != nil {
		return err
	}
	return s.createGroup(ctx)
}

// manager is one of the two managers.
type manager struct {
	*testbed.Manager
	killed atomic.Bool // on purpose
}

// leader returns the leading manager, or nil.
func (s *stage) leader(ctx context.Context) *manager {
	for _, m := range s.managers {
		if m != nil && m.Alive() && m.Leads(ctx) {
			return m
		}
	}
	return nil
}

// keepManagers restarts managers that have exited, as the kubelet does. On a busy machine a manager may fail to renew
// its Lease in time, and then exits.
func (s *stage) keepManagers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, m := range s.managers {
			if !m.Alive() && !m.killed.Load() {
				_ = m.Restart(ctx) // retried in a second
			}
		}
	}
}

// startManagers starts one manager, which leads, and a second, which waits.
func (s *stage) startManagers(ctx context.Context) error {
	if err := s.Deploy(ctx, testbed.ManagerFiles...); err != nil {
		return err
	}
	for i := range s.managers {
		var err error
		if s.managers[i], err = s.startManager(ctx, fmt.Sprint("manager-", i+1)); err != nil {
			return err
		}
		if err := testbed.Poll(ctx, "a manager leads", func() bool { return s.leader(ctx) != nil }); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startManager(ctx context.Context, name string) (*manager, error) {
	m, err := s.StartManager(ctx, name, map[string]any{"azure": s.AzureConfig()}, "--install-crds", "--leader-elect=true",
		"--leader-election-namespace", testbed.ManagerNamespace, "--leader-election-lease-duration", leaseTime.String(),
		"--group-poll-interval", "1s", "--poll-interval", "500ms", "--cloud-poll-interval", "500ms", "--retry-interval", retryAfter.String(),
		"--selector", "!"+kubeaware.MarkLabel+",!"+crowdLabel) // other steps have their own managers
	if err != nil {
		return nil, err
	}
	return &manager{Manager: m}, nil
}

// createGroup creates the NodeGroup without a disruption budget, so that one node is retired at a time.
func (s *stage) createGroup(ctx context.Context) error {
	return s.CreateNodeGroup(ctx, ci.Name, nil, testbed.ScaleSetSpec(ci.Name, ci.ScaleSet())+fmt.Sprintf(
		"scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: \"true\"}}, namespaces: [%s], cooldown: %s}}\n", buildLabel, builds, cooldown))
}

func (s *stage) stopManagers() {
	for _, m := range s.managers {
		if m.killed.Store(true); m.Alive() {
			_ = m.Kill() // it has no state to save
		}
	}
}
