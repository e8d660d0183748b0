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

// ci is a pool whose nodes are there for builds, and leave without any.
var ci = controlplane.AKSPool{Name: "ci"}

const (
	ciMachines = 6
	builds     = "builds"
	// buildLabel is by what a pod is known for a build.
	buildLabel = "example.com/build"
)

// What happens to which machine of the pool.
const (
	undeletable = 1 // Azure fails to delete it, once
	interrupted = 2 // it is the first to go, and the manager is killed meanwhile
)

// cache is not a build: it has to leave, and takes its time, so that there is a middle to be killed in.
var cache = onlyOn(machine{ci, interrupted}, workload.App{Name: "cache", Replicas: 2, Stop: "4"})

// buildName is that of the build that is on a machine at first.
func buildName(instance int) string { return fmt.Sprint("build-", instance+1) }

// build is a pod that keeps a machine of the pool.
func build(name string, instance int) workload.App {
	return workload.App{
		Namespace: builds, Name: name, Node: ci.NodeName(instance), Stop: "0.5", Labels: map[string]string{buildLabel: "true"},
	}
}

// Everything is quicker than it would be in earnest.
const (
	cooldown   = 3 * time.Second
	deletion   = time.Second // of a machine, by Azure
	leaseTime  = 6 * time.Second
	retryAfter = 2 * time.Second
)

// preparePool adds the pool and its builds, two managers that install their own types, and the NodeGroup.
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

// manager is one of the two.
type manager struct {
	*testbed.Manager
	killed atomic.Bool // on purpose
}

// leader is the manager that leads, or nil.
func (s *stage) leader(ctx context.Context) *manager {
	for _, m := range s.managers {
		if m != nil && m.Alive() && m.Leads(ctx) {
			return m
		}
	}
	return nil
}

// keepManagers starts managers again that have ended by themselves, as the kubelet would: one that could not renew its
// Lease in time does, on a machine that is busy enough.
func (s *stage) keepManagers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, m := range s.managers {
			if !m.Alive() && !m.killed.Load() {
				_ = m.Restart(ctx) // or else in a second
			}
		}
	}
}

// startManagers starts one manager, which leads, and another, which waits.
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
		"--selector", "!"+kubeaware.MarkLabel+",!"+crowdLabel) // their own affair
	if err != nil {
		return nil, err
	}
	return &manager{Manager: m}, nil
}

// createGroup creates the NodeGroup, without a word about budgets: one node leaves at a time then.
func (s *stage) createGroup(ctx context.Context) error {
	return s.CreateNodeGroup(ctx, ci.Name, nil, testbed.ScaleSetSpec(ci.Name, ci.ScaleSet())+fmt.Sprintf(
		"scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: \"true\"}}, namespaces: [%s], cooldown: %s}}\n", buildLabel, builds, cooldown))
}

// stopManagers ends those that live.
func (s *stage) stopManagers() {
	for _, m := range s.managers {
		if m.killed.Store(true); m.Alive() {
			_ = m.Kill() // it has nothing to lose
		}
	}
}
