package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// stepTimeout limits one step. The longest needs less than a third of it on an idle machine.
const stepTimeout = 3 * time.Minute

// step is one part of the demo.
type step struct {
	title string
	// after is the step that must end before this one starts, or nil.
	after *step
	// play runs and checks the step. It returns a one-line summary, or an error with the difference from what was
	// expected.
	play func(ctx context.Context, a *account) (string, error)

	account *account
	over    chan struct{}
}

// tell runs the steps in parallel, prints them in order, each once the previous one is printed, and returns how many
// passed.
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
			return passed // an interrupted step has not failed
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

// account is the output of a step.
type account struct {
	began time.Time // when its event was announced
	lines chan string
	// sum and err may be read once lines is closed.
	sum string
	err error
}

// mostLines is the maximum number of unprinted lines of a step.
const mostLines = 64

func newAccount() *account { return &account{lines: make(chan string, mostLines)} }

// say adds a line with its time.
func (a *account) say(at time.Time, format string, args ...any) {
	a.lines <- wrapped(fmt.Sprintf("  %5.1f s  ", max(0, at.Sub(a.began).Seconds())), fmt.Sprintf(format, args...))
}

// columns is the maximum line width.
const columns = 120

// wrapped breaks a text between words into lines. The first line starts with margin, the others are indented to it.
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

// mismatch is the error of a failed check.
type mismatch struct{ expected, found string }

func (m *mismatch) Error() string { return "expected " + m.expected + "; found " + m.found }

// expect returns an error unless ok. The texts name what was expected and found.
func expect(ok bool, expected, found string, args ...any) error {
	if ok {
		return nil
	}
	return &mismatch{expected, fmt.Sprintf(found, args...)}
}

// all returns the first error.
func all(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}
