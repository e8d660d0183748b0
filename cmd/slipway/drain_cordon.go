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

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// restoreTimeout limits the uncordoning of a node after a failed drain, also after an interrupt.
	restoreTimeout = 10 * time.Second
	// A conflict between the read and the patch of a node is retried this many times, at this interval.
	maxCordonTries      = 20
	cordonRetryInterval = 100 * time.Millisecond
	// maxUnansweredTries limits the tries without an answer. Each may take kubeapi.DefaultTimeout.
	maxUnansweredTries = 3
	// lateCordonTimeout is how long a cordon without an answer may still appear on a slow API server.
	lateCordonTimeout = 3 * time.Second
)

// cordonNode makes the node unschedulable. Like kubectl it writes no cordon claim (see package cordon). A drained node
// stays cordoned as long as the user wants, even if the drain was killed. A claim would outlive the command.
func (d *nodeDrain) cordonNode(ctx context.Context) error {
	for try := 1; ; try++ {
		node, err := d.api.GetNode(ctx, d.options.Node)
		if err != nil {
			return err
		}
		if d.uid == "" {
			d.uid = node.UID
		}
		switch {
		case node.UID != d.uid:
			return &cordon.ReplacedError{Node: node.Name, WantUID: d.uid, GotUID: node.UID}
		case node.Spec.Unschedulable:
			return d.resolveUnansweredCordon(ctx)
		}
		err = d.patchUnschedulableIfUnchanged(ctx, node, true)
		if err == nil || isUnanswered(err) {
			d.cordonedNode, d.cordonUnanswered = node, err != nil
		}
		if !sleepIfRetryable(ctx, err, try) {
			return err
		}
	}
}

// resolveUnansweredCordon determines whether this run cordoned the node. It is needed if the patch that cordons the
// node got no answer.
func (d *nodeDrain) resolveUnansweredCordon(ctx context.Context) error {
	if !d.cordonUnanswered {
		return nil
	}
	ours, err := d.api.IsUnschedulableSetBy(ctx, d.fieldManager(), d.options.Node)
	if err != nil {
		return err
	}
	d.cordonUnanswered = false
	if !ours {
		d.cordonedNode = nil
	}
	return nil
}

// fieldManager returns the field manager name of this run. The name is unique, so this run can recognize its own
// cordon.
func (d *nodeDrain) fieldManager() string {
	if d.fieldManagerName == "" {
		d.fieldManagerName = fmt.Sprintf("slipway-drain-%08x", rand.Uint32())
	}
	return d.fieldManagerName
}

// isUnanswered reports whether a request failed without an answer, so that it may have taken effect. A server error
// (5xx) counts as no answer.
func isUnanswered(err error) bool {
	if err == nil {
		return false
	}
	if status := kubeapi.ToStatusError(err); status != nil {
		return status.Code >= http.StatusInternalServerError
	}
	var status apierrors.APIStatus // of client-go
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError
}

// ensureCordoned cordons the node again if another client uncordoned it while earlier nodes were drained. Otherwise the
// pods of these nodes could be scheduled on it. It returns an error if the node was replaced.
func (d *nodeDrain) ensureCordoned(ctx context.Context) error {
	was := d.cordonedNode
	err := d.cordonNode(ctx)
	if d.cordonedNode != was {
		fmt.Fprintf(d.errOut, "%s: cordoned again\n", d.options.Node)
	}
	return err
}

// restoreNode uncordons the node if this drain cordoned it and --keep-cordoned is not set. It returns the resulting state,
// and a line about what it did, if anything. It prints nothing, because an output can block.
func (d *nodeDrain) restoreNode(ctx context.Context) (state cordonState, result string) {
	switch {
	case kubeapi.IsNotFound(d.cordonError):
		return cordonState{notCordoned, "the Node is deleted"}, ""
	case d.cordonedNode == nil && d.cordonError != nil:
		return cordonState{cordonUnknown, "this drain did not cordon it"}, ""
	case d.cordonedNode == nil:
		return cordonState{cordoned, "it was cordoned before"}, ""
	case d.flags.keepCordoned:
		return cordonState{cordoned, "--keep-cordoned is set"}, ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	var needed *cordonNeededError
	switch err := d.uncordonNode(ctx); {
	case errors.Is(err, errNotCordoned) && d.cordonUnanswered:
		return cordonState{notCordoned, "so far; the API server did not answer the patch"}, "not cordoned so far; the API server did not answer the patch"
	case errors.Is(err, errNotCordoned):
		return cordonState{cordoned, "it was cordoned before"}, ""
	case err == nil:
		return cordonState{}, "uncordoned again"
	case errors.Is(err, errAlreadyUncordoned), cordon.IsReplacedError(err):
		return cordonState{notCordoned, err.Error()}, err.Error()
	case kubeapi.IsNotFound(err):
		return cordonState{notCordoned, "the Node is deleted"}, "the Node is deleted"
	case errors.As(err, &needed):
		return cordonState{cordoned, err.Error()}, fmt.Sprintf("stays cordoned because %v; run kubectl uncordon %s afterwards", err, d.options.Node)
	case isUnanswered(err):
		return cordonState{cordonUnknown, "uncordoning failed"}, fmt.Sprintf("may stay cordoned because uncordoning failed: %v", err)
	default:
		return cordonState{cordoned, "uncordoning failed"}, fmt.Sprintf("stays cordoned because uncordoning failed: %v", err)
	}
}

// uncordonNode removes the cordon that this drain set. It returns an error if another client needs the cordon.
func (d *nodeDrain) uncordonNode(ctx context.Context) error {
	var unanswered bool
	late := time.Now().Add(lateCordonTimeout)
	for try := 1; ; try++ {
		node, err := d.api.GetNode(ctx, d.options.Node)
		if err == nil && node.Spec.Unschedulable {
			err = d.resolveUnansweredCordon(ctx)
		}
		if err != nil && !(isUnanswered(err) && sleepIfRetryable(ctx, err, try)) {
			return err
		} else if err != nil {
			continue
		}
		switch done, err := d.checkAlreadyUncordoned(node, unanswered); {
		case d.cordonUnanswered && errors.Is(err, errNotCordoned) && time.Now().Before(late) && elapsed.Sleep(ctx, cordonRetryInterval):
			try--
			continue
		case err != nil || done:
			return err
		}
		err = d.patchUnschedulableIfUnchanged(ctx, node, false)
		unanswered = unanswered || isUnanswered(err)
		if !sleepIfRetryable(ctx, err, try) {
			return err
		}
	}
}

// checkAlreadyUncordoned reports whether the node is already uncordoned. unanswered means that an earlier uncordon
// patch got no answer, so it may have taken effect. It returns an error if the node must not be uncordoned.
func (d *nodeDrain) checkAlreadyUncordoned(node *kubeapi.Node, unanswered bool) (restored bool, err error) {
	if d.cordonedNode == nil || d.cordonUnanswered && !node.Spec.Unschedulable {
		return false, errNotCordoned
	}
	owners := findOtherCordonOwners(node)
	switch {
	case node.UID != d.cordonedNode.UID:
		return false, &cordon.ReplacedError{Node: node.Name, WantUID: d.cordonedNode.UID, GotUID: node.UID}
	case !node.Spec.Unschedulable && unanswered:
		return true, nil
	case !node.Spec.Unschedulable:
		return false, errAlreadyUncordoned
	case len(owners) > 0:
		return false, &cordonNeededError{owners}
	}
	return false, nil
}

// errNotCordoned means that this drain did not cordon the node. Then it has no cordon to remove.
var errNotCordoned = errors.New("it was not cordoned")

// errAlreadyUncordoned means that another client has removed the cordon.
var errAlreadyUncordoned = errors.New("another client has already uncordoned it")

// cordonNeededError means that others need the cordon, so it is not removed.
type cordonNeededError struct{ owners []string }

func (e *cordonNeededError) Error() string { return strings.Join(e.owners, ", ") + " needs the cordon" }

// findOtherCordonOwners returns who else needs the node cordoned. These are owners of cordon claims and other tools
// that are removing the node. Slipway must not undo what others need (I3, I6).
func findOtherCordonOwners(node *kubeapi.Node) []string {
	by := cordon.RemovingTools(node)
	records, _ := cordon.ListRecords(node) // unreadable records are ignored
	for _, r := range records {
		if r.Cordon != "" {
			by = append(by, r.Owner)
		}
	}
	return by
}

// sleepIfRetryable reports whether the caller has to repeat a request. That is so after a conflict or without an
// answer, up to a number of tries. It sleeps before it returns true.
func sleepIfRetryable(ctx context.Context, err error, try int) bool {
	tries := maxCordonTries
	if isUnanswered(err) {
		tries = maxUnansweredTries
	}
	if !kubeapi.IsConflict(err) && !isUnanswered(err) || try >= tries {
		return false
	}
	return elapsed.Sleep(ctx, cordonRetryInterval)
}

// patchUnschedulableIfUnchanged sets spec.unschedulable of the node. It returns an error if the node has changed or was
// replaced since it was read.
func (d *nodeDrain) patchUnschedulableIfUnchanged(ctx context.Context, n *kubeapi.Node, unschedulable bool) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"unschedulable": unschedulable},
	})
	if err != nil {
		return err
	}
	_, err = d.api.PatchNodeWithManager(ctx, d.fieldManager(), n.Name, patch)
	return err
}
