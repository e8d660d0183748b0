package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// stepTimeout is the maximum duration of one step. On an idle machine, the longest step needs less than a third of
// this time.
const stepTimeout = 3 * time.Minute

// step is one step of the demo, which shows and checks one behaviour of Slipway.
type step struct {
	title string
	// runAfter is the step that must end before this one starts, or nil. It has no effect if that step does not run.
	runAfter *step
	// run runs and checks the step. It returns a one-line summary, or an error with the difference from what was
	// expected.
	run func(ctx context.Context, a *stepOutput) (string, error)

	output *stepOutput
	done   chan struct{}
}

// runStepsInParallel runs all steps in parallel and prints their output in order. It prints a step only after it has printed
// the previous one. It returns the number of steps that passed.
func runStepsInParallel(ctx context.Context, out io.Writer, steps []*step) (passed int) {
	var playing sync.WaitGroup
	defer playing.Wait()
	for _, s := range steps {
		s.done, s.output = make(chan struct{}), newStepOutput()
	}
	for _, s := range steps {
		playing.Go(func() { s.runAfterDependency(ctx) })
	}
	for i, s := range steps {
		fmt.Fprintf(out, "\n%s", wrapText(fmt.Sprintf("%d. ", i+1), s.title))
		for line := range s.output.lines {
			fmt.Fprint(out, line)
		}
		if ctx.Err() != nil {
			return passed // an interrupted step has not failed
		}
		if s.output.err != nil {
			fmt.Fprint(out, wrapText("   FAILED: ", s.output.err.Error()))
			continue
		}
		fmt.Fprint(out, wrapText("   passed: ", s.output.summary))
		passed++
	}
	fmt.Fprintln(out)
	return passed
}

func (s *step) runAfterDependency(ctx context.Context) {
	defer close(s.done)
	defer close(s.output.lines)
	if s.runAfter != nil && s.runAfter.done != nil {
		<-s.runAfter.done
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	s.output.summary, s.output.err = s.run(ctx, s.output)
}

// stepOutput holds the printed lines of a step and its result.
type stepOutput struct {
	startTime time.Time // when its event was announced
	lines     chan string
	// summary and err may be read once lines is closed.
	summary string
	err     error
}

// maxPendingLines is how many lines a step can print before runStepsInParallel reads them. After that, the step waits.
const maxPendingLines = 64

func newStepOutput() *stepOutput { return &stepOutput{lines: make(chan string, maxPendingLines)} }

// print adds a line to the output. The line begins with the number of seconds from the start of the step to the
// given time.
func (a *stepOutput) print(at time.Time, format string, args ...any) {
	a.lines <- wrapText(fmt.Sprintf("  %5.1f s  ", max(0, at.Sub(a.startTime).Seconds())), fmt.Sprintf(format, args...))
}

// lineWidth is the maximum number of characters in a printed line.
const lineWidth = 120

// wrapText breaks a text between words into lines of at most lineWidth. The first line begins with margin, and the
// other lines are indented by the width of margin.
func wrapText(margin, text string) string {
	var b strings.Builder
	line := margin
	for _, word := range strings.Fields(text) {
		if len([]rune(line))+len([]rune(word)) > lineWidth && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", len([]rune(margin)))
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	return b.String()
}

// checkError is the error of a failed check, with what was expected and what was found.
type checkError struct{ expected, found string }

func (m *checkError) Error() string { return "expected " + m.expected + "; found " + m.found }

// checkExpectation returns an error unless ok is true. The error contains the texts expected and found.
func checkExpectation(ok bool, expected, found string, args ...any) error {
	if ok {
		return nil
	}
	return &checkError{expected, fmt.Sprintf(found, args...)}
}

// firstError returns the first of its arguments that is not nil.
func firstError(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}
