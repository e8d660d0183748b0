package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// stepTimeout bounds one step; the longest takes less than a third of it, unless the machine is busy.
const stepTimeout = 3 * time.Minute

// step is one part of the story.
type step struct {
	title string
	// after is the step that has to be over before this one begins, or nil.
	after *step
	// play lets it happen and checks it. What it returns is the sum of it, for people, or how it differs from what was
	// expected.
	play func(ctx context.Context, a *account) (string, error)

	account *account
	over    chan struct{}
}

// tell plays the steps side by side, tells them in order, each as it happens once the one before is told, and returns
// how many passed.
func tell(ctx context.Context, out io.Writer, steps []*step) (passed int) {
	var playing sync.WaitGroup
	defer playing.Wait()
	for _, s := range steps {
		s.over, s.account = make(chan struct{}), newAccount()
	}
	for _, s := range steps {
		playing.Go(func() { s.run(ctx) })
	}
	for i, s := range steps {
		fmt.Fprintf(out, "\n%s", wrapped(fmt.Sprintf("%d. ", i+1), s.title))
		for line := range s.account.lines {
			fmt.Fprint(out, line)
		}
		if ctx.Err() != nil {
			return passed // nothing that was interrupted has failed
		}
		if s.account.err != nil {
			fmt.Fprint(out, wrapped("   FAILED: ", s.account.err.Error()))
			continue
		}
		fmt.Fprint(out, wrapped("   passed: ", s.account.sum))
		passed++
	}
	fmt.Fprintln(out)
	return passed
}

func (s *step) run(ctx context.Context) {
	defer close(s.over)
	defer close(s.account.lines)
	if s.after != nil {
		<-s.after.over
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	s.account.sum, s.account.err = s.play(ctx, s.account)
}

// account is what there is to tell of a step.
type account struct {
	began time.Time // when its event was announced
	lines chan string
	// sum and err are to be read once lines is closed.
	sum string
	err error
}

// mostLines is how many lines of a step may wait to be told.
const mostLines = 64

func newAccount() *account { return &account{lines: make(chan string, mostLines)} }

// say tells what happened when.
func (a *account) say(at time.Time, format string, args ...any) {
	a.lines <- wrapped(fmt.Sprintf("  %5.1f s  ", max(0, at.Sub(a.began).Seconds())), fmt.Sprintf(format, args...))
}

// columns is how wide the story may be.
const columns = 120

// wrapped breaks a text between words where it would be too wide, behind a first line's margin.
func wrapped(margin, text string) string {
	var b strings.Builder
	line := margin
	for _, word := range strings.Fields(text) {
		if len([]rune(line))+len([]rune(word)) > columns && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", len([]rune(margin)))
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	return b.String()
}

// mismatch is a check that failed.
type mismatch struct{ expected, found string }

func (m *mismatch) Error() string { return "expected " + m.expected + "; found " + m.found }

// expect fails unless ok; the texts say what was expected and what was found instead.
func expect(ok bool, expected, found string, args ...any) error {
	if ok {
		return nil
	}
	return &mismatch{expected, fmt.Sprintf(found, args...)}
}

// all gives the first error.
func all(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}
