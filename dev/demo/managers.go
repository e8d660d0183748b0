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

// ciPool is a pool of machines for CI builds. Its nodes are retired when they have no builds.
var ciPool = controlplane.AKSPool{Name: "ci"}

const (
	ciMachineCount = 6
	builds         = "builds"
	// buildLabel is the label of a build's pod.
	buildLabel = "example.com/build"
)

// The instance numbers of machines that a step treats specially.
const (
	undeletableInstance = 1 // Azure fails to delete it once
	interruptedInstance = 2 // it is retired first, and the manager is killed meanwhile
)

// cacheApp is an app that is not a build. Its pods take long to evict, so that the demo can kill the manager during
// the drain.
var cacheApp = pinTo(machine{ciPool, interruptedInstance}, workload.App{Name: "cache", Replicas: 2, StopSeconds: "4"})

// initialBuildName returns the name of the build that a machine has at the start.
func initialBuildName(instance int) string { return fmt.Sprint("build-", instance+1) }

// buildApp returns the app of a build. Its pod keeps the given instance in use.
func buildApp(name string, instance int) workload.App {
	return workload.App{
		Namespace: builds, Name: name, Node: ciPool.NodeName(instance), StopSeconds: "0.5", Labels: map[string]string{buildLabel: "true"},
	}
}

// The times of the idle pool. All are shorter than in production.
const (
	cooldown      = 3 * time.Second
	deletionTime  = time.Second // of a machine, by Azure
	leaseDuration = 6 * time.Second
	retryInterval = 2 * time.Second
)

// addBuildPool adds the pool with its builds, two managers that install the CRDs, and the NodeGroup.
func (s *stage) addBuildPool(ctx context.Context) error {
	if err := s.AddPool(ctx, ciPool, ciMachineCount); err != nil {
		return err
	}
	if err := labelNode(ctx, s.Testbed, ciPool.NodeName(interruptedInstance), map[string]any{nodeGroupLabel(machine{ciPool, interruptedInstance}): ""}); err != nil {
		return err
	}
	if err := workload.CreateAndAwait(ctx, s.Client(), workload.NewNamespace(builds), cacheApp.Deployment()); err != nil {
		return err
	}
	for i := range ciMachineCount {
		if err := workload.CreateAndAwait(ctx, s.Client(), buildApp(initialBuildName(i), i).Pod()); err != nil {
			return err
		}
	}
	if err := s.startManagers(ctx); err != nil {
		return err
	}
	return s.createBuildGroup(ctx)
}

// manager is one of the demo's two managers for the pool of builds.
type manager struct {
	*testbed.Manager
	killed atomic.Bool // on purpose
}

// leadingManager returns the manager that holds the leader election Lease, or nil.
func (s *stage) leadingManager(ctx context.Context) *manager {
	for _, m := range s.managers {
		if m != nil && m.IsAlive() && m.IsLeader(ctx) {
			return m
		}
	}
	return nil
}

// restartManagers restarts managers that have exited, as the kubelet does, until ctx ends. A manager exits if it
// cannot renew its Lease in time, which happens on a busy machine. It does not restart a manager that the demo has
// killed.
func (s *stage) restartManagers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, m := range s.managers {
			if !m.IsAlive() && !m.killed.Load() {
				_ = m.Restart(ctx) // retried in a second
			}
		}
	}
}

// startManagers starts two managers. The first becomes the leader, and the second waits.
func (s *stage) startManagers(ctx context.Context) error {
	if err := s.ApplyManifests(ctx, testbed.ManagerManifests...); err != nil {
		return err
	}
	for i := range s.managers {
		var err error
		if s.managers[i], err = s.startManager(ctx, fmt.Sprint("manager-", i+1)); err != nil {
			return err
		}
		if err := testbed.PollUntil(ctx, "a manager leads", func() bool { return s.leadingManager(ctx) != nil }); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startManager(ctx context.Context, name string) (*manager, error) {
	m, err := s.StartManager(ctx, name, map[string]any{"azure": s.AzureProviderConfig()}, "--install-crds", "--leader-elect=true",
		"--leader-election-namespace", testbed.ManagerNamespace, "--leader-election-lease-duration", leaseDuration.String(),
		"--group-poll-interval", "1s", "--poll-interval", "500ms", "--cloud-poll-interval", "500ms", "--retry-interval", retryInterval.String(),
		"--selector", "!"+kubeaware.BackendLabel+",!"+crowdLabel) // other steps have their own managers
	if err != nil {
		return nil, err
	}
	return &manager{Manager: m}, nil
}

// createBuildGroup creates the NodeGroup of the pool. It states no disruption budget, so by default one node is
// retired at a time.
func (s *stage) createBuildGroup(ctx context.Context) error {
	return s.CreateNodeGroup(ctx, ciPool.Name, nil, testbed.ScaleSetNodeGroupSpec(ciPool.Name, ciPool.ScaleSetName())+fmt.Sprintf(
		"scaleDown: {idleByLabel: {podSelector: {matchLabels: {%s: \"true\"}}, namespaces: [%s], cooldown: %s}}\n", buildLabel, builds, cooldown))
}

func (s *stage) stopManagers() {
	for _, m := range s.managers {
		if m.killed.Store(true); m.IsAlive() {
			_ = m.Kill() // it has no state to save
		}
	}
}
