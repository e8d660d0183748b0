package cloud_test

import (
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestRetryAfterIsCappedAtAnHour(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"":                              0,
		"7":                             7 * time.Second,
		" 7 ":                           7 * time.Second,
		"0":                             0,
		"-7":                            0,
		"soon":                          0,
		"7.5":                           0,
		"99999999":                      time.Hour,
		strconv.Itoa(math.MaxInt32):     time.Hour,
		strconv.Itoa(math.MaxInt64):     0, // out of range
		"Sun, 01 Mar 2026 12:00:30 GMT": 30 * time.Second,
		"Sun, 01 Mar 2026 11:59:30 GMT": 0,
		"Mon, 01 Mar 2027 12:00:00 GMT": time.Hour,
	} {
		header := http.Header{"Retry-After": {text}}
		check.Is(t, want, cloud.ParseRetryAfter(header, now), text)
	}
	check.Is(t, 0, cloud.ParseRetryAfter(nil, now))
	check.Is(t, 1500*time.Millisecond, cloud.ParseRetryHeader(http.Header{"X-Pause-Ms": {"1500"}}, "x-pause-ms", time.Millisecond))
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7")
	f.Add("Sun, 01 Mar 2026 12:00:30 GMT")
	f.Fuzz(func(t *testing.T, text string) {
		got := cloud.ParseRetryAfter(http.Header{"Retry-After": {text}}, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		check.Not(t, got < 0 || got > time.Hour, "%q is %s", text, got)
	})
}

func TestForeignTextIsTruncatedAndSanitized(t *testing.T) {
	for _, tc := range []struct {
		text string
		most int
		want string
	}{
		{"quota exceeded", 14, "quota exceeded"},
		{"quota exceeded", 5, "quota…"},
		{"two\r\n lines\tand \x1b[31mred\x7f\u0085", 100, "two lines and [31mred"},
		{"über", 1, "…"}, // no partial UTF-8 character
		{"a\xffb", 100, "ab"},
		{"", 0, ""},
	} {
		check.Is(t, tc.want, cloud.SanitizeText(tc.text, tc.most), tc.text, tc.most)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("two\nlines of \xc3\x28 text\x1b[0m", 7)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, 0)
		got := cloud.SanitizeText(text, most)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unicode.IsControl) || len(got) > min(most, len(text))+len("…") {
			t.Errorf("%q to %d bytes: %q", text, most, got)
		}
	})
}

func TestBodyOverTheLimitIsAnError(t *testing.T) {
	for text, whole := range map[string]bool{"": true, "1234567": true, "12345678": true, "123456789": false} {
		body := cloud.LimitBody(io.NopCloser(strings.NewReader(text)), 8)
		got, err := io.ReadAll(body)
		check.Not(t, whole && (err != nil || string(got) != text), "%q of 8 bytes at most: %q, %v", text, got, err)
		check.Not(t, !whole && !cloud.IsResponseTooLarge(err), "%q of 8 bytes at most: %q, %v; want a TooLargeError", text, got, err)
		if n, err := body.Read(make([]byte, 1)); !whole && (n != 0 || !cloud.IsResponseTooLarge(err)) {
			t.Errorf("%q, read on: %d bytes, %v; want a TooLargeError", text, n, err)
		}
	}
}
