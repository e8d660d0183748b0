// Package browser opens pages in a real Chromium without a display, for tests of HTML that Slipway writes.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/slipway-dev/slipway/dev/testbed"
)

// limit bounds each call, so that a page that never loads fails the test instead of hanging it. Axe needs seconds of CPU for
// the longest pages, and other tests use the machine too.
const limit = 3 * time.Minute

// Page is a loaded page. Its methods fail the test on errors. It is not safe for concurrent use.
type Page struct {
	tb  testing.TB
	ctx context.Context //nolint:containedctx // chromedp keeps a page's state in its context

	mu       sync.Mutex
	console  []string
	requests []string
}

// Open starts Chromium, opens the address in a window of the given size in CSS pixels, and waits until the page is loaded.
// It skips the test without Chromium. Chromium ends with the test.
func Open(tb testing.TB, address string, width, height int64) *Page {
	tb.Helper()
	program := testbed.FindPeer(tb, "chromium-headless-shell")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		// Chromium refuses its sandbox to root, and containers have no user namespaces for it. Tests open their own pages only.
		chromedp.NoSandbox, chromedp.UserDataDir(tb.TempDir()), chromedp.DisableGPU)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	tb.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	tb.Cleanup(cancel)
	p := &Page{tb: tb, ctx: ctx}
	// Chromium lives as long as the context of this first call.
	if err := chromedp.Listen(ctx, p.record); err != nil {
		tb.Fatalf("Chromium (%s): %v", program, err)
	}
	p.do(chromedp.EmulateViewport(width, height), func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return chromedp.Void{}, err
	})
	p.Navigate(address)
	return p
}

// record notes console messages and requests. Chromium's reader calls it in its own goroutine.
func (p *Page) record(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	case *network.EventLoadingFailed:
		if !e.Canceled {
			p.console = append(p.console, "loading failed: "+e.ErrorText)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.console = append(p.console, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			text := string(e.Type) + ":"
			for _, a := range e.Args {
				text += " " + string(a.Value) + a.Description
			}
			p.console = append(p.console, text)
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.console = append(p.console, "exception: "+text)
	}
}

// do runs actions within the limit.
func (p *Page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.tb.Fatalf("Chromium: %v", err)
	}
}

// Navigate opens another address in the same window and waits until the page is loaded.
func (p *Page) Navigate(address string) {
	p.tb.Helper()
	p.do(chromedp.Navigate(address))
}

// Eval evaluates a JavaScript expression, waits for it if it is a promise, and stores its value as JSON in out, unless out is
// nil.
func (p *Page) Eval(expression string, out any) {
	p.tb.Helper()
	if out == nil {
		p.do(chromedp.Evaluate[chromedp.Void](expression, chromedp.EvalAwaitPromise))
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise))
	if err == nil {
		err = json.Unmarshal(value, out)
	}
	if err != nil {
		p.tb.Fatalf("Chromium: %s: %v", expression, err)
	}
}

// WaitFor waits until a JavaScript expression is true.
func (p *Page) WaitFor(expression string) {
	p.tb.Helper()
	p.do(chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(limit)))
}

// Press sends keys to the focused element, see the package github.com/chromedp/chromedp/kb for special keys.
func (p *Page) Press(keys string) {
	p.tb.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// Click clicks the first visible element that matches a CSS selector.
func (p *Page) Click(selector string) {
	p.tb.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// Emulate sets the medium ("screen" or "print") and the color scheme ("light" or "dark").
func (p *Page) Emulate(medium, scheme string) {
	p.tb.Helper()
	p.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	})
}

// Screenshot returns the whole page as PNG.
func (p *Page) Screenshot() []byte {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.tb.Fatalf("Chromium: %v", err)
	}
	return png
}

// Console returns warnings, errors, exceptions and failed requests since Open.
func (p *Page) Console() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.console...)
}

// Requests returns the addresses of all requests since Open, of the pages themselves too.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// Axe returns what axe-core finds against accessibility (WCAG 2.2 A and AA, and axe's best practices) in the page as it is
// now: one line for each element. It skips the test without the npm package axe-core.
func (p *Page) Axe() []string {
	p.tb.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		p.tb.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, "site", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		p.tb.Skipf("axe-core is not installed (npm ci in site/): %v", err)
	}
	p.Eval(string(script), nil)
	var found []string
	p.Eval(`axe.run({resultTypes: ['violations']}).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary)))`,
		&found)
	return found
}

// FileURL returns the address of a local file.
func FileURL(path string) string {
	return (&url.URL{Scheme: "file", Path: path}).String()
}
