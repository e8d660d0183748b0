// Package orphans finds instances of the cluster without a Node, and Nodes without an instance. It reports each with
// its proofs. If configured, it deletes orphaned instances and retires orphaned Nodes after a grace period.
//
// An orphan must be found in every scan of the whole grace period. After a restart the grace period begins again. A scan
// compares complete lists of instances and Nodes (invariant I7: unknown is not gone). Many orphaned instances at once
// mean that the cluster has lost its Nodes; see limit.go.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// OrphanKind is the kind of an orphan.
type OrphanKind string

const (
	// OrphanedInstance is an instance without a Node.
	OrphanedInstance OrphanKind = "Instance"
	// OrphanedNode is a Node without an instance.
	OrphanedNode OrphanKind = "Node"
)

// Node has the fields of a Node that a Finder reads.
type Node struct {
	Name       string
	ProviderID string
	SystemUUID string // status.nodeInfo.systemUUID
	Ready      bool
	Created    time.Time
	// ControlPlane marks a node of the control plane. No group creates it, and it exists even if all other Nodes are
	// lost.
	ControlPlane bool
}

// Finding is an orphaned instance or Node.
type Finding struct {
	Kind OrphanKind
	// ProviderID is the instance's, also for an OrphanedNode.
	ProviderID string
	// Name is the name of the instance or the Node.
	Name string
	// Group is the cloud group of the instance; empty for an OrphanedNode.
	Group string
	// Proofs are the reasons for the finding, each a sentence.
	Proofs []string
	// FirstFoundAt is when it was first found. ScanCount is the number of scans that have found it since.
	FirstFoundAt time.Time
	ScanCount    int
	// IsDue is true if it was found during the whole grace period.
	IsDue bool
	// KeptReason says why the orphan is not deleted even if it is due; empty if it may be.
	KeptReason string

	isExcluded bool // KeptReason is of this instance alone, and not of the limit
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s (%s): %s", f.Kind, f.Name, f.ProviderID, strings.Join(f.Proofs, "; "))
}

// Cloud lists the methods of [cloud.Provider] that a Finder calls.
type Cloud interface {
	Normalize(providerID string) (string, error)
	Instance(ctx context.Context, providerID string) (cloud.Instance, error)
}

// GracePeriod says how long, and in how many scans, an orphan must be found before Slipway deletes or retires it.
type GracePeriod struct {
	// JoinTimeout is how long an instance may take to join after its creation.
	JoinTimeout time.Duration
	// ConfirmFor is how long an orphan must be found, in every scan, until it is due.
	ConfirmFor time.Duration
	// MinScans is the minimum number of scans.
	MinScans int
}

// DefaultGracePeriod returns a grace period for instances that join the cluster within minutes.
func DefaultGracePeriod() GracePeriod {
	return GracePeriod{JoinTimeout: 30 * time.Minute, ConfirmFor: 15 * time.Minute, MinScans: 3}
}

// Finder finds orphans, and remembers the findings of the previous scan. It is not safe for concurrent use.
type Finder struct {
	// IsExempt reports whether an instance cannot be an orphan; nil spares none.
	IsExempt func(cloud.Instance) bool
	// KeepReason returns why an instance must not be deleted even if it is orphaned, or "" if it may be; nil keeps none.
	KeepReason func(cloud.Instance) string

	cloud         Cloud
	grace         GracePeriod
	previous      map[string]Finding // by kind, name and provider ID
	lastLimitedAt time.Time          // when there were last too many orphans
}

// NewFinder returns a Finder without findings of a previous scan.
func NewFinder(c Cloud, g GracePeriod) *Finder {
	return &Finder{cloud: c, grace: g, previous: map[string]Finding{}}
}

// FindOrphans compares all instances of the cluster with all Nodes. It returns the orphans, sorted by kind and name.
// The cloud must have marked each of the instances as the cluster's. For a cloud without marks, use
// [Finder.FindOrphanedNodes]. If the cloud does not answer for a Node, the Node is not in the result, and the error
// reports that.
func (f *Finder) FindOrphans(ctx context.Context, instances []cloud.Instance, nodes []Node, now time.Time) ([]Finding, error) {
	seen := map[string]Finding{}
	hosts := f.newNodeIndex(nodes...)
	for _, i := range instances {
		if f.IsExempt != nil && f.IsExempt(i) {
			continue
		}
		if proofs := f.proveNoNode(i, hosts, len(nodes), now); proofs != nil {
			kept := f.whyKept(i)
			f.addFinding(seen, Finding{
				Kind: OrphanedInstance, ProviderID: i.ProviderID, Name: i.Name, Group: i.Group, Proofs: proofs, KeptReason: kept, isExcluded: kept != "",
			}, now)
		}
	}
	f.keepOrphansOverLimit(seen, instances, hosts, nodes, now)
	err := f.addOrphanedNodes(ctx, seen, instances, f.findUnreadyNodesOfCloud(nodes, now), now)
	return f.storeAndSortFindings(seen), err
}

// whyKept returns the result of KeepReason.
func (f *Finder) whyKept(i cloud.Instance) string {
	if f.KeepReason == nil {
		return ""
	}
	return f.KeepReason(i)
}

// FindOrphanedNodes returns the orphaned Nodes in a cloud that does not mark the cluster's instances. There, orphaned
// instances cannot be found. Each of nodes must be a Node that the caller may check. list returns all known instances
// of the cloud; it confirms the cloud's answer for a single instance. It is called only if a Node is not Ready. If list
// fails, the result is empty (invariant I7: unknown is not gone).
func (f *Finder) FindOrphanedNodes(ctx context.Context, listInstances func(context.Context) ([]cloud.Instance, error), nodes []Node, now time.Time) ([]Finding, error) {
	seen := map[string]Finding{}
	silent := f.findUnreadyNodesOfCloud(nodes, now)
	if len(silent) == 0 {
		return f.storeAndSortFindings(seen), nil
	}
	instances, err := listInstances(ctx)
	if err != nil {
		return f.storeAndSortFindings(seen), err
	}
	err = f.addOrphanedNodes(ctx, seen, instances, silent, now)
	return f.storeAndSortFindings(seen), err
}

// storeAndSortFindings stores the findings for the next scan, and returns them sorted by kind and name.
func (f *Finder) storeAndSortFindings(seen map[string]Finding) []Finding {
	f.previous = seen
	return slices.SortedFunc(maps.Values(seen), func(a, b Finding) int {
		return strings.Compare(string(a.Kind)+a.Name+a.ProviderID, string(b.Kind)+b.Name+b.ProviderID)
	})
}

// addFinding adds a finding to seen. If the previous scan had the same finding, the time of the first scan and the
// number of scans continue. They start again if the instance could not be deleted before: the whole grace period is then
// left to let it join.
func (f *Finder) addFinding(seen map[string]Finding, found Finding, now time.Time) {
	key := string(found.Kind) + " " + found.Name + " " + found.ProviderID
	found.FirstFoundAt, found.ScanCount = now, 1
	if before, ok := f.previous[key]; ok && before.isExcluded == found.isExcluded {
		found.FirstFoundAt, found.ScanCount = before.FirstFoundAt, before.ScanCount+1
	}
	found.IsDue = found.ScanCount >= f.grace.MinScans && now.Sub(found.FirstFoundAt) >= f.grace.ConfirmFor
	seen[key] = found
}

// proveNoNode returns the proofs that an instance has no Node, as texts. It returns nil if one of the proofs fails.
func (f *Finder) proveNoNode(i cloud.Instance, hosts *cloud.NodeIndex, nodes int, now time.Time) []string {
	if i.State == cloud.Deleting || i.State == cloud.Unknown || i.Created.IsZero() || now.Sub(i.Created) < f.grace.JoinTimeout {
		return nil
	}
	if node, err := hosts.FindNode(i); node != "" || err != nil {
		return nil
	}
	return []string{
		fmt.Sprintf("the cloud has it marked as the cluster's, in group %s, %s", i.Group, i.State),
		fmt.Sprintf("it was created %s ago, and an instance has %s to join", now.Sub(i.Created).Round(time.Second), f.grace.JoinTimeout),
		fmt.Sprintf("none of the %d Nodes has its provider ID, its name, its host name or its ID as system UUID", nodes),
	}
}

// newNodeIndex returns an index to look up the Node of an instance.
func (f *Finder) newNodeIndex(nodes ...Node) *cloud.NodeIndex {
	all := make([]cloud.NodeIdentity, len(nodes))
	for i, n := range nodes {
		all[i] = cloud.NodeIdentity{Name: n.Name, ProviderID: n.ProviderID, SystemUUID: n.SystemUUID}
	}
	return cloud.NewNodeIndex(f.cloud.Normalize, all)
}

// findUnreadyNodesOfCloud returns the Nodes of this cloud that may be orphaned: they are not Ready, and were created
// before the join timeout began.
func (f *Finder) findUnreadyNodesOfCloud(nodes []Node, now time.Time) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool {
		if n.Ready || n.ProviderID == "" || now.Sub(n.Created) < f.grace.JoinTimeout {
			return true
		}
		_, err := f.cloud.Normalize(n.ProviderID)
		return err != nil // a Node of another cloud
	})
}

// addOrphanedNodes adds each of the silent Nodes that has no instance to seen. It returns an error that names the Nodes
// without an answer of the cloud.
func (f *Finder) addOrphanedNodes(ctx context.Context, seen map[string]Finding, instances []cloud.Instance, silent []Node, now time.Time) error {
	var errs []error
	for _, n := range silent {
		proofs, err := f.proveNoInstance(ctx, n, instances)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		if proofs != nil {
			f.addFinding(seen, Finding{Kind: OrphanedNode, ProviderID: n.ProviderID, Name: n.Name, Proofs: proofs}, now)
		}
	}
	return errors.Join(errs...)
}

// proveNoInstance returns the proofs that a Node that is not Ready has no instance, as texts. It returns nil if one of
// the proofs fails, and an error if the cloud did not answer.
func (f *Finder) proveNoInstance(ctx context.Context, n Node, instances []cloud.Instance) ([]string, error) {
	id, err := f.cloud.Normalize(n.ProviderID)
	if err != nil {
		return nil, err
	}
	host := f.newNodeIndex(n)
	for _, i := range instances {
		if node, _ := host.FindNode(i); node != "" {
			return nil, nil
		}
	}
	switch _, err := f.cloud.Instance(ctx, id); {
	case err == nil:
		return nil, nil
	case !cloud.IsNotFound(err):
		return nil, err
	}
	return []string{
		"the cloud does not find " + id,
		fmt.Sprintf("none of the %d instances that the cloud lists has its provider ID, its name or its system UUID", len(instances)),
		"its kubelet does not report: the Node is not Ready",
	}, nil
}
