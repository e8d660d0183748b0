// Package room says where the successor of a pod could run: on an existing node, on one more instance of a NodeGroup, or
// nowhere. It decides with placement, like the scheduler.
package room

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/filter"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Checker says where one more pod could run. It reserves room for the successors that are not on a node yet, so that they fit
// together.
type Checker struct {
	// Cluster returns the snapshot of the cluster, after it has all objects.
	Cluster func(ctx context.Context) (Cluster, error)
	Groups  GroupLister
	// Templates returns the instance templates of a NodeGroup. known is false if its cloud may have more.
	Templates func(group string) (templates []plan.Template, known bool)

	mu           sync.Mutex
	reservations map[placement.PodKey]*reservation // by leaving pod
}

// Cluster is a snapshot that is kept current. *live.Cluster implements it.
type Cluster interface {
	WithSnapshot(fn func(*snapshot.Snapshot) error) error
}

// GroupLister lists all NodeGroups.
type GroupLister interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// reservation is the room of one successor: an existing node or a new instance.
type reservation struct {
	node     string
	instance *newInstance // nil on an existing node
}

// newInstance is an instance that successors need.
type newInstance struct {
	template *launchable
	name     string // its Node in forks of the snapshot
	size     int32  // of the group with this instance
}

// launchable is a template that scale-up may launch now.
type launchable struct {
	planner.Template

	group       *v1alpha1.NodeGroup
	joinTimeout time.Duration
	size        int32 // of the group, with the reserved instances
}

// errPodUnknown is the error for a pod that the snapshot does not have yet, or no longer.
var errPodUnknown = errors.New("the pod is not in the snapshot of the cluster")

// FindRoom says where a second copy of a pod could run without the pod's node, beside the other successors. The error means that
// this is unknown, and says why without the name of the pod. If reserve is true, FindRoom reserves that room until Room.Release is
// called.
func (c *Checker) FindRoom(ctx context.Context, pod placement.PodKey, node string, reserve bool) (room surge.Room, err error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return surge.Room{}, err
	}
	groups, err := c.Groups.List(ctx)
	if err != nil {
		return surge.Room{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = cluster.WithSnapshot(func(s *snapshot.Snapshot) error {
		if s.Pod(pod) == nil {
			return errPodUnknown
		}
		var place reservation
		if place, room, err = c.choosePlace(s, pod, node, groups); err == nil && reserve && room.Fits {
			room.Release = c.reserve(pod, &place)
		}
		return err
	})
	return room, err
}

// reserve stores a reservation, in place of an earlier one for the same pod.
func (c *Checker) reserve(pod placement.PodKey, r *reservation) (release func()) {
	if c.reservations == nil {
		c.reservations = map[placement.PodKey]*reservation{}
	}
	c.reservations[pod] = r
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.reservations[pod] == r {
			delete(c.reservations, pod)
		}
	}
}

// choosePlace chooses the least used node that a second copy of the pod fits on. If there is none, it chooses an instance that
// another successor needs, or else a further instance.
func (c *Checker) choosePlace(s *snapshot.Snapshot, pod placement.PodKey, node string, groups []v1alpha1.NodeGroup) (reservation, surge.Room, error) {
	fork := s.Fork()
	defer fork.Rollback()
	instances := c.placeOtherSuccessors(s, fork, pod)
	launchables, incomplete := c.listLaunchables(groups, pod)
	templates := make([]planner.Template, len(launchables))
	for i := range launchables {
		templates[i] = launchables[i].Template
	}
	found, err := planner.JudgePendingPod(s, pod, templates)
	if err != nil {
		return reservation{}, surge.Room{}, err
	}
	var best *filter.Node
	for _, name := range found.FittingNodes {
		n := s.Nodes.Lookup(name)
		if name != node && instances[name] == nil && (best == nil || n.SumUsedShares() < best.SumUsedShares()) {
			best = n
		}
	}
	if best != nil {
		return reservation{node: best.Name()}, surge.Room{Fits: true}, nil
	}
	for _, name := range found.FittingNodes {
		if i := instances[name]; i != nil {
			detail := "fits on the new instance of " + i.template.Name + " for another pod"
			return reservation{name, i}, surge.Room{Fits: true, LaunchTime: i.template.joinTimeout, Detail: detail}, nil
		}
	}
	for _, t := range launchables {
		if found.NewInstances[t.Name] == placement.Fits.String() {
			i := &newInstance{template: t, size: t.size + 1, name: fmt.Sprintf("reserved/%s/%d", t.Name, t.size+1)}
			return reservation{i.name, i}, surge.Room{Fits: true, LaunchTime: t.joinTimeout, Detail: "needs one more instance of " + t.Name}, nil
		}
	}
	detail := "fits on no other node: " + found.Nodes.String()
	switch {
	case found.Undecidable:
		return reservation{}, surge.Room{}, fmt.Errorf("the scheduler has to decide: %s", found.Nodes)
	case len(incomplete) > 0: // one of them might launch an instance for the pod
		return reservation{}, surge.Room{}, fmt.Errorf("%s; not all instance templates of NodeGroup %s are known", detail, strings.Join(incomplete, ", "))
	}
	return reservation{}, surge.Room{Detail: detail}, nil
}

// placeOtherSuccessors places the other successors with a reservation, and returns the new instances for them by name.
func (c *Checker) placeOtherSuccessors(s *snapshot.Snapshot, fork snapshot.Fork, except placement.PodKey) map[string]*newInstance {
	instances := map[string]*newInstance{}
	for pod, r := range c.reservations {
		leaving := s.Pod(pod)
		if pod == except || leaving == nil {
			continue
		}
		if r.instance != nil && instances[r.node] == nil {
			if fork.AddNewNode(r.instance.template.NewNode(r.node, "")) != nil {
				continue
			}
			instances[r.node] = r.instance
		}
		if n, err := s.Nodes.FindUnlessRemoved(r.node); err == nil {
			successor := *leaving
			fork.PlacePod(&successor, n)
		}
	}
	return instances
}

// listLaunchables returns the templates that scale-up may launch now, beside the instances for other pods. incomplete has the names
// of the groups that may have more.
func (c *Checker) listLaunchables(groups []v1alpha1.NodeGroup, except placement.PodKey) (launchables []*launchable, incomplete []string) {
	for i := range groups {
		g := &groups[i]
		if g.Spec.ScaleUp == nil || g.Status.CloudSize == nil || acceptance.FromGroup(g).State != acceptance.Accepted {
			continue
		}
		size := *g.Status.CloudSize
		for pod, r := range c.reservations {
			if pod != except && r.instance != nil && r.instance.template.group.Name == g.Name {
				size = max(size, r.instance.size)
			}
		}
		if g.Spec.MaxSize != nil && size >= *g.Spec.MaxSize {
			continue
		}
		templates, known := c.Templates(g.Name)
		if !known {
			incomplete = append(incomplete, g.Name)
		}
		for _, t := range templates {
			if t.Node != nil && t.ClosedReason == nil {
				launchables = append(launchables, &launchable{
					planner.Template{Name: g.Name + "/" + t.Name, Node: t.Node, Cost: 1}, g, plan.JoinTimeout(g), size,
				})
			}
		}
	}
	return launchables, incomplete
}
