package observe

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// contentType is the content type of the text format 0.0.4.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// ServeHTTP writes all metrics.
func (r *Registry) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(r.formatMetrics()) // the scraper may have disconnected
}

// formatMetrics returns the exposition: families sorted by name, and their samples by label values. So two scrapes can be
// compared.
func (r *Registry) formatMetrics() []byte {
	r.mu.Lock()
	families := slices.Clone(r.families)
	r.mu.Unlock()
	b := make([]byte, 0, 4<<10)
	for _, f := range families {
		before := len(b)
		b = appendHeader(b, f.about())
		header := len(b)
		if b = f.appendSamples(b); len(b) == header {
			b = b[:before]
		}
	}
	return b
}

func appendHeader(b []byte, d *definition) []byte {
	b = append(b, "# HELP "+d.name+" "...)
	b = appendEscaped(b, d.help, false)
	return append(b, "\n# TYPE "+d.name+" "+d.kind+"\n"...)
}

// appendLabels appends the text inside the braces.
func appendLabels(b []byte, names, values []string) []byte {
	for i, n := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, n...), `="`...)
		b = append(appendEscaped(b, values[i], true), '"')
	}
	return b
}

// withBucketBound adds a bucket's upper bound to the labels.
func withBucketBound(labels string, bound float64) string {
	le := `le="` + string(appendNumber(nil, bound)) + `"`
	if labels == "" {
		return le
	}
	return labels + "," + le
}

func appendSample(b []byte, name, labels string, value float64) []byte {
	b = append(b, name...)
	if labels != "" {
		b = append(append(append(b, '{'), labels...), '}')
	}
	return append(appendNumber(append(b, ' '), value), '\n')
}

func appendNumber(b []byte, v float64) []byte {
	if math.IsInf(v, 1) {
		return append(b, "+Inf"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64) // the format writes NaN and -Inf like this
}

// appendEscaped appends s in UTF-8. It escapes backslashes and line ends, and in a label value also quotes.
func appendEscaped(b []byte, s string, quotes bool) []byte {
	for _, c := range []byte(strings.ToValidUTF8(s, "\uFFFD")) {
		switch {
		case c == '\\' || c == '"' && quotes:
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, c)
		}
	}
	return b
}
