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
	// scanTimeout is the timeout of one scan.
	scanTimeout = 2 * time.Minute
	// pageSize is the number of Nodes, or of NodeRetirements, that one request reads.
	pageSize = 500
)

// These values say how certain a finding is: found in some scans, or found for the whole grace period.
const (
	suspected = "suspected"
	proven    = "proven"
)

// markingCloud is a cloud that marks each instance with its cluster, so that instances without a Node can be assigned
// to a cluster. In any other cloud, an instance without a Node may belong to another cluster.
type markingCloud interface {
	instances.Deleter
	cloud.InstanceTagger
	Name() string
}

// unmarkedCloud is a cloud that does not mark the instances of the cluster, but can prove that an instance does not
// exist. There, only orphaned Nodes can be found. The interface has no Delete, because nothing is deleted in such a
// cloud.
type unmarkedCloud interface {
	Cloud
	cloud.DeletionVerifier
	Name() string
	Instances(ctx context.Context, group string) ([]cloud.Instance, error)
}

// GroupLister lists the valid NodeGroups.
type GroupLister interface {
	List(ctx context.Context) ([]v1alpha1.NodeGroup, error)
}

// Options configures a Controller. All fields but DeleteOrphans are required.
type Options struct {
	// Client creates NodeRetirements.
	Client client.Client
	// LiveReader reads from the API server. The cache drops fields that distinguish Nodes, and has only the NodeRetirements
	// that this manager selects.
	LiveReader client.Reader
	Groups     GroupLister
	Selector   labels.Selector
	// DeleteOrphans deletes orphaned instances and retires orphaned Nodes. Without it, they are only reported.
	DeleteOrphans bool
	GracePeriod   GracePeriod
	ScanInterval  time.Duration
	Events        events.EventRecorder
	Metrics       *Metrics
	Log           *slog.Logger
}

// Controller finds and reports orphaned instances and orphaned Nodes of one cloud. The manager runs it.
type Controller struct {
	options   Options
	cloudName string        // of the cloud
	marking   markingCloud  // nil for a cloud without marks
	unmarked  unmarkedCloud // nil for a cloud with marks
	nodes     *instances.NodeReader

	reported     map[string]string // state last reported, by kind and name
	reportedKept map[string]bool   // cloud groups with a report that their orphans are kept
}

// NewIfSupported returns a Controller for a cloud, or nil. The cloud must mark the cluster's instances, or be able to
// prove that an instance does not exist. For any other cloud the result is nil.
func NewIfSupported(p interface{ Name() string }, o Options) *Controller {
	s := &Controller{options: o, cloudName: p.Name(), nodes: instances.NewNodeReader(o.LiveReader)}
	var ok bool
	if s.marking, ok = p.(markingCloud); !ok {
		s.unmarked, ok = p.(unmarkedCloud)
	}
	if !ok {
		return nil
	}
	return s
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Controller) NeedLeaderElection() bool { return true }

// Start scans periodically until ctx ends.
func (s *Controller) Start(ctx context.Context) error {
	s.reported = map[string]string{}
	finder := s.newFinder()
	for {
		if err := s.scanAndCleanUp(ctx, finder); err != nil && ctx.Err() == nil {
			s.options.Metrics.failures.WithLabelValues(s.cloudName).Inc()
			s.options.Log.Warn("the scan for orphaned instances and Nodes is incomplete", "err", err)
		}
		if !elapsed.Sleep(ctx, s.options.ScanInterval) {
			return nil
		}
	}
}

func (s *Controller) scanAndCleanUp(ctx context.Context, finder *Finder) error {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	seen, err := s.readSnapshot(ctx)
	if err != nil {
		return err
	}
	findings, unknown := s.findOrphans(ctx, finder, seen)
	s.reportChangedFindings(seen, findings)
	if !s.options.DeleteOrphans {
		return unknown
	}
	return errors.Join(unknown, s.deleteDueInstances(ctx, seen, findings), s.retireDueNodes(ctx, seen, findings))
}

func (s *Controller) newFinder() *Finder {
	if s.marking != nil {
		return NewFinder(s.marking, s.options.GracePeriod)
	}
	return NewFinder(s.unmarked, s.options.GracePeriod)
}

func (s *Controller) findOrphans(ctx context.Context, finder *Finder, seen *snapshot) ([]Finding, error) {
	if s.marking != nil {
		finder.IsExempt = func(i cloud.Instance) bool { return seen.isHandled(i) || s.isOfOtherManager(seen, i) }
		finder.KeepReason = func(i cloud.Instance) string { return s.whyKept(seen, i) }
		findings, err := finder.FindOrphans(ctx, seen.instances, seen.nodes, time.Now())
		return slices.DeleteFunc(findings, func(f Finding) bool { return f.Kind == OrphanedNode && s.isNodeOfOtherCloud(seen, f.Name) }), err
	}
	list := func(ctx context.Context) ([]cloud.Instance, error) { return s.listGroupInstances(ctx, seen) }
	return finder.FindOrphanedNodes(ctx, list, slices.DeleteFunc(slices.Clone(seen.nodes), func(n Node) bool {
		return !s.canCheckNode(seen, n)
	}), time.Now())
}

// canCheckNode reports whether the Controller may ask an unmarkedCloud if the instance of this Node exists. The Node's
// group must belong to this manager and to this cloud.
func (s *Controller) canCheckNode(seen *snapshot, n Node) bool {
	g := s.findOwnGroup(seen, n.Name)
	return g != nil && g.Spec.Cloud.Provider == s.cloudName && s.unmarked.NotFoundMeansDeleted(n.ProviderID)
}

// isNodeOfOtherCloud reports whether the Node belongs to a group in another cloud. The provider ID alone does not show
// that: the instances of a cloudpool have provider IDs of the cloud behind it.
func (s *Controller) isNodeOfOtherCloud(seen *snapshot, node string) bool {
	g := seen.groupByName[seen.groupOfNode[node]]
	return g != nil && g.Spec.Cloud.Provider != s.cloudName
}

// isOfOtherManager reports whether the instance is in a NodeGroup of another manager, which finds its orphans itself.
func (s *Controller) isOfOtherManager(seen *snapshot, i cloud.Instance) bool {
	g := seen.groupByCloudGroup[i.Group]
	return g != nil && !s.isOwnGroup(g)
}

// whyKept returns why an orphaned instance is not deleted, or "" if it may be. If its group has no NodeGroup here, another
// manager may have launched the instance for a NodeGroup from a file, with a longer join timeout (I4).
func (s *Controller) whyKept(seen *snapshot, i cloud.Instance) string {
	if g := seen.groupByCloudGroup[i.Group]; g == nil || !s.isOwnGroup(g) {
		return fmt.Sprintf("no NodeGroup of this manager has the cloud group %q", i.Group)
	}
	return ""
}

// findOwnGroup returns the group of the Node. It returns nil for a Node without a group, or in another manager's group.
func (s *Controller) findOwnGroup(seen *snapshot, node string) *v1alpha1.NodeGroup {
	if g := seen.groupByName[seen.groupOfNode[node]]; g != nil && s.isOwnGroup(g) {
		return g
	}
	return nil
}

func (s *Controller) isOwnGroup(g *v1alpha1.NodeGroup) bool {
	return s.options.Selector.Matches(labels.Set(g.Labels))
}

// listGroupInstances lists the instances of this manager's groups in the cloud. If one group cannot be read, it returns
// none and the error (invariant I7: unknown is not gone). It does not read groups of other managers, because this
// manager may not know them.
func (s *Controller) listGroupInstances(ctx context.Context, seen *snapshot) ([]cloud.Instance, error) {
	named := map[string]bool{}
	for _, g := range seen.groupByName {
		if s.isOwnGroup(g) && g.Spec.Cloud.Provider == s.cloudName {
			named[g.Spec.Cloud.Group] = true
		}
	}
	var all []cloud.Instance
	for _, group := range slices.Sorted(maps.Keys(named)) {
		machines, err := s.unmarked.Instances(ctx, group)
		if err != nil {
			return nil, fmt.Errorf("listing the instances of %s, without which no Node counts as orphaned: %w", group, err)
		}
		all = append(all, machines...)
	}
	return all, nil
}
