package external

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const (
	// pipeTimeout is how long a program that has ended may leave its output open, for example in a child process.
	pipeTimeout = time.Second
	// maxErrorBytes limits how much of a program's error output an error quotes, in bytes.
	maxErrorBytes = 512
)

// program is a program on the instance. No shell is involved. The argument "read" makes it print the document. The arguments
// "acknowledge" and an ID acknowledge a notice.
type program struct {
	path, service string
	timeout       time.Duration
	children      *orphans
}

// orphans are the children of earlier runs. In a container the agent adopts them, because it is the process 1. Without
// [orphans.reap] each would keep its process ID after its end.
type orphans struct {
	mu     sync.Mutex
	groups []int // process groups that may have children of this process
}

// reap removes the ended processes of a group, and those that earlier calls have left running.
func (o *orphans) reap(group int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups = slices.DeleteFunc(append(o.groups, group), func(g int) bool { return !reapGroup(g) })
}

func (p program) read(ctx context.Context) ([]byte, error) { return p.run(ctx, "read") }

func (p program) acknowledge(ctx context.Context, id string) error {
	_, err := p.run(ctx, "acknowledge", id)
	return err
}

// run runs the program and returns its output. Every error is an [*poll.Error]. It kills the program and its children at the
// timeout, and when the output is too large.
func (p program) run(ctx context.Context, args ...string) ([]byte, error) {
	attempt, cancel := context.WithTimeoutCause(ctx, p.timeout, context.DeadlineExceeded)
	defer cancel()
	output := &limitedBuffer{limit: MaxDocumentBytes, onLimit: cancel}
	problems := &limitedBuffer{limit: maxErrorBytes}
	cmd := exec.CommandContext(attempt, p.path, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, problems, pipeTimeout
	killGroup(cmd)
	err := cmd.Run()
	if cmd.Process != nil {
		p.children.reap(cmd.Process.Pid)
	}
	fail := func(class poll.Class, err error) error {
		return &poll.Error{Class: class, Service: p.service, Err: fmt.Errorf("%s %s: %w", p.path, args[0], err)}
	}
	switch {
	case ctx.Err() != nil:
		return nil, fail(poll.Canceled, context.Cause(ctx))
	case output.exceeded:
		return nil, fail(poll.TooLarge, fmt.Errorf("the output has more than %d bytes", MaxDocumentBytes))
	case errors.Is(attempt.Err(), context.DeadlineExceeded):
		return nil, fail(poll.Timeout, fmt.Errorf("has not ended within %s", p.timeout))
	case errors.Is(err, exec.ErrWaitDelay): // it has ended well, and a child of it has not
	case err != nil && len(problems.kept) > 0:
		return nil, fail(poll.Unreachable, fmt.Errorf("%w: %s", err, poll.Quote(problems.kept)))
	case err != nil:
		return nil, fail(poll.Unreachable, err)
	}
	return output.kept, nil
}

// limitedBuffer keeps the first bytes that are written to it, and drops the others. It has no method ReadFrom, which would
// bypass the limit.
type limitedBuffer struct {
	kept     []byte
	limit    int
	exceeded bool
	onLimit  func() // called once, if it is not nil
}

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	fits := p[:min(len(p), b.limit-len(b.kept))]
	b.kept = append(b.kept, fits...)
	if len(fits) < len(p) && !b.exceeded {
		b.exceeded = true
		if b.onLimit != nil {
			b.onLimit()
		}
	}
	return len(p), nil
}
