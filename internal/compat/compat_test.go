package compat

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEntriesAreReadWithTheirLines(t *testing.T) {
	got, err := Entries([]byte("a: 1\nb:\n  c: 'x y'\n  d:\n# nothing\ne: -1001234567890123\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Entry{
		"a": {Value: "1", Line: 1}, "b.c": {Value: "x y", Line: 3}, "b.d": {Null: true, Line: 4},
		"e": {Value: "-1001234567890123", Line: 6},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, empty := range []string{"", "# only a comment\n", "null\n", "---\n"} {
		if got, err := Entries([]byte(empty)); err != nil || len(got) > 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

func TestI10EntriesRefuseWhatTheyCannotRead(t *testing.T) {
	for text, want := range map[string]string{
		"- a\n": "want keys", "a: [1]\n": "line 1: a", "a: {b: {c: 1}}\n": "too deep", "a: 1\na: 2\n": "line 2: a",
		"a: b: c\n": "mapping values", "just text": "want keys", "? [a]\n: 1\n": "plain text",
	} {
		if got, err := Entries([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, got, err, want)
		}
	}
}

func TestUnknownKeyIsMetWithTheKeyThatWasProbablyMeant(t *testing.T) {
	known := []string{"nodename", "taintnode", "webhookurl"}
	for key, want := range map[string]string{
		"nodeName": "nodename", "taintsnode": "taintnode", "webhook_url": "webhookurl", "colour": "",
	} {
		if got := Closest(key, known); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

func FuzzEntries(f *testing.F) {
	f.Add("scheduledEvents:\n  freeze: true\n")
	f.Add("a: &x 1\nb: *x\n")
	f.Add("{[: \xff")
	f.Fuzz(func(_ *testing.T, text string) {
		if entries, err := Entries([]byte(text)); err == nil {
			for key := range entries {
				_ = Unknown(key, 1, []string{"nodename"})
			}
		}
	})
}
