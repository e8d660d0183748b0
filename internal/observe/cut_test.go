package observe

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextIsCutAtACharacterAndMarked(t *testing.T) {
	for _, tc := range []struct {
		text       string
		most       int
		characters string
		bytes      string
	}{
		{"drained", 7, "drained", "drained"},
		{"drained", 6, "drain…", "dra…"},
		{"größer", 6, "größer", "gr…"},
		{"größer", 7, "größer", "grö…"},
		{"größer", 8, "größer", "größer"},
		{"no\xff good", 8, "no? good", "no? good"},
		{"", 3, "", ""},
	} {
		if got := ClipChars(tc.text, tc.most); got != tc.characters {
			t.Errorf("%q to %d characters: %q, want %q", tc.text, tc.most, got, tc.characters)
		}
		if got := ClipBytes(tc.text, tc.most); got != tc.bytes {
			t.Errorf("%q to %d bytes: %q, want %q", tc.text, tc.most, got, tc.bytes)
		}
	}
}

func TestEventNoteHasAllBytesOfTheLimit(t *testing.T) {
	for length, want := range map[int]int{maxNoteBytes: maxNoteBytes, maxNoteBytes + 1: maxNoteBytes} {
		if got := ClipEventNote(strings.Repeat("x", length)); len(got) != want {
			t.Errorf("the note of %d bytes has %d, want %d", length, len(got), want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("größer", 5)
	f.Add(strings.Repeat("\U0001F6A2\xff", 600), 700)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, len(ellipsis))
		if got := ClipChars(text, most); utf8.RuneCountInString(got) > most || !utf8.ValidString(got) {
			t.Errorf("%q to %d characters: %q", text, most, got)
		}
		if got := ClipBytes(text, most); len(got) > most || !utf8.ValidString(got) {
			t.Errorf("%q to %d bytes: %q", text, most, got)
		}
		if got := ClipEventNote(text); len(got) > maxNoteBytes || !utf8.ValidString(got) {
			t.Errorf("the note of %q has %d bytes: %q", text, len(got), got)
		}
	})
}
