package manager

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/surge/room"
)

const (
	// surgeCheckInterval is the pause between two checks whether this manager has to restore sizes.
	surgeCheckInterval = 30 * time.Second
	// surgeSchedulingWait is how long a successor may be unschedulable. Before the raise, placement has found a node or an
	// instance template for it, and an instance needs minutes to join.
	surgeSchedulingWait = 10 * time.Minute
	// roomTimeout limits the wait for the first snapshot of the cluster.
	roomTimeout = 10 * time.Second
)

// surges has the Surgers of the retirements' drains, one for each mode. It restores the sizes of crashed processes while this
// manager leads.
type surges struct {
	groups *GroupSource
	byMode map[surge.Mode]*surge.Surger
	// listRecords lists the records of surges. Its error says whether this manager may.
	listRecords func(context.Context) error
	interval    time.Duration
}

func (a *components) newSurges() (*surges, error) {
	kube, err := kubernetes.NewForConfig(a.Kube)
	if err != nil {
		return nil, fmt.Errorf("client of surges: %w", err)
	}
	checker := &room.Checker{Groups: a.groups, Templates: a.templates, Cluster: func(ctx context.Context) (room.Cluster, error) {
		cluster, err := a.cluster.watch(kube.Discovery())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, roomTimeout)
		defer cancel()
		return cluster, cluster.WaitForSync(ctx)
	}}
	s := &surges{groups: a.groups, byMode: map[surge.Mode]*surge.Surger{}, interval: surgeCheckInterval}
	s.listRecords = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, kubeapi.DefaultTimeout)
		defer cancel()
		_, err := a.API.ListCachedLeases(ctx, a.config.recordNamespace(), surge.RecordLabel+"=true")
		return err
	}
	for _, mode := range []surge.Mode{surge.Annotated, surge.On} {
		if s.byMode[mode], err = surge.New(surge.Options{
			API: a.API, Namespace: a.config.recordNamespace(), Identity: surge.NewIdentity("manager"), Mode: mode, SchedulingWait: surgeSchedulingWait,
			CheckRoom: func(ctx context.Context, pod kubeapi.Pod, reserve bool) surge.Room {
				return checkRoom(ctx, checker, pod, reserve)
			},
			Metrics: a.counters.retirement, Logger: a.Log,
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// checkRoom says where a successor of the pod fits. If that is unknown, the scheduler decides.
func checkRoom(ctx context.Context, checker *room.Checker, pod kubeapi.Pod, reserve bool) surge.Room {
	answer, err := checker.FindRoom(ctx, placement.PodKey{Namespace: pod.Namespace, Name: pod.Name}, pod.Spec.NodeName, reserve)
	if err != nil {
		return surge.Room{Fits: true, Detail: fmt.Sprintf("room for a successor of pod %s/%s is unknown: %v", pod.Namespace, pod.Name, err)}
	}
	return answer
}

func (s *surges) newSurger(m surge.Mode) drain.Surger { return s.byMode[m] }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*surges) NeedLeaderElection() bool { return true }

// Start restores sizes until ctx ends. A manager that may read the records begins at once: they may be of a NodeGroup that no
// longer lets pods surge, or of slipway drain. Another manager begins when the first NodeGroup lets pods surge.
func (s *surges) Start(ctx context.Context) error {
	for isAllowed := true; !s.isAnyGroupSurging(ctx); {
		if isAllowed {
			err := s.listRecords(ctx)
			if err == nil {
				break
			}
			isAllowed = !kubeapi.IsForbidden(err)
		}
		if !elapsed.Sleep(ctx, s.interval) {
			return nil
		}
	}
	s.byMode[surge.On].RestoreExpired(ctx)
	return nil
}

func (s *surges) isAnyGroupSurging(ctx context.Context) bool {
	groups, err := s.groups.List(ctx)
	return err == nil && slices.ContainsFunc(groups, func(g v1alpha1.NodeGroup) bool {
		mode, err := surge.ParseMode(string(g.Spec.Drain.Surge))
		return err == nil && mode.Enabled()
	})
}
