package cloud_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestForeignTextIsCutAndCleaned(t *testing.T) {
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"quota exceeded", 14, "quota exceeded"},
		{"quota exceeded", 5, "quota…"},
		{"two\r\n lines\tand \x1b[31mred\x7f\u0085", 100, "two lines and [31mred"},
		{"über", 1, "…"}, // no half of a character
		{"a\xffb", 100, "ab"},
		{"", 0, ""},
	} {
		if got := cloud.Printable(tc.text, tc.most); got != tc.want {
			t.Errorf("%q to %d bytes: %q, want %q", tc.text, tc.most, got, tc.want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("two\nlines of \xc3\x28 text\x1b[0m", 7)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, 0)
		got := cloud.Printable(text, most)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unicode.IsControl) || len(got) > min(most, len(text))+len("…") {
			t.Errorf("%q to %d bytes: %q", text, most, got)
		}
	})
}
