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

// atOnce is the transport of a server that is no way away, so that what is left is the proxy's own.
type atOnce struct{ body string }

func (a atOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(a.body)),
		Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// BenchmarkAReadThatPasses is what the proxy itself adds to a read: the time to look at it, to send it on and to copy the
// answer, of a size and of a pool of 1,000 machines.
func BenchmarkAReadThatPasses(b *testing.B) {
	for _, length := range []int{120, 400_000} {
		b.Run(fmt.Sprint(length, " bytes"), func(b *testing.B) {
			f := &Front{Name: "workers", URL: &url.URL{Scheme: "http", Host: "cloudpool", Path: "/"}, Transport: atOnce{strings.Repeat("x", length)}}
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
