// Package room says where the successor of a pod could run: on an existing node, on one more instance of a NodeGroup, or
// nowhere. It decides with placement, like the scheduler.
package room

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/nodegroup/acceptance"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Checker says where one more pod could run.
type Checker struct {
	// Cluster returns the snapshot of the cluster, after it has all objects.
	Cluster func(ctx context.Context) (Cluster, error)
	Groups  GroupLister
}

// Cluster is a snapshot that is kept current. *live.Cluster implements it.
type Cluster interface {
	WithSnapshot(fn func(*snapshot.Snapshot) error) error
}

// GroupLister lists all NodeGroups.
type GroupLister interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// errPodUnknown is the error for a pod that the snapshot does not have yet, or no longer.
var errPodUnknown = errors.New("the pod is not in the snapshot of the cluster")

// FindRoom says where a second copy of a pod could run without the pod's node. The error means that this is unknown.
func (c *Checker) FindRoom(ctx context.Context, namespace, name, node string) (surge.Room, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return surge.Room{}, fmt.Errorf("room for a successor of pod %s/%s: %w", namespace, name, err)
	}
	groups, err := c.Groups.List(ctx)
	if err != nil {
		return surge.Room{}, fmt.Errorf("room for a successor of pod %s/%s: %w", namespace, name, err)
	}
	templates, joinTimeouts := listTemplates(groups, time.Now())
	var found *planner.PendingPod
	err = cluster.WithSnapshot(func(s *snapshot.Snapshot) (err error) {
		key := placement.PodKey{Namespace: namespace, Name: name}
		if s.Pod(key) == nil {
			return errPodUnknown
		}
		found, err = planner.JudgePendingPod(s, key, templates)
		return err
	})
	if err != nil {
		return surge.Room{}, fmt.Errorf("room for a successor of pod %s/%s: %w", namespace, name, err)
	}
	if slices.ContainsFunc(found.FittingNodes, func(n string) bool { return n != node }) {
		return surge.Room{Fits: true}, nil
	}
	for _, t := range templates {
		if found.NewInstances[t.Name] == placement.Fits.String() {
			return surge.Room{Fits: true, LaunchTime: joinTimeouts[t.Name], Detail: "needs one more instance of " + t.Name}, nil
		}
	}
	return surge.Room{Detail: "fits on no other node: " + found.Nodes.String()}, nil
}

// listTemplates returns the instance templates that scale-up may launch now, with the time that an instance may take to join.
// It knows the templates that have had nodes. A template without any counts as unknown, and is left out.
func listTemplates(groups []v1alpha1.NodeGroup, now time.Time) (templates []planner.Template, joinTimeouts map[string]time.Duration) {
	joinTimeouts = map[string]time.Duration{}
	for i := range groups {
		g := &groups[i]
		p := g.Status.Provisioning
		if g.Spec.ScaleUp == nil || p == nil || acceptance.FromGroup(g).State != acceptance.Accepted || isFull(g) {
			continue
		}
		for j := range p.Learned {
			learned := &p.Learned[j]
			if isBackedOff(p, learned.Name, now) || !mayLaunch(g.Spec.ScaleUp, learned.Name) {
				continue
			}
			n := plan.NewTemplateNode(g, plan.TemplateSource{Template: cloud.Template{Name: learned.Name}, Learned: learned})
			if n == nil {
				continue
			}
			name := g.Name + "/" + learned.Name
			templates = append(templates, planner.Template{Name: name, Node: n, Cost: 1})
			joinTimeouts[name] = plan.JoinTimeout(g)
		}
	}
	return templates, joinTimeouts
}

// isFull reports whether the group has its maximum size, or whether its size is unknown.
func isFull(g *v1alpha1.NodeGroup) bool {
	return g.Status.CloudSize == nil || g.Spec.MaxSize != nil && *g.Status.CloudSize >= *g.Spec.MaxSize
}

// mayLaunch reports whether scale-up may launch the template. Without a list, it may launch all.
func mayLaunch(up *v1alpha1.ScaleUp, template string) bool {
	return len(up.Templates) == 0 || slices.ContainsFunc(up.Templates, func(t v1alpha1.InstanceTemplate) bool {
		return launch.IsSameTemplate(t.Name, template)
	})
}

func isBackedOff(p *v1alpha1.ProvisioningStatus, template string, now time.Time) bool {
	return slices.ContainsFunc(p.BackOffs, func(b v1alpha1.BackOff) bool {
		return launch.IsSameTemplate(b.Template, template) && now.Before(b.Until.Time)
	})
}
