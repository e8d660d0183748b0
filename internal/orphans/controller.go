package orphans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/instances"
)

const (
	// lookTimeout bounds one look.
	lookTimeout = 2 * time.Minute
	// pageSize is how many Nodes, or NodeRetirements, are read at once.
	pageSize = 500
)

// How sure it is that something is an orphan.
const (
	suspected = "suspected"
	proven    = "proven"
)

// marking is a cloud that tells by its own marks which machines are the cluster's, whatever group they are in. Of any
// other cloud it is not known whose a machine without a Node is.
type marking interface {
	instances.Deleter
	cloud.Marker
	Name() string
}

// unmarked is a cloud without such marks, whose word that a machine is gone holds for all of it: it has orphaned Nodes, and no orphaned
// instances. That it is not asked to delete anything is why it has no Delete here.
type unmarked interface {
	Cloud
	cloud.GoneProver
	Name() string
	Instances(ctx context.Context, group string) ([]cloud.Instance, error)
}

// Groups returns the NodeGroups that are in force.
type Groups interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options configure a Controller. All fields but Delete are required.
type Options struct {
	// Client creates NodeRetirements.
	Client client.Client
	// Live reads past the cache, which leaves out what tells Nodes apart, and has only the NodeRetirements that this manager
	// selects.
	Live     client.Reader
	Groups   Groups
	Selector labels.Selector
	// Delete has orphaned instances deleted and orphaned Nodes retired; otherwise they are reported only.
	Delete  bool
	Grace   Grace
	Every   time.Duration
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger
}

// Controller finds the orphaned instances and Nodes of one cloud and reports each. It is a manager's Runnable.
type Controller struct {
	o        Options
	name     string   // the cloud's
	marking  marking  // nil for a cloud without marks
	unmarked unmarked // nil for a cloud with marks
	nodes    *instances.Nodes

	reported map[string]string // what was last reported, by kind and name
	kept     map[string]bool   // the cloud's groups of which it was reported that their orphans are kept
}

// New returns a Controller for a cloud. It is nil for a cloud that can tell neither which instances are the cluster's, nor for
// certain that one is gone.
func New(p interface{ Name() string }, o Options) *Controller {
	s := &Controller{o: o, name: p.Name(), nodes: instances.NewNodes(o.Live)}
	var ok bool
	if s.marking, ok = p.(marking); !ok {
		s.unmarked, ok = p.(unmarked)
	}
	if !ok {
		return nil
	}
	return s
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Controller) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (s *Controller) Start(ctx context.Context) error {
	s.reported = map[string]string{}
	finder := s.finder()
	for {
		if err := s.look(ctx, finder); err != nil && ctx.Err() == nil {
			s.o.Metrics.failures.WithLabelValues(s.name).Inc()
			s.o.Log.Warn("not everything is known of machines without a Node and Nodes without a machine", "err", err)
		}
		if !elapsed.Sleep(ctx, s.o.Every) {
			return nil
		}
	}
}

func (s *Controller) look(ctx context.Context, finder *Finder) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	seen, err := s.readSnapshot(ctx)
	if err != nil {
		return err
	}
	findings, unknown := s.find(ctx, finder, seen)
	s.report(seen, findings)
	if !s.o.Delete {
		return unknown
	}
	return errors.Join(unknown, s.deleteInstances(ctx, seen, findings), s.retireNodes(ctx, seen, findings))
}

func (s *Controller) finder() *Finder {
	if s.marking != nil {
		return NewFinder(s.marking, s.o.Grace)
	}
	return NewFinder(s.unmarked, s.o.Grace)
}

func (s *Controller) find(ctx context.Context, finder *Finder, seen *snapshot) ([]Finding, error) {
	if s.marking != nil {
		finder.Spare = seen.isSpared
		findings, err := finder.Look(ctx, seen.machines, seen.nodes, time.Now())
		return slices.DeleteFunc(findings, func(f Finding) bool { return f.Kind == OrphanedNode && s.othersNode(seen, f.Name) }), err
	}
	list := func(ctx context.Context) ([]cloud.Instance, error) { return s.listGroups(ctx, seen) }
	return finder.OrphanedNodes(ctx, list, slices.DeleteFunc(slices.Clone(seen.nodes), func(n Node) bool {
		return !s.mayAsk(seen, n)
	}), time.Now())
}

// mayAsk says whether a cloud without marks is to be asked about a Node: its owner is this manager's and says that it is
// there, and the cloud's word would prove something.
func (s *Controller) mayAsk(seen *snapshot, n Node) bool {
	g := seen.byName[seen.owner[n.Name]]
	return g != nil && s.mine(g) && g.Spec.Cloud.Provider == s.name && s.unmarked.ProvesGone(n.ProviderID)
}

// othersNode says that a Node's owner is a group of another cloud, whose machine's ID is only spelt as this one's are: a
// pool's machines have the IDs of the cloud that they are in.
func (s *Controller) othersNode(seen *snapshot, node string) bool {
	g := seen.byName[seen.owner[node]]
	return g != nil && g.Spec.Cloud.Provider != s.name
}

func (s *Controller) mine(g *v1alpha1.NodeGroup) bool {
	return s.o.Selector.Matches(labels.Set(g.Labels))
}

// listGroups lists the machines of all groups that this manager's NodeGroups have in the cloud, or nothing (I7). What
// another manager's NodeGroup calls a group may not be known to this one's configuration, nor be its credential's to read.
func (s *Controller) listGroups(ctx context.Context, seen *snapshot) ([]cloud.Instance, error) {
	named := map[string]bool{}
	for _, g := range seen.byName {
		if s.mine(g) && g.Spec.Cloud.Provider == s.name {
			named[g.Spec.Cloud.Group] = true
		}
	}
	var all []cloud.Instance
	for _, group := range slices.Sorted(maps.Keys(named)) {
		machines, err := s.unmarked.Instances(ctx, group)
		if err != nil {
			return nil, fmt.Errorf("the machines of %s, without which no Node is called one without a machine: %w", group, err)
		}
		all = append(all, machines...)
	}
	return all, nil
}
