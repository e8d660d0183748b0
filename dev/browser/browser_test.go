package browser_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/dev/browser"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// A check with this package finds nothing only if there is nothing: each kind of fault is recorded.
func TestPageRecordsFaultsAndRequests(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><html><title>t</title><body>
<img src="/missing.png"><p style="color:#aaa;background:#fff">pale</p><button id="b" onclick="document.title='clicked'">b</button>
<script>console.error("first fault"); setTimeout(() => { throw new Error("second fault") }, 0)</script></body></html>`))
	}))
	defer server.Close()
	page := browser.Open(t, server.URL, 390, 844)

	var width int
	page.Eval("Promise.resolve(window.innerWidth)", &width)
	if width != 390 {
		t.Errorf("the window is %d pixels wide, want 390", width)
	}
	page.Click("#b")
	page.WaitFor("document.title === 'clicked'")
	page.Emulate("print", "dark")
	var dark, print bool
	page.Eval("matchMedia('(prefers-color-scheme: dark)').matches", &dark)
	page.Eval("matchMedia('print').matches", &print)
	if !dark || !print {
		t.Errorf("dark is %t and print is %t, want both", dark, print)
	}
	console := strings.Join(page.Console(), "\n")
	for _, want := range []string{"first fault", "second fault", "404"} {
		if !strings.Contains(console, want) {
			t.Errorf("the console misses %q:\n%s", want, console)
		}
	}
	if !slices.Contains(page.Requests(), server.URL+"/missing.png") {
		t.Errorf("the requests miss the image: %q", page.Requests())
	}
	if png := page.Screenshot(); len(png) < 1000 {
		t.Errorf("the screenshot has %d bytes", len(png))
	}
	page.Emulate("screen", "light")
	findings := strings.Join(page.Axe(), "\n")
	for _, want := range []string{"color-contrast", "image-alt", "html-has-lang"} {
		if !strings.Contains(findings, want) {
			t.Errorf("axe-core did not find %s:\n%s", want, findings)
		}
	}
}
