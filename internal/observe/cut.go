package observe

import (
	"fmt"
	"strings"
)

// ellipsis is the last character of a clipped text.
const ellipsis = "…"

// maxNoteBytes is the API server's limit for the note of an Event, in bytes.
const maxNoteBytes = 1024

// ClipEventNote clips a text to the API server's length limit for the note of an Event.
func ClipEventNote(text string) string { return ClipBytes(text, maxNoteBytes) }

// maxActionBytes is the API server's limit for the action of an Event, in bytes.
const maxActionBytes = 128

// ClipEventAction clips a text to the API server's length limit for the action of an Event.
func ClipEventAction(text string) string { return ClipBytes(text, maxActionBytes) }

// ClipChars clips a text to at most the given number of characters, which must be at least 1. The API server counts
// characters in the same way for maxLength. The result is valid UTF-8.
func ClipChars(text string, most int) string {
	runes := []rune(strings.ToValidUTF8(text, "?"))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:max(most-1, 0)]) + ellipsis
}

// ClipBytes clips a text to at most the given number of bytes, which must be at least 3. The result is valid UTF-8.
func ClipBytes(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(most-len(ellipsis), 0)], "") + ellipsis
}

// FormatCount returns a number with its noun, such as 1 pod or 3 pods. The plural of the noun must end in s.
func FormatCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
