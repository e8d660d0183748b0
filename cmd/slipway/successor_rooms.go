package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
	"github.com/slipway-dev/slipway/internal/surge"
	"github.com/slipway-dev/slipway/internal/surge/room"
)

// successorRooms says where the successors of predicted surges could run now. It decides as the manager does, and so that all of them
// fit together. It reads the cluster at the first successor.
type successorRooms struct {
	// drained are the nodes that are drained. No successor runs on them.
	drained []string
	read    func(context.Context) (*saved.Objects, []v1alpha1.NodeGroup, error)

	checker *room.Checker
	// unlisted are the groups of nodes that have no object, for example those of the manager's --node-groups. They may launch an
	// instance too.
	unlisted []string
	failed   bool // the cluster cannot be read
}

// addTo sets the room of each pod of a prediction that would get a successor. If the cluster cannot be read, it prints that once, and
// sets none.
func (r *successorRooms) addTo(ctx context.Context, f drain.Prediction, stderr io.Writer) {
	for _, p := range f.Pods {
		if p.Surge == nil || p.Surge.Decision.Verdict != surge.Needed || r.failed {
			continue
		}
		if r.checker == nil {
			if err := r.readCluster(ctx); err != nil {
				r.failed = true
				fmt.Fprintf(stderr, "whether there is room for successors is unknown: %v\n", err)
				return
			}
		}
		p.Surge.Room = r.find(ctx, placement.PodKey{Namespace: p.Namespace, Name: p.Name}, f.Node)
	}
}

func (r *successorRooms) find(ctx context.Context, pod placement.PodKey, node string) *drain.SuccessorRoom {
	found, err := r.checker.FindRoom(ctx, pod, node, true)
	if err != nil {
		return &drain.SuccessorRoom{Problem: err.Error()}
	}
	if !found.Fits && len(r.unlisted) > 0 {
		return &drain.SuccessorRoom{Problem: fmt.Sprintf("%s; NodeGroup %s is not on the API server, so its instance templates are not known",
			found.Detail, strings.Join(r.unlisted, ", "))}
	}
	return &drain.SuccessorRoom{Fits: found.Fits, LaunchSeconds: found.LaunchTime.Seconds(), Detail: found.Detail}
}

// readCluster makes the checker. The drained nodes count as cordoned, because a drain cordons all of them first.
func (r *successorRooms) readCluster(ctx context.Context) error {
	o, groups, err := r.read(ctx)
	if err != nil {
		return err
	}
	cordoned := *o
	cordoned.Nodes = slices.Clone(o.Nodes)
	for i, n := range cordoned.Nodes {
		group := nodegroup.FindGroupOnNode(n)
		isListed := slices.ContainsFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == group })
		if group != "" && !isListed && !slices.Contains(r.unlisted, group) {
			r.unlisted = append(r.unlisted, group)
		}
		if slices.Contains(r.drained, n.Name) {
			n = n.DeepCopy()
			n.Spec.Unschedulable = true
			cordoned.Nodes[i] = n
		}
	}
	s, err := cordoned.BuildSnapshot()
	if err != nil {
		return err
	}
	r.checker = &room.Checker{
		Cluster: func(context.Context) (room.Cluster, error) { return fixedCluster{s}, nil },
		Groups:  fixedGroups(groups),
		Templates: func(group string) ([]plan.Template, bool) {
			i := slices.IndexFunc(groups, func(g v1alpha1.NodeGroup) bool { return g.Name == group })
			return room.TemplatesFromStatus(&groups[i], time.Now())
		},
	}
	return nil
}

// fixedCluster implements [room.Cluster] with a snapshot that does not change.
type fixedCluster struct{ snapshot *snapshot.Snapshot }

func (c fixedCluster) WithSnapshot(fn func(*snapshot.Snapshot) error) error { return fn(c.snapshot) }

// fixedGroups implements [room.GroupLister].
type fixedGroups []v1alpha1.NodeGroup

func (g fixedGroups) List(context.Context) ([]v1alpha1.NodeGroup, error) { return g, nil }

// readForRooms reads the live cluster for [successorRooms].
func (k kubeFlags) readForRooms(ctx context.Context) (*saved.Objects, []v1alpha1.NodeGroup, error) {
	cluster := clusterFlags{kube: k}
	o, err := cluster.readCluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	groups, err := k.listNodeGroups(ctx)
	return o, groups, err
}

// listNodeGroups lists the NodeGroups. Without Slipway's CRDs there are none.
func (k kubeFlags) listNodeGroups(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	c, err := k.newObjectClient()
	if err != nil {
		return nil, err
	}
	var groups v1alpha1.NodeGroupList
	if err := c.List(ctx, &groups); err != nil && !isTypeMissing(err) {
		return nil, err
	}
	return groups.Items, nil
}
