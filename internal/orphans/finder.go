// Package orphans finds instances of the cluster without a Node, and Nodes without an instance. It reports each with its
// proofs. Where it may, it deletes orphaned instances and retires orphaned Nodes after a grace period.
//
// Each must be found in every look for the whole grace period, which a restart begins anew. A look compares complete lists of
// instances and Nodes (I7). Many orphaned instances at once are Nodes that the cluster has lost: see limit.go.
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

// Kind is what was found.
type Kind string

// The kinds.
const (
	// OrphanedInstance is an instance without a Node.
	OrphanedInstance Kind = "Instance"
	// OrphanedNode is a Node without an instance.
	OrphanedNode Kind = "Node"
)

// Node is what is known of a Node.
type Node struct {
	Name       string
	ProviderID string
	SystemUUID string // of status.nodeInfo
	Ready      bool
	Created    time.Time
	// ControlPlane is one of the control plane's, which no group makes and which is there when all others are lost.
	ControlPlane bool
}

// Finding is a machine or a Node that has no other half.
type Finding struct {
	Kind Kind
	// ProviderID is the machine's, also for an OrphanedNode.
	ProviderID string
	// Name is the machine's, or the Node's.
	Name string
	// Group is the machine's; empty for an OrphanedNode.
	Group string
	// Proofs are what speaks for it, each a sentence.
	Proofs []string
	// Since is when it was first found so, and Looks how often since.
	Since time.Time
	Looks int
	// Due says that it was found so for the whole grace.
	Due bool
	// Kept is why the orphan is not deleted even when it is due; empty when nothing speaks against it.
	Kept string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s (%s): %s", f.Kind, f.Name, f.ProviderID, strings.Join(f.Proofs, "; "))
}

// Cloud is the part of [cloud.Provider] that a Finder asks.
type Cloud interface {
	Normalize(providerID string) (string, error)
	Instance(ctx context.Context, providerID string) (cloud.Instance, error)
}

// Grace is how long and how often something must be found.
type Grace struct {
	// Join is how long a machine has to join, counted from when it was made.
	Join time.Duration
	// Stay is for how long something must be found, in every look, before it is due.
	Stay time.Duration
	// Looks is in how many looks at the least.
	Looks int
}

// DefaultGrace suits machines that join within minutes.
func DefaultGrace() Grace { return Grace{Join: 30 * time.Minute, Stay: 15 * time.Minute, Looks: 3} }

// Finder remembers what was found in earlier looks. It is for one caller at a time.
type Finder struct {
	// Spare says that a machine is no orphan, whatever speaks for it; nil spares none.
	Spare func(cloud.Instance) bool

	cloud Cloud
	grace Grace
	known map[string]Finding // by kind and provider ID or name
	kept  time.Time          // when orphans were last too many
}

// NewFinder returns a Finder.
func NewFinder(c Cloud, g Grace) *Finder {
	return &Finder{cloud: c, grace: g, known: map[string]Finding{}}
}

// Look compares all instances of the cluster with all Nodes, and returns what it finds, ordered by kind and name. The
// machines must be those that the cloud's own marks say are the cluster's; of a cloud without marks, see [Finder.OrphanedNodes].
// When the cloud fails to answer for a Node, nothing is found about that one.
func (f *Finder) Look(ctx context.Context, machines []cloud.Instance, nodes []Node, now time.Time) ([]Finding, error) {
	seen := map[string]Finding{}
	hosts := f.hosts(nodes...)
	for _, m := range machines {
		if f.Spare != nil && f.Spare(m) {
			continue
		}
		if proofs := f.proofsAgainstInstance(m, hosts, len(nodes), now); proofs != nil {
			f.note(seen, Finding{Kind: OrphanedInstance, ProviderID: m.ProviderID, Name: m.Name, Group: m.Group, Proofs: proofs}, now)
		}
	}
	f.limit(seen, machines, hosts, nodes, now)
	err := f.orphanedNodes(ctx, seen, machines, f.silent(nodes, now), now)
	return f.remember(seen), err
}

// OrphanedNodes is [Finder.Look] for a cloud that does not mark its machines: nobody knows whose one without a Node is there, so
// that no orphan is found. The Nodes are those that are the caller's to ask about. The list takes the place of the marked
// machines, as what the cloud's word about one machine has to agree with; it is asked for when a Node is silent, and when
// it fails, nothing is found (I7).
func (f *Finder) OrphanedNodes(ctx context.Context, list func(context.Context) ([]cloud.Instance, error), nodes []Node, now time.Time) ([]Finding, error) {
	seen := map[string]Finding{}
	silent := f.silent(nodes, now)
	if len(silent) == 0 {
		return f.remember(seen), nil
	}
	machines, err := list(ctx)
	if err != nil {
		return f.remember(seen), err
	}
	err = f.orphanedNodes(ctx, seen, machines, silent, now)
	return f.remember(seen), err
}

// remember keeps in mind what a look has found, and gives it in order.
func (f *Finder) remember(seen map[string]Finding) []Finding {
	f.known = seen
	return slices.SortedFunc(maps.Values(seen), func(a, b Finding) int {
		return strings.Compare(string(a.Kind)+a.Name+a.ProviderID, string(b.Kind)+b.Name+b.ProviderID)
	})
}

// note carries on from the look before.
func (f *Finder) note(seen map[string]Finding, found Finding, now time.Time) {
	key := string(found.Kind) + " " + found.Name + " " + found.ProviderID
	found.Since, found.Looks = now, 1
	if before, ok := f.known[key]; ok {
		found.Since, found.Looks = before.Since, before.Looks+1
	}
	found.Due = found.Looks >= f.grace.Looks && now.Sub(found.Since) >= f.grace.Stay
	seen[key] = found
}

// proofsAgainstInstance returns the proofs that a machine has no Node, and nil when one of them fails.
func (f *Finder) proofsAgainstInstance(m cloud.Instance, hosts *cloud.Hosts, nodes int, now time.Time) []string {
	if m.State == cloud.Deleting || m.State == cloud.Unknown || m.Created.IsZero() || now.Sub(m.Created) < f.grace.Join {
		return nil
	}
	if node, err := hosts.Of(m); node != "" || err != nil {
		return nil
	}
	return []string{
		fmt.Sprintf("the cloud has it as the cluster's, in group %s, %s", m.Group, m.State),
		fmt.Sprintf("it was made %s ago, and a machine has %s to join", now.Sub(m.Created).Round(time.Second), f.grace.Join),
		fmt.Sprintf("none of the %d Nodes has its provider ID, its name, its host name or its ID as its system's", nodes),
	}
}

// hosts are what some Nodes say of their machines.
func (f *Finder) hosts(nodes ...Node) *cloud.Hosts {
	all := make([]cloud.Host, len(nodes))
	for i, n := range nodes {
		all[i] = cloud.Host{Name: n.Name, ProviderID: n.ProviderID, SystemUUID: n.SystemUUID}
	}
	return cloud.NewHosts(f.cloud.Normalize, all)
}

// silent gives the Nodes that may be orphaned, as far as they tell themselves: those that are not Ready, had their time to
// join, and are not another cloud's.
func (f *Finder) silent(nodes []Node, now time.Time) []Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool {
		if n.Ready || n.ProviderID == "" || now.Sub(n.Created) < f.grace.Join {
			return true
		}
		_, err := f.cloud.Normalize(n.ProviderID)
		return err != nil // another cloud's Node is not this one's to judge
	})
}

// orphanedNodes notes those of the silent Nodes that have no machine. An error is the cloud's, which leaves some open.
func (f *Finder) orphanedNodes(ctx context.Context, seen map[string]Finding, machines []cloud.Instance, silent []Node, now time.Time) error {
	var errs []error
	for _, n := range silent {
		proofs, err := f.proofsAgainstNode(ctx, n, machines)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		if proofs != nil {
			f.note(seen, Finding{Kind: OrphanedNode, ProviderID: n.ProviderID, Name: n.Name, Proofs: proofs}, now)
		}
	}
	return errors.Join(errs...)
}

// proofsAgainstNode returns the proofs that a silent Node has no machine, and nil when one of them fails. An error is the cloud's, which
// leaves it open.
func (f *Finder) proofsAgainstNode(ctx context.Context, n Node, machines []cloud.Instance) ([]string, error) {
	id, err := f.cloud.Normalize(n.ProviderID)
	if err != nil {
		return nil, err
	}
	host := f.hosts(n)
	for _, m := range machines {
		if node, _ := host.Of(m); node != "" {
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
		"the cloud says that there is no " + id,
		fmt.Sprintf("none of the %d machines that the cloud lists has its provider ID, its name or its system's ID", len(machines)),
		"its kubelet is silent: the Node is not Ready",
	}, nil
}
