package provisioning

import (
	"context"
	"time"
)

// defaultAnswerTimeout is how long a look waits for what clouds say. A cloud that answers sooner is decided on as it is now.
const defaultAnswerTimeout = 250 * time.Millisecond

// reply is what a cloud has said about a group, to be taken in between two steps of a look: what is remembered of groups is
// the looks' alone.
type reply struct {
	group string
	state *groupState
	apply func(*managedGroup)
}

// queueReply hands over what a cloud has said. Where the group is decided on otherwise for it, the next look is to begin soon.
func (a *Controller) queueReply(g *managedGroup, soon bool, take func(*managedGroup)) {
	a.mu.Lock()
	a.replies = append(a.replies, reply{g.name(), g.state, take})
	a.mu.Unlock()
	select {
	case a.replyArrived <- struct{}{}:
	default:
	}
	if soon {
		a.requeue()
	}
}

// applyReplies takes in what clouds have said. What is said of a group that is no more, or was made anew, is of no use.
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

// awaitReplies takes in what clouds say until all groups are as wanted, or patience is at an end.
func (a *Controller) awaitReplies(ctx context.Context, groups []*managedGroup, done func(*groupState) bool) {
	over := time.After(a.answerTimeout)
	for {
		a.applyReplies(groups)
		all := true
		for _, g := range groups {
			all = all && done(g.state)
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
