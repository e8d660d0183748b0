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

func played(wait time.Duration, sum string, err error) func(context.Context, *account) (string, error) {
	return func(_ context.Context, a *account) (string, error) {
		a.began = time.Now()
		time.Sleep(wait)
		a.say(time.Now(), "happened in %s", sum)
		return sum, err
	}
}

func TestStepsRunSideBySideAndAreToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		passed := tell(t.Context(), &out, []*step{
			{title: "first", play: played(10*time.Second, "slow", nil)},
			{title: "second", play: played(time.Second, "quick", nil)},
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

func TestAStepWaitsForTheOneThatItFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &step{title: "first", play: played(10*time.Second, "", nil)}
		began := time.Now()
		tell(t.Context(), &bytes.Buffer{}, []*step{first, {title: "second", after: first, play: played(time.Second, "", nil)}})
		if took := time.Since(began); took != 11*time.Second {
			t.Errorf("took %s, want 11s", took)
		}
	})
}

func TestAFailedStepSaysWhatWasExpectedAndFoundAndDoesNotPass(t *testing.T) {
	var out bytes.Buffer
	passed := tell(t.Context(), &out, []*step{
		{title: "good", play: played(0, "fine", nil)},
		{title: "bad", play: played(0, "unsaid", expect(false, "40 pods", "%d", 39))},
		{title: "broken", play: played(0, "unsaid", errors.New("no answer"))},
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

func TestLinesAreBrokenBetweenWordsAndNoWordIsLost(t *testing.T) {
	text := strings.Repeat("Knoten für Knoten ", 30) + strings.Repeat("x", 2*columns)
	told := wrapped("   0.0 s  ", text)
	for line := range strings.Lines(told) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns && !strings.Contains(line, "xxx") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if got, want := strings.Fields(told), strings.Fields("0.0 s "+text); !slices.Equal(got, want) {
		t.Errorf("printed %q, want %q", got, want)
	}
}
