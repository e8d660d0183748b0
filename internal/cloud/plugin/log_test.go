package plugin

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestPluginLogKeepsLevelAndFields(t *testing.T) {
	var out bytes.Buffer
	l := newLineLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	l.logLines(strings.NewReader("plain words\n\n" +
		`{"time":"2026-01-01T00:00:00Z","level":"WARN","msg":"careful","disk":"full"}` + "\n" +
		`{"level":"SHOUT","msg":"odd"}` + "\n{not json\n" +
		strings.Repeat("x", 3*maxLine) + "\nafter the long one\nno end of line"))
	got := out.String()
	for _, want := range []string{
		`level=INFO msg="plain words"`, "level=WARN msg=careful said=map[disk:full]", `level=INFO msg="{\"level\":\"SHOUT\"`,
		`level=INFO msg="{not json"`, `msg="after the long one"`, `msg="no end of line"`,
	} {
		check.Contains(t, got, want)
	}
	check.Not(t, len(got) > 2*maxLine, "the log has %d bytes", len(got))
}

func TestOversizedPluginLogIsCut(t *testing.T) {
	var out bytes.Buffer
	l := newLineLog(slog.New(slog.NewTextHandler(&out, nil)))
	const written = 20 * linesAtOnce
	for i := range written {
		fmt.Fprintf(l, "line %d\n", i)
	}
	logged := strings.Count(out.String(), "msg=\"line ")
	check.Not(t, logged < linesAtOnce || logged > written/2, "%d lines of %d were logged, want not many more than %d", logged, written, linesAtOnce)
	l.limit.SetLimit(rate.Inf)
	fmt.Fprintln(l, "later")
	if got := out.String(); !strings.Contains(got, "lines were dropped") || !strings.Contains(got, "msg=later") {
		t.Errorf("the log ends with %s", got[len(got)-300:])
	}
}

func TestRestartDelayDoublesUpToItsLimit(t *testing.T) {
	var got []time.Duration
	for n := range 8 {
		got = append(got, backoff(n, time.Second, time.Minute))
	}
	want := []int{1, 2, 4, 8, 16, 32, 60, 60}
	for i := range want {
		if got[i] != time.Duration(want[i])*time.Second {
			t.Errorf("delays %v, want %v s", got, want)
			break
		}
	}
	check.Is(t, time.Minute, backoff(1000, time.Second, time.Minute))
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"level":"INFO","msg":"a","b":{"c":[1]}}` + "\n"))
	f.Add([]byte("\x00\xff\n{\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		newLineLog(slog.New(slog.DiscardHandler)).logLines(bytes.NewReader(raw))
	})
}
