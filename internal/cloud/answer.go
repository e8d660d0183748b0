package cloud

import "strings"

// Printable cuts the text of somebody else to a length in bytes, and leaves nothing in it that a terminal or a log would
// stumble over: it is valid UTF-8, of one line, without control characters.
func Printable(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.Join(strings.Fields(text), " ")
}
