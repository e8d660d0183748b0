package observe

import (
	"strings"
	"unicode/utf8"
)

// cutOff is what a text ends with that was cut.
const cutOff = "…"

// maxNote is the API server's limit of an Event's note, in bytes.
const maxNote = 1024

// Note keeps a text within what the API server takes for the note of an Event, whatever its characters are.
func Note(text string) string { return Cut(text, maxNote/utf8.UTFMax) }

// Cut keeps a text within so many characters, at least 1, as the API server counts them for the maxLength of a field. The
// result is valid UTF-8.
func Cut(text string, most int) string {
	runes := []rune(strings.ToValidUTF8(text, "?"))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:max(most-1, 0)]) + cutOff
}

// Clip keeps a text within so many bytes, at least 3. The result is valid UTF-8.
func Clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(most-len(cutOff), 0)], "") + cutOff
}
