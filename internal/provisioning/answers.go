package provisioning

import (
	"context"
	"time"
)

// defaultPatience is how long a look waits for what clouds say. A cloud that answers sooner is decided on as it is now.
const defaultPatience = 250 * time.Millisecond

// reply is what a cloud has said about a group, to be taken in between two steps of a look: what is remembered of groups is
// the looks' alone.
type reply struct {
	group  string
	memory *memory
	take   func(*known)
}

// answer hands over what a cloud has said. Where the group is decided on otherwise for it, the next look is to begin soon.
func (a *Controller) answer(g *known, soon bool, take func(*known)) {
	a.mu.Lock()
	a.replies = append(a.replies, reply{g.name(), g.memory, take})
	a.mu.Unlock()
	select {
	case a.replied <- struct{}{}:
	default:
	}
	if soon {
		a.again()
	}
}

// settle takes in what clouds have said. What is said of a group that is no more, or was made anew, is of no use.
func (a *Controller) settle(groups []*known) {
	a.mu.Lock()
	replies := a.replies
	a.replies = nil
	a.mu.Unlock()
	for _, r := range replies {
		if g := groupNamed(groups, r.group); g != nil && g.memory == r.memory {
			r.take(g)
		}
	}
}

// await takes in what clouds say until all groups are as wanted, or patience is at an end.
func (a *Controller) await(ctx context.Context, groups []*known, done func(*memory) bool) {
	over := time.After(a.patience)
	for {
		a.settle(groups)
		all := true
		for _, g := range groups {
			all = all && done(g.memory)
		}
		if all {
			return
		}
		select {
		case <-a.replied:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}
