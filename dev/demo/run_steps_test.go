package demo

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestPlay(wait time.Duration, sum string, err error) func(context.Context, *stepOutput) (string, error) {
	return func(_ context.Context, a *stepOutput) (string, error) {
		a.startTime = time.Now()
		time.Sleep(wait)
		a.print(time.Now(), "happened in %s", sum)
		return sum, err
	}
}

func TestStepsRunInParallelAndPrintInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		passed := runStepsInParallel(t.Context(), &out, []*step{
			{title: "first", run: newTestPlay(10*time.Second, "slow", nil)},
			{title: "second", run: newTestPlay(time.Second, "quick", nil)},
		})
		want := "\n1. first\n   10.0 s  happened in slow\n   passed: slow\n" +
			"\n2. second\n    1.0 s  happened in quick\n   passed: quick\n\n"
		if out.String() != want || passed != 2 {
			t.Errorf("%d passed, printed:\n%s\nwant:\n%s", passed, out.String(), want)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %s, want the duration of the longest step", took)
		}
	})
}

func TestStepWaitsForItsPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &step{title: "first", run: newTestPlay(10*time.Second, "", nil)}
		began := time.Now()
		runStepsInParallel(t.Context(), &bytes.Buffer{}, []*step{first, {title: "second", runAfter: first, run: newTestPlay(time.Second, "", nil)}})
		if took := time.Since(began); took != 11*time.Second {
			t.Errorf("took %s, want 11s", took)
		}
	})
}

func TestFailedStepPrintsExpectedAndFound(t *testing.T) {
	var out bytes.Buffer
	passed := runStepsInParallel(t.Context(), &out, []*step{
		{title: "good", run: newTestPlay(0, "fine", nil)},
		{title: "bad", run: newTestPlay(0, "unsaid", checkExpectation(false, "40 pods", "%d", 39))},
		{title: "broken", run: newTestPlay(0, "unsaid", errors.New("no answer"))},
	})
	if passed != 1 {
		t.Errorf("%d passed, want 1", passed)
	}
	for _, want := range []string{"   FAILED: expected 40 pods; found 39\n", "   FAILED: no answer\n", "   passed: fine\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("missing %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "passed: unsaid") {
		t.Errorf("a failed step passed:\n%s", out.String())
	}
}

func TestWrapKeepsAllWords(t *testing.T) {
	text := strings.Repeat("Knoten für Knoten ", 30) + strings.Repeat("x", 2*lineWidth)
	printed := wrapText("   0.0 s  ", text)
	for line := range strings.Lines(printed) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > lineWidth && !strings.Contains(line, "xxx") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if got, want := strings.Fields(printed), strings.Fields("0.0 s "+text); !slices.Equal(got, want) {
		t.Errorf("printed %q, want %q", got, want)
	}
}
