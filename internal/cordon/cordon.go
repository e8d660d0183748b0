// Package cordon takes a node out of scheduling for as long as somebody has a reason, and puts it back as it was.
//
// Whoever has a reason is an owner: a name such as "azure-<event id>". Several owners can hold one node at once. What
// an owner put on the node is written down on the node itself, in one annotation per owner, in the same request that
// puts it there; so that it is known after any crash what is ours, and nothing else is ever taken away (invariant I3):
//
//   - spec.unschedulable is ours when we found the node schedulable. A node found cordoned by somebody else stays
//     cordoned when we let go. Of several owners the last to let go uncordons.
//   - A taint (by key and effect), a label (by key) or a condition (by type) that is there already is not ours, and its
//     value is not changed. One that an owner of ours set is shared by the next, and goes with the last. One whose
//     value somebody changed since is theirs.
//
// What cannot be told apart: somebody who cordons a node that we hold cordoned changes nothing that could be seen, so
// that it is uncordoned when we let go. Who wants a node to stay cordoned writes a record of his own, or a taint.
//
// All changes are patches that carry the resourceVersion they were worked out from. There is no PUT.
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

// API is what the package needs of the Kubernetes API. [kubeapi.Client] is one.
type API interface {
	GetNode(ctx context.Context, name string) (*kubeapi.Node, error)
	// PatchNode sends a JSON merge patch.
	PatchNode(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
	// PatchNodeStatus sends a strategic merge patch to the status subresource.
	PatchNodeStatus(ctx context.Context, name string, patch []byte) (*kubeapi.Node, error)
}

// Conflicts are met with a fresh read after a pause that doubles from firstPause to maxPause. All tries together take
// some four seconds, which a Spot notice of 30 s can bear.
const (
	maxConflicts = 12
	firstPause   = 10 * time.Millisecond
	maxPause     = 500 * time.Millisecond
)

// maxSteps is more patches than any hold or release needs; it stops two writers that undo each other's work for ever.
const maxSteps = 16

// Keeper holds and releases one node. It may be used by several goroutines and, on the same node, by several processes
// at once.
type Keeper struct {
	api       API
	node, uid string
	seen      atomic.Pointer[kubeapi.Node]
}

// New returns a keeper of the node with this name and UID. Another node that has come to bear the name is refused by
// every method, with an error that [IsReplaced] knows.
func New(api API, node, uid string) (*Keeper, error) {
	if node == "" {
		return nil, errors.New("node name is empty")
	}
	if uid == "" {
		return nil, fmt.Errorf("node %s: UID is empty; want its metadata.uid", node)
	}
	return &Keeper{api: api, node: node, uid: uid}, nil
}

// See tells the keeper of a state of the node that its user has just come to know. The next hold or release begins with
// it in place of reading the node, once. Should it be old, a request is sent in vain; but nothing is ever changed, or
// taken to be as it should be, on account of it alone.
func (k *Keeper) See(node *kubeapi.Node) {
	if node != nil && node.UID == k.uid {
		k.seen.Store(node)
	}
}

// Outcome is what a hold or a release found and did.
type Outcome struct {
	// Node is the node as it is now.
	Node *kubeapi.Node
	// Record is what is now written down for the owner; after a release, what was last.
	Record Record
	// Changed is false when the node was as it should be and nothing was sent.
	Changed bool
	// Uncordoned is true when somebody else had uncordoned the node although the owner held it cordoned. Hold has
	// cordoned it again. A caller that would rather yield holds it without Unschedulable from here on.
	Uncordoned bool
	// Restored names taints and labels that the owner had set, somebody had taken off, and Hold has set again.
	Restored []string
	// Foreign names what was asked for and is there already, as somebody else's: it stays when we let go.
	Foreign []string
	// HeldBy lists the other owners whose records are on the node, sorted by name.
	HeldBy []string
	// Problems are annotations of ours that cannot be read, each an [*UnreadableError]. They hold nothing.
	Problems []error
}

// Hold makes the node be as the request says on behalf of an owner, and writes down what it took. Run again it mends
// what is missing, takes up what is new in the request, lets go of what is no longer in it, and sends nothing when
// there is nothing to do. When all that fails is the writing of the conditions, the error is a [*ConditionsError].
func (k *Keeper) Hold(ctx context.Context, owner string, r Request) (Outcome, error) {
	if err := checkOwner(owner); err != nil {
		return Outcome{}, err
	}
	if err := r.check(); err != nil {
		return Outcome{}, fmt.Errorf("node %s: owner %q: %w", k.node, owner, err)
	}
	return k.settle(ctx, func(n *kubeapi.Node, conditions bool) (plan, error) {
		return planHold(n, owner, r, time.Now(), conditions && !r.Later)
	})
}

// Release takes away what the owner put on the node and no other owner still needs, and the owner's record with it.
// An owner without a record holds nothing, and nothing is sent.
//
// When there is a record but it cannot be read, nothing is touched and the error is an [*UnreadableError]. When all
// that fails is taking away the conditions, the record stays with nothing but those, so that they are known for ours,
// and the error is a [*ConditionsError].
func (k *Keeper) Release(ctx context.Context, owner string) (Outcome, error) {
	if err := checkOwner(owner); err != nil {
		return Outcome{}, err
	}
	return k.settle(ctx, func(n *kubeapi.Node, conditions bool) (plan, error) {
		return planRelease(n, owner, conditions)
	})
}

// settle sends what the plan says, plans again with the node that came back, and ends when nothing is left to do. As
// every plan is made from the node alone, it does not matter which of the patches a process before us has sent.
//
// Conditions only inform: when they cannot be written, whatever else there is to do is done without them.
func (k *Keeper) settle(ctx context.Context, next func(n *kubeapi.Node, conditions bool) (plan, error)) (Outcome, error) {
	var done Outcome
	var withheld *ConditionsError
	node := k.seen.Swap(nil)
	hearsay := node != nil
	var latest uint64
	for steps, conflicts := 0, 0; steps < maxSteps; {
		var err error
		if node == nil {
			if node, err = k.getSince(ctx, latest); err != nil {
				return done, err
			}
		}
		latest = max(latest, kubeapi.Version(node.ResourceVersion))
		p, err := next(node, withheld == nil)
		if hearsay && (err != nil || !p.patched()) {
			hearsay, node = false, nil
			continue
		}
		if err != nil {
			return done, fmt.Errorf("node %s: %w", k.node, err)
		}
		done.know(node, p)
		if !p.patched() {
			if withheld != nil {
				return done, withheld
			}
			return done, nil
		}
		before := node
		node, err = k.send(ctx, node, p)
		switch {
		case err == nil:
			done.did(p)
			hearsay = false
			steps++
		case p.nextIsStatus() && !kubeapi.IsConflict(err) && !kubeapi.IsNotFound(err) && ctx.Err() == nil:
			withheld = &ConditionsError{Err: err}
			node = before
		case !kubeapi.IsConflict(err):
			return done, err
		case conflicts == maxConflicts:
			return done, fmt.Errorf("node %s: changed under each of %d attempts: %w", k.node, conflicts+1, err)
		default:
			if err := pause(ctx, conflicts); err != nil {
				return done, fmt.Errorf("node %s: %w", k.node, err)
			}
			conflicts++
			hearsay, node = false, nil
		}
	}
	return done, fmt.Errorf("node %s: not settled after %d patches: somebody undoes them as they are made", k.node,
		maxSteps)
}

func (k *Keeper) get(ctx context.Context) (*kubeapi.Node, error) {
	node, err := k.api.GetNode(ctx, k.node)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.node, err)
	}
	if node.UID != k.uid {
		return nil, &ReplacedError{Node: k.node, Want: k.uid, Got: node.UID}
	}
	return node, nil
}

// getSince reads the node until the answer is not older than what was known of it: an old one has no record of what has just
// been put on the node, which would stay on it.
func (k *Keeper) getSince(ctx context.Context, latest uint64) (*kubeapi.Node, error) {
	for attempts := 0; ; attempts++ {
		node, err := k.get(ctx)
		if err != nil {
			return nil, err
		}
		v := kubeapi.Version(node.ResourceVersion)
		if v == 0 || v >= latest {
			return node, nil
		}
		if attempts == maxConflicts {
			return nil, fmt.Errorf("node %s: the API server answers with resourceVersion %d, and %d was seen before", k.node, v, latest)
		}
		if err := pause(ctx, attempts); err != nil {
			return nil, fmt.Errorf("node %s: %w", k.node, err)
		}
	}
}

// send sends one patch and returns the node that it made, or nil.
func (k *Keeper) send(ctx context.Context, node *kubeapi.Node, p plan) (*kubeapi.Node, error) {
	patch, isStatus, err := p.bytes(node.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.node, err)
	}
	send := k.api.PatchNode
	if isStatus {
		send = k.api.PatchNodeStatus
	}
	patched, err := send(ctx, k.node, patch)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", k.node, err)
	}
	return patched, nil
}

// know takes over what the latest plan saw. A release that is done sees no record any more: what it was stays.
func (o *Outcome) know(node *kubeapi.Node, p plan) {
	o.Node, o.Foreign, o.HeldBy = node, p.foreign, p.heldBy
	if o.Problems == nil {
		o.Problems = p.problems // a record that cannot be read is seen but once: the first step replaces it
	}
	if p.record != nil {
		o.Record = *p.record
	}
}

// did adds up what only the step that did it knows.
func (o *Outcome) did(p plan) {
	o.Changed = true
	o.Uncordoned = o.Uncordoned || p.uncordoned
	o.Restored = append(o.Restored, p.restored...)
}

// pause waits before the try after the given number of conflicts: half of the time for sure, half by chance, so that
// two that met do not meet again.
func pause(ctx context.Context, conflicts int) error {
	limit := min(firstPause<<conflicts, maxPause)
	timer := time.NewTimer(limit/2 + rand.N(limit/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ConditionsError says that everything was done but the writing of the node's conditions.
type ConditionsError struct{ Err error }

func (e *ConditionsError) Error() string { return "conditions: " + e.Err.Error() }

func (e *ConditionsError) Unwrap() error { return e.Err }

// IsConditions reports whether err says that everything was done but the writing of the node's conditions.
func IsConditions(err error) bool {
	var withheld *ConditionsError
	return errors.As(err, &withheld)
}

// ReplacedError says that the node is another than the one meant, of the same name.
type ReplacedError struct {
	Node      string
	Want, Got string // UIDs
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("node %s: metadata.uid is %s, want %s: it is another node of the same name, and is left alone",
		e.Node, e.Got, e.Want)
}

// IsReplaced reports whether err says that the node is another one of the same name.
func IsReplaced(err error) bool {
	var replaced *ReplacedError
	return errors.As(err, &replaced)
}
