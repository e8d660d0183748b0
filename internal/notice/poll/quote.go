package poll

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// maxQuoteBytes limits how much of a received value an error quotes, in bytes.
const maxQuoteBytes = 120

// Compact formats a received JSON value for an error message, on one line and clipped.
func Compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return Quote(raw)
	}
	if b.Len() > maxQuoteBytes {
		return strings.ToValidUTF8(string(b.Bytes()[:maxQuoteBytes]), "") + "…"
	}
	return b.String()
}

// Quote quotes a received text for an error message, on one line, printable and clipped.
func Quote[T ~string | ~[]byte](value T) string {
	if len(value) > maxQuoteBytes {
		return strconv.Quote(strings.ToValidUTF8(string(value[:maxQuoteBytes]), "")) + "…"
	}
	return strconv.Quote(string(value))
}
