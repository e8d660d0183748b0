// Package cordon cordons a node while there is a reason, and restores it afterwards.
//
// An owner is the name of a reason, such as "azure-<event id>". Several owners can have a cordon claim on one node. A
// claim is recorded on the node itself, in one annotation per owner. The request that changes the node also writes the
// record. So after any crash it is known what Slipway set, and nothing else is ever removed (invariant I3):
//
//   - The cordon (spec.unschedulable) counts as set by Slipway if the node was schedulable before. Such a node is uncordoned
//     with the last claim. A node that was cordoned before stays cordoned when the claims are removed.
//   - A taint (by key and effect), a label (by key) or a condition (by type) that another tool has set before does not
//     count as set by Slipway. Slipway does not change its value. If another owner in this package has set it, both owners
//     share it, and it is removed with the last claim. If another writer has changed the value, it no longer counts as set
//     by Slipway.
//
// Limit: if a user cordons a node that Slipway has cordoned, the node does not change. So the node is uncordoned with the
// last claim. A user who wants the node to stay cordoned must set a taint, or write a record of another owner.
//
// All changes are patches with the resourceVersion that they are based on. There is no PUT.
package cordon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// API lists the requests of this package to the API server. [kubeapi.Client] implements it.
type API interface {
	GetNode(ctx context.Context, name string) (*kubeapi.Node, error)
	// PatchNode sends a JSON merge patch.
	PatchNode(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
	// PatchNodeStatus sends a strategic merge patch to the status subresource.
	PatchNodeStatus(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
}

// minPause is the first pause after a conflict. Each further conflict doubles the pause, up to maxPause. After each
// pause the node is read again. All retries together take about four seconds, which a Spot notice of 30 s allows.
const (
	maxConflicts = 12
	minPause     = 10 * time.Millisecond
	maxPause     = 500 * time.Millisecond
)

// maxPatches limits the patches of one change. No change needs that many; the limit ends an endless loop of two writers
// that undo each other's changes.
const maxPatches = 16

// ClaimWriter writes and removes cordon claims on one node. Several goroutines, and several processes on the same node,
// may do so at once.
type ClaimWriter struct {
	api           API
	nodeName, uid string
	lastSeen      atomic.Pointer[kubeapi.Node]
}

// NewClaimWriter returns a ClaimWriter for the node with this name and UID. If another node with the same name has
// replaced the node, every method returns a [*ReplacedError].
func NewClaimWriter(api API, node, uid string) (*ClaimWriter, error) {
	if node == "" {
		return nil, errors.New("node: name is empty, want its metadata.name")
	}
	if uid == "" {
		return nil, fmt.Errorf("node %s: UID is empty, want its metadata.uid", node)
	}
	return &ClaimWriter{api: api, nodeName: node, uid: uid}, nil
}

// ObserveNode passes a state of the node that the caller has read. The next change uses this state once, and so does
// not have to read the node. If the state is outdated, one request fails and the node is read. A change is never
// reported as done based on this state alone.
func (k *ClaimWriter) ObserveNode(node *kubeapi.Node) {
	if node != nil && node.UID == k.uid {
		k.lastSeen.Store(node)
	}
}

// ClaimResult is the result of writing or removing a claim.
type ClaimResult struct {
	// Node is the node afterwards.
	Node *kubeapi.Node
	// Record is the owner's record; after a removal, the removed record.
	Record Record
	// Changed is false if no request was needed.
	Changed bool
	// WasUncordoned is true if the node was uncordoned in spite of the owner's claim. WriteClaim has cordoned it again. A
	// caller that accepts the uncordon calls WriteClaim without Unschedulable from then on.
	WasUncordoned bool
	// Restored names taints and labels of the owner that were missing and that WriteClaim has set again.
	Restored []string
	// NotOurs names requested taints, labels and conditions that exist already and are not ours. They stay when the
	// claim is removed.
	NotOurs []string
	// OtherOwners lists the other owners with a record on the node, sorted by name.
	OtherOwners []string
	// UnreadableRecords holds an [*UnreadableError] for each annotation of ours that cannot be parsed. Such annotations count
	// as no claim.
	UnreadableRecords []error
}

// WriteClaim writes the claim of an owner: it changes the node as the spec requests, and records the changes. A later
// call repairs the claim and applies changes of the spec. If the node has everything already, WriteClaim sends no
// request. If only the conditions could not be written, the error is a [*ConditionsError].
func (k *ClaimWriter) WriteClaim(ctx context.Context, owner string, r ClaimSpec) (ClaimResult, error) {
	if err := validateOwner(owner); err != nil {
		return ClaimResult{}, err
	}
	if err := r.validate(); err != nil {
		return ClaimResult{}, fmt.Errorf("node %s: owner %q: %w", k.nodeName, owner, err)
	}
	return k.applyPlansUntilDone(ctx, func(n *kubeapi.Node, conditions bool) (plan, error) {
		return planClaim(n, owner, r, time.Now(), conditions && !r.DeferConditions)
	})
}

// RemoveClaim removes the claim of an owner: its record, and everything in the record that no other owner claims.
// Without a record it sends no request.
//
// If the record cannot be parsed, RemoveClaim changes nothing and returns an [*UnreadableError]. If only the conditions
// could not be removed, the record stays and lists only the conditions. The error is then a [*ConditionsError].
func (k *ClaimWriter) RemoveClaim(ctx context.Context, owner string) (ClaimResult, error) {
	if err := validateOwner(owner); err != nil {
		return ClaimResult{}, err
	}
	return k.applyPlansUntilDone(ctx, func(n *kubeapi.Node, conditions bool) (plan, error) {
		return planClaimRemoval(n, owner, conditions)
	})
}

// applyPlansUntilDone sends the patches of a change. After each patch it plans again from the resulting node, until
// nothing is left to change. A plan depends on the node alone, so it does not matter if an earlier process sent some of
// the patches.
//
// If the conditions cannot be written, it makes all other changes, because conditions only inform people.
func (k *ClaimWriter) applyPlansUntilDone(ctx context.Context, planNext func(n *kubeapi.Node, conditions bool) (plan, error)) (ClaimResult, error) {
	var done ClaimResult
	var withheld *ConditionsError
	node := k.lastSeen.Swap(nil)
	hearsay := node != nil
	var latest uint64
	for steps, conflicts := 0, 0; steps < maxPatches; {
		var err error
		if node == nil {
			if node, err = k.getNodeAtLeastVersion(ctx, latest); err != nil {
				return done, err
			}
		}
		latest = max(latest, kubeapi.ParseResourceVersion(node.ResourceVersion))
		p, err := planNext(node, withheld == nil)
		if hearsay && (err != nil || !p.hasChanges()) {
			hearsay, node = false, nil
			continue
		}
		if err != nil {
			return done, fmt.Errorf("node %s: %w", k.nodeName, err)
		}
		done.recordPlan(node, p)
		if !p.hasChanges() {
			if withheld != nil {
				return done, withheld
			}
			return done, nil
		}
		before := node
		node, err = k.sendNextPatch(ctx, node, p)
		switch {
		case err == nil:
			done.recordPatch(p)
			hearsay = false
			steps++
		case p.isStatusNext() && !kubeapi.IsConflict(err) && !kubeapi.IsNotFound(err) && ctx.Err() == nil:
			withheld = &ConditionsError{Err: err}
			node = before
		case !kubeapi.IsConflict(err):
			return done, err
		case conflicts == maxConflicts:
			return done, fmt.Errorf("node %s: conflict in each of %d attempts: %w", k.nodeName, conflicts+1, err)
		default:
			if err := sleepBackoff(ctx, conflicts); err != nil {
				return done, fmt.Errorf("node %s: %w", k.nodeName, err)
			}
			conflicts++
			hearsay, node = false, nil
		}
	}
	return done, fmt.Errorf("node %s: gave up after %d patches: another writer undoes them", k.nodeName,
		maxPatches)
}

func (k *ClaimWriter) getNodeCheckingUID(ctx context.Context) (*kubeapi.Node, error) {
	node, err := k.api.GetNode(ctx, k.nodeName)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.nodeName, err)
	}
	if node.UID != k.uid {
		return nil, &ReplacedError{Node: k.nodeName, WantUID: k.uid, GotUID: node.UID}
	}
	return node, nil
}

// getNodeAtLeastVersion reads the node until its resourceVersion is at least latest. An older answer may lack a record
// that was just written. Slipway would then not remove what that record lists.
func (k *ClaimWriter) getNodeAtLeastVersion(ctx context.Context, minVersion uint64) (*kubeapi.Node, error) {
	for attempts := 0; ; attempts++ {
		node, err := k.getNodeCheckingUID(ctx)
		if err != nil {
			return nil, err
		}
		v := kubeapi.ParseResourceVersion(node.ResourceVersion)
		if v == 0 || v >= minVersion {
			return node, nil
		}
		if attempts == maxConflicts {
			return nil, fmt.Errorf("node %s: the API server returns resourceVersion %d, older than %d seen before", k.nodeName, v, minVersion)
		}
		if err := sleepBackoff(ctx, attempts); err != nil {
			return nil, fmt.Errorf("node %s: %w", k.nodeName, err)
		}
	}
}

// sendNextPatch sends the next patch of the plan. It returns the resulting node, or nil with an error.
func (k *ClaimWriter) sendNextPatch(ctx context.Context, node *kubeapi.Node, p plan) (*kubeapi.Node, error) {
	patch, isStatus, err := p.nextPatch(node.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.nodeName, err)
	}
	send := k.api.PatchNode
	if isStatus {
		send = k.api.PatchNodeStatus
	}
	patched, err := send(ctx, k.nodeName, patch)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.nodeName, err)
	}
	return patched, nil
}

// recordPlan copies the findings of the latest plan into the result. The last plan of a removal finds no record, so the
// result keeps the record of the plan before.
func (o *ClaimResult) recordPlan(node *kubeapi.Node, p plan) {
	o.Node, o.NotOurs, o.OtherOwners = node, p.notOurs, p.otherOwners
	if o.UnreadableRecords == nil {
		o.UnreadableRecords = p.problems // an unreadable record is seen only once, because the first patch replaces it
	}
	if p.record != nil {
		o.Record = *p.record
	}
}

// recordPatch adds to the result what the sent patch has changed.
func (o *ClaimResult) recordPatch(p plan) {
	o.Changed = true
	o.WasUncordoned = o.WasUncordoned || p.uncordoned
	o.Restored = append(o.Restored, p.restored...)
}

// sleepBackoff waits before the next retry, or until ctx ends. Half of the pause is random, so that two writers do not
// conflict again.
func sleepBackoff(ctx context.Context, attempts int) error {
	limit := min(minPause<<attempts, maxPause)
	timer := time.NewTimer(limit/2 + rand.N(limit/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ConditionsError is the error if everything was written except the node's conditions.
type ConditionsError struct{ Err error }

func (e *ConditionsError) Error() string { return "conditions: " + e.Err.Error() }

func (e *ConditionsError) Unwrap() error { return e.Err }

// IsConditionsError reports whether err is a [*ConditionsError].
func IsConditionsError(err error) bool {
	var withheld *ConditionsError
	return errors.As(err, &withheld)
}

// ReplacedError is the error if the node was deleted and another node has the same name now.
type ReplacedError struct {
	Node            string
	WantUID, GotUID string // UIDs
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("node %s: metadata.uid is %s, want %s: another node has replaced it, and is not changed",
		e.Node, e.GotUID, e.WantUID)
}

// IsReplacedError reports whether err is a [*ReplacedError].
func IsReplacedError(err error) bool {
	var replaced *ReplacedError
	return errors.As(err, &replaced)
}
