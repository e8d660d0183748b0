package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// restoreTimeout bounds the uncordoning of a node whose drain was given up, also after an interrupt.
	restoreTimeout = 10 * time.Second
	// A node that changes between the look and the patch is looked at again, so often and after this pause.
	cordonTries = 20
	cordonPause = 100 * time.Millisecond
	// unansweredTries bounds the tries of which the last was not answered: one may take kubeapi.DefaultTimeout.
	unansweredTries = 3
	// lateCordon is for how long a cordon is looked for whose patch has no answer: the API server may only be slow.
	lateCordon = 3 * time.Second
)

// cordon takes the node out of scheduling, as kubectl does it: with no record on the node (see package cordon). A node
// that was drained by hand stays cordoned for as long as somebody likes, and so does one whose drain was killed; a
// record would stay on it of a command that is long over.
func (d *nodeDrain) cordon(ctx context.Context) error {
	for try := 1; ; try++ {
		node, err := d.api.GetNode(ctx, d.o.Node)
		if err != nil {
			return err
		}
		if d.uid == "" {
			d.uid = node.UID
		}
		switch {
		case node.UID != d.uid:
			return &cordon.ReplacedError{Node: node.Name, Want: d.uid, Got: node.UID}
		case node.Spec.Unschedulable:
			return d.settleCordon(ctx)
		}
		err = d.setUnschedulable(ctx, node, true)
		if err == nil || isUnanswered(err) {
			d.cordoned, d.unsure = node, err != nil
		}
		if !again(ctx, err, try) {
			return err
		}
	}
}

// settleCordon finds out whether the cordon on the node is from this run's patch that had no answer.
func (d *nodeDrain) settleCordon(ctx context.Context) error {
	if !d.unsure {
		return nil
	}
	ours, err := d.api.OwnsUnschedulable(ctx, d.manager(), d.o.Node)
	if err != nil {
		return err
	}
	d.unsure = false
	if !ours {
		d.cordoned = nil
	}
	return nil
}

// manager returns the field manager of this run. It distinguishes the cordon of this run from other cordons.
func (d *nodeDrain) manager() string {
	if d.managerName == "" {
		d.managerName = fmt.Sprintf("slipway-drain-%08x", rand.Uint32())
	}
	return d.managerName
}

// isUnanswered reports that a request may have taken effect although its answer is an error.
func isUnanswered(err error) bool {
	status := kubeapi.AsStatus(err)
	return err != nil && (status == nil || status.Code >= http.StatusInternalServerError)
}

// stillCordoned cordons the node again, if somebody has uncordoned it while the nodes before it were drained: its pods would come
// back to it. A node that was replaced meanwhile is another one.
func (d *nodeDrain) stillCordoned(ctx context.Context) error {
	was := d.cordoned
	err := d.cordon(ctx)
	if d.cordoned != was {
		fmt.Fprintf(d.err, "%s: cordoned again\n", d.o.Node)
	}
	return err
}

// giveBack restores a node that this drain has cordoned, unless it was asked not to.
func (d *nodeDrain) giveBack(ctx context.Context) {
	if d.cordoned != nil && !d.flags.keepCordoned {
		d.restore(ctx)
	}
}

// restore uncordons the node that was cordoned for a drain that did not take place.
func (d *nodeDrain) restore(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	name := d.o.Node
	var needed *neededError
	switch err := d.uncordon(ctx); {
	case errors.Is(err, errNotCordoned) && d.unsure:
		fmt.Fprintf(d.err, "%s: not cordoned so far; the API server did not answer the cordon\n", name)
	case errors.Is(err, errNotCordoned):
	case err == nil:
		fmt.Fprintf(d.err, "%s: uncordoned again\n", name)
	case errors.Is(err, errSchedulable), cordon.IsReplaced(err):
		fmt.Fprintf(d.err, "%s: %v\n", name, err)
	case errors.As(err, &needed):
		fmt.Fprintf(d.err, "%s: stays cordoned, since %v; kubectl uncordon %s when that is over\n", name, err, name)
	default:
		fmt.Fprintf(d.err, "%s: stays cordoned, since uncordoning it failed: %v\n", name, err)
	}
}

// uncordon takes the drain's own cordon off the node that it was put on, unless somebody else needs it by now.
func (d *nodeDrain) uncordon(ctx context.Context) error {
	var unanswered bool
	late := time.Now().Add(lateCordon)
	for try := 1; ; try++ {
		node, err := d.api.GetNode(ctx, d.o.Node)
		if err == nil && node.Spec.Unschedulable {
			err = d.settleCordon(ctx)
		}
		if err != nil && !(isUnanswered(err) && again(ctx, err, try)) {
			return err
		} else if err != nil {
			continue
		}
		switch done, err := d.isRestored(node, unanswered); {
		case d.unsure && errors.Is(err, errNotCordoned) && time.Now().Before(late) && elapsed.Sleep(ctx, cordonPause):
			try--
			continue
		case err != nil || done:
			return err
		}
		err = d.setUnschedulable(ctx, node, false)
		unanswered = unanswered || isUnanswered(err)
		if !again(ctx, err, try) {
			return err
		}
	}
}

// isRestored reports whether a node is restored already, or returns why it must not be. A patch without an answer may
// have restored it.
func (d *nodeDrain) isRestored(node *kubeapi.Node, unanswered bool) (restored bool, err error) {
	if d.cordoned == nil || d.unsure && !node.Spec.Unschedulable {
		return false, errNotCordoned
	}
	by := neededBy(node)
	switch {
	case node.UID != d.cordoned.UID:
		return false, &cordon.ReplacedError{Node: node.Name, Want: d.cordoned.UID, Got: node.UID}
	case !node.Spec.Unschedulable && unanswered:
		return true, nil
	case !node.Spec.Unschedulable:
		return false, errSchedulable
	case len(by) > 0:
		return false, &neededError{by}
	}
	return false, nil
}

// errNotCordoned says that the patch which was not answered did not cordon the node.
var errNotCordoned = errors.New("it was not cordoned")

// errSchedulable says that there is no cordon any more.
var errSchedulable = errors.New("somebody has uncordoned it already")

// neededError says that others need the node cordoned.
type neededError struct{ by []string }

func (e *neededError) Error() string { return strings.Join(e.by, ", ") + " needs it so" }

// neededBy names those who need the node cordoned: the owners of records who asked for it, who may have found it
// cordoned by this drain, and other tools that are taking the node away (invariants I3 and I6).
func neededBy(node *kubeapi.Node) []string {
	by := cordon.Others(node)
	records, _ := cordon.List(node) // what cannot be read holds nothing
	for _, r := range records {
		if r.Cordon != "" {
			by = append(by, r.Owner)
		}
	}
	return by
}

// again pauses and reports that the request must be repeated: the node had changed when it was patched, or no answer came.
func again(ctx context.Context, err error, try int) bool {
	tries := cordonTries
	if isUnanswered(err) {
		tries = unansweredTries
	}
	if !kubeapi.IsConflict(err) && !isUnanswered(err) || try >= tries {
		return false
	}
	return elapsed.Sleep(ctx, cordonPause)
}

// setUnschedulable patches the node as it was read, and neither a later state of it nor a later node of the same name.
func (d *nodeDrain) setUnschedulable(ctx context.Context, n *kubeapi.Node, to bool) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"unschedulable": to},
	})
	if err != nil {
		return err
	}
	_, err = d.api.PatchNodeAs(ctx, d.manager(), n.Name, patch)
	return err
}
