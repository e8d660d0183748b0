package provisioning

import (
	"context"
	"time"
)

// defaultAnswerTimeout is how long a reconcile waits for the clouds. Later answers are applied in a later reconcile.
const defaultAnswerTimeout = 250 * time.Millisecond

// reply is a cloud's answer about a group. It is applied between two steps of a reconcile, because only a reconcile may
// access the state of the group.
type reply struct {
	group string
	state *groupState
	apply func(*managedGroup)
}

// queueReply queues a cloud's answer. If reconcileSoon is true, the answer changes the decision, and the next reconcile starts
// soon.
func (a *Controller) queueReply(g *managedGroup, reconcileSoon bool, apply func(*managedGroup)) {
	a.mu.Lock()
	a.replies = append(a.replies, reply{g.name(), g.state, apply})
	a.mu.Unlock()
	select {
	case a.replyArrived <- struct{}{}:
	default:
	}
	if reconcileSoon {
		a.requeue()
	}
}

// applyReplies applies the queued answers. It drops answers about groups that were deleted or have another cloud group.
func (a *Controller) applyReplies(groups []*managedGroup) {
	a.mu.Lock()
	replies := a.replies
	a.replies = nil
	a.mu.Unlock()
	for _, r := range replies {
		if g := findGroup(groups, r.group); g != nil && g.state == r.state {
			r.apply(g)
		}
	}
}

// awaitReplies applies answers until isDone is true for all groups, or the answer timeout is over.
func (a *Controller) awaitReplies(ctx context.Context, groups []*managedGroup, isDone func(*groupState) bool) {
	over := time.After(a.answerTimeout)
	for {
		a.applyReplies(groups)
		all := true
		for _, g := range groups {
			all = all && isDone(g.state)
		}
		if all {
			return
		}
		select {
		case <-a.replyArrived:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}
