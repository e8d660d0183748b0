package queueagents

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
)

// PlannedAnnotation is the annotation of a Node with its scheduled events that are not due yet. AWS announces them weeks
// ahead, and a queue keeps messages for at most 14 days.
const PlannedAnnotation = "slipway.dev/aws-queue-planned"

// maxRecordedDrift is how much a clock may change until the planned events are recorded again.
const maxRecordedDrift = time.Minute

// readPlanned returns the scheduled events in the annotation. A malformed annotation has none, and is replaced by the next
// event.
func readPlanned(n *kubeapi.Node) []notice.Notice {
	var all []notice.Notice
	if json.Unmarshal([]byte(cmp.Or(n.Annotations[PlannedAnnotation], "[]")), &all) != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(p notice.Notice) bool {
		return queue.KindOfNotice(p.ID) != queue.ScheduledEvent || p.Source != queue.SourceName || p.Type == ""
	})
}

// syncPlanned writes the scheduled events of a Node that are not due yet into its annotation. An event that is due stays
// there until the agent has recorded it.
func (c *Controller) syncPlanned(n *node, i *instance, later []notice.Notice, now time.Time) {
	wanted := slices.Clone(later)
	for _, p := range n.planned {
		isLater := slices.ContainsFunc(later, func(l notice.Notice) bool { return l.ID == p.ID })
		if known := i.notices[p.ID]; known != nil && !isLater && n.reportOf(p.ID) == nil {
			wanted = append(wanted, known.Notice)
		}
	}
	isSame := func(a, b notice.Notice) bool {
		isClockSet := (a.ClockAhead - b.ClockAhead).Abs() > maxRecordedDrift // the next process begins with it
		return a.ID == b.ID && a.NotBefore.Equal(b.NotBefore) && a.Type == b.Type && !isClockSet
	}
	for at := range wanted {
		wanted[at] = wanted[at].TrimForRecord(i.id)
	}
	if c.options.DryRun || n.isPatching || now.Before(n.nextPatch) || slices.EqualFunc(wanted, n.planned, isSame) {
		return
	}
	var value any // null removes the annotation
	if len(wanted) > 0 {
		text, err := json.Marshal(wanted)
		if err != nil {
			c.log.Error("cannot encode the planned notices of a node", "node", n.Name, "err", err)
			return
		}
		value = string(text)
	}
	// The UID in the patch makes it fail if another Node has the name now.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "annotations": map[string]any{PlannedAnnotation: value}}})
	if err != nil {
		c.log.Error("cannot encode the planned notices of a node", "node", n.Name, "err", err)
		return
	}
	n.isPatching = true
	name, uid := n.Name, n.UID
	c.group.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
		defer cancel()
		_, err := c.options.API.PatchNode(ctx, name, patch)
		c.enqueue(func() {
			now := c.nodes[name]
			if now == nil || now.UID != uid {
				return
			}
			now.isPatching, now.nextPatch = false, time.Now().Add(reconcileInterval) // until the watch shows it
			if err != nil {
				c.log.Warn("cannot record the planned notices of a node, will retry", "node", name, "err", err)
				now.nextPatch = time.Now().Add(retryInterval)
			}
		})
	})
}
