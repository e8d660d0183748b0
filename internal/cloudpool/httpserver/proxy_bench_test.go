package httpserver

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// instantTransport answers at once, so that only the proxy's own time is measured.
type instantTransport struct{ body string }

func (a instantTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(a.body)),
		Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// BenchmarkForwardRead measures the proxy's overhead of a read: check, forward, and copy the answer, for a size and for a
// pool of 1,000 machines.
func BenchmarkForwardRead(b *testing.B) {
	for _, length := range []int{120, 400_000} {
		b.Run(fmt.Sprint(length, " bytes"), func(b *testing.B) {
			f := &ServedPool{Name: "workers", URL: &url.URL{Scheme: "http", Host: "cloudpool", Path: "/"}, Transport: instantTransport{strings.Repeat("x", length)}}
			s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler)}, f)
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				w.Body = nil
				s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pool/size", nil))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
