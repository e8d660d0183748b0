// Package report_test opens the pages of `slipway report` in a real Chromium. One of them is about a Spot notice on a real
// control plane.
package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/browser"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/report"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// update writes the screenshot of docs/report.md.
var update = flag.Bool("update", false, "write docs/images/report.png")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The demo's first step has the same apps.
func TestReportOfSpotNoticeShowsEveryPod(t *testing.T) {
	bed := testbed.StartShared(t)
	ctx := testbed.TestContext(t)
	pool := controlplane.AKSPool{Name: "spot", Spot: true}
	bed.Azure.EnsureScaleSet(pool.ScaleSetName())
	const label = "example.com/spot"
	nodes := []controlplane.NodeSpec{pool.Node(0), pool.Node(1)}
	nodes[0].Labels[label] = ""
	check(t, bed.AddNodes(ctx, nodes...))
	apps := workload.NewSpotApps("shop", map[string]string{label: ""})
	notice := azure.MinimumNotice(azure.Preempt)
	if !*update { // a minute more than the pods need, for a busy machine: the forced deletion comes before it
		notice, apps.Invoices.GracePeriod = 90*time.Second, time.Minute
	}
	daemons := workload.App{Namespace: "shop", Name: "log-collector"}.DaemonSet()
	check(t, workload.CreateAndAwait(ctx, bed.Client(), append([]runtime.Object{workload.NewNamespace("shop"), daemons}, apps.Objects()...)...))
	_, err := bed.Client().CoreV1().Nodes().Patch(ctx, pool.NodeName(1), types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+label+`":""}}}`), metav1.PatchOptions{})
	check(t, err)
	agent, err := bed.StartAgent(ctx, pool, 0)
	check(t, err)
	testbed.KillAfterTest(t, agent.Process)
	e, err := bed.Azure.Announce(azure.Announcement{Type: azure.Preempt, Resources: []string{pool.ResourceName(0)}, Notice: notice})
	check(t, err)
	_, err = bed.AwaitEvent(ctx, pool.NodeName(0), "Drained")
	check(t, err)
	_, err = bed.AwaitNotice(ctx, e.EventID, "acknowledged", func(r azure.EventRecord) bool { return len(r.Approvals) > 0 })
	check(t, err)

	file := filepath.Join(t.TempDir(), "report.html")
	_, err = bed.RunSlipway(ctx, t, "report", "node/"+pool.NodeName(0), agent.LogFile(), "--since", "10m", "-o", file)
	check(t, err)
	text, err := bed.RunSlipway(ctx, t, "report", agent.LogFile(), "-o", "json")
	check(t, err)
	var data report.Report
	check(t, json.Unmarshal([]byte(text), &data))
	if len(data.Drains) != 1 || data.Drains[0].Outcome != drain.Drained {
		t.Fatalf("want one finished drain: %s", text)
	}
	page := openAndCheck(t, file, view{390, "screen", "dark"}, view{390, "screen", "light"}, view{390, "print", "dark"},
		view{1440, "screen", "light"}, view{1440, "screen", "dark"}, view{1440, "print", "light"})
	var is struct {
		Rows, Forced, Deadlines, TableRows int
		Text                               string
	}
	page.Eval(`({rows: document.querySelectorAll("#drain-1 .chart .label").length, forced: document.querySelectorAll("#drain-1 .chart .forced").length,
		deadlines: document.querySelectorAll("#drain-1 .chart .deadline").length,
		tableRows: document.querySelectorAll("#drain-1 .pods tbody tr").length, text: document.body.innerText})`, &is)
	if want := workload.SpotPods + 1; is.Rows != want || is.TableRows != want || is.Forced != data.Totals.Forced || is.Forced == 0 || is.Deadlines != 1 {
		t.Errorf("%d rows in the chart and %d in the table, want %d; %d forced deletions, want %d; %d deadlines, want 1",
			is.Rows, is.TableRows, want, is.Forced, data.Totals.Forced, is.Deadlines)
	}
	for _, want := range []string{
		"blocked by PDB shop/invoices", "forced deletion of shop/invoices-", "StatefulSet/orders-db",
		"azure announces Preempt", "NoticeReceived", "daemonset",
	} {
		if !strings.Contains(is.Text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	checkPainted(t, page, "#drain-1 .chart .forced")
	if *update {
		writeScreenshot(t, page)
	}
}

// checkPainted checks that the middle of an element has the element's color on the screenshot.
func checkPainted(t *testing.T, page *browser.Page, selector string) {
	t.Helper()
	page.Emulate("screen", "light")
	var is struct {
		X, Y float64
		Fill string
	}
	page.Eval(fmt.Sprintf(`(e => { const b = e.getBoundingClientRect();
		return {x: b.left + b.width / 2 + scrollX, y: b.top + b.height / 2 + scrollY, fill: getComputedStyle(e).fill} })(document.querySelector(%q))`, selector), &is)
	picture, err := png.Decode(bytes.NewReader(page.Screenshot()))
	check(t, err)
	r, g, b, _ := picture.At(int(is.X), int(is.Y)).RGBA()
	if painted := fmt.Sprintf("rgb(%d, %d, %d)", r>>8, g>>8, b>>8); painted != is.Fill {
		t.Errorf("%s is painted in %s, want %s", selector, painted, is.Fill)
	}
}

// writeScreenshot writes the upper part of the page, up to the end of the chart.
func writeScreenshot(t *testing.T, page *browser.Page) {
	root, err := testbed.RepositoryRoot()
	check(t, err)
	page.Eval(`document.querySelectorAll("details").forEach(d => d.open = false)`, nil)
	var height float64
	page.Eval(`document.querySelector("#drain-1 .chart").getBoundingClientRect().bottom + window.scrollY`, &height)
	whole, err := png.Decode(bytes.NewReader(page.Screenshot()))
	check(t, err)
	part := reduceColors(whole, image.Rect(0, 0, whole.Bounds().Dx(), min(whole.Bounds().Dy(), int(math.Ceil(height)))))
	var out bytes.Buffer
	check(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, part))
	if out.Len() > 200<<10 {
		t.Errorf("the screenshot has %d bytes, want 200 KiB at most", out.Len())
	}
	dir := filepath.Join(root, "docs", "images")
	check(t, os.MkdirAll(dir, 0o755))
	check(t, os.WriteFile(filepath.Join(dir, "report.png"), out.Bytes(), 0o644))
}

// reduceColors returns a part of a picture with its 256 most frequent colors, so that the file is small.
func reduceColors(whole image.Image, part image.Rectangle) *image.Paletted {
	count := map[color.Color]int{}
	for y := range part.Dy() {
		for x := range part.Dx() {
			count[whole.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	palette := color.Palette(frequent[:min(len(frequent), 256)])
	nearest := map[color.Color]uint8{}
	for c := range count {
		nearest[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(part, palette)
	for y := range part.Dy() {
		for x := range part.Dx() {
			out.SetColorIndex(x, y, nearest[whole.At(x, y)])
		}
	}
	return out
}

// view is a window and a medium of a page.
type view struct {
	width          int64
	medium, scheme string
}

func (v view) String() string { return fmt.Sprintf("%d px, %s, %s", v.width, v.medium, v.scheme) }

// openAndCheck opens a page and checks its layout in each view, and accessibility in the first view of each width. It
// checks that the page runs nothing and loads nothing else. The result is the last page.
func openAndCheck(t *testing.T, file string, views ...view) *browser.Page {
	t.Helper()
	var page *browser.Page
	width := int64(0)
	for _, v := range views {
		isFirst := v.width != width
		if isFirst {
			page, width = browser.Open(t, browser.FileURL(file), v.width, 900), v.width
		}
		page.Emulate(v.medium, v.scheme)
		checkLayout(t, page, v)
		if isFirst {
			for _, finding := range page.Axe() {
				t.Errorf("%s: %s", v, finding)
			}
		}
		if found := page.Console(); len(found) > 0 {
			t.Errorf("%s: console: %q", v, found)
		}
		if all := page.Requests(); slices.ContainsFunc(all, func(r string) bool { return r != browser.FileURL(file) && r != "data:," }) {
			t.Errorf("%s: requests %q", v, all)
		}
	}
	return page
}

// checkLayout checks that the page fits its width, and that no row of a chart has a bar or a label outside of the chart.
func checkLayout(t *testing.T, page *browser.Page, v view) {
	t.Helper()
	var is struct {
		Page, Window float64
		Outside      []string
		Background   string
		Color        string
	}
	page.Eval(`({page: document.documentElement.scrollWidth, window: innerWidth,
		background: getComputedStyle(document.body).backgroundColor, color: getComputedStyle(document.body).color,
		outside: [...document.querySelectorAll(".chart")].flatMap(c => { const box = c.getBoundingClientRect();
			return [...c.querySelectorAll("rect, circle, text")].filter(e => { const b = e.getBoundingClientRect();
				return b.left < box.left - 5 || b.right > box.right + 5 || b.top < box.top - 1 || b.bottom > box.bottom + 1 }).map(e => e.outerHTML) })})`, &is)
	if is.Page > is.Window {
		t.Errorf("%s: the page is %v px wide, and the window %v", v, is.Page, is.Window)
	}
	if len(is.Outside) > 0 {
		t.Errorf("%s: %d parts are outside of their chart, such as %s", v, len(is.Outside), is.Outside[0])
	}
	if dark := v.scheme == "dark" && v.medium == "screen"; dark == (is.Background == "rgb(255, 255, 255)") {
		t.Errorf("%s: the background is %s", v, is.Background)
	}
}

// hostile are texts that do harm if a page does not escape them.
var hostile = []string{
	`<script>document.title="owned"</script>`, `"><img src=x onerror="document.title='owned'">`, `</title></style></svg><script>document.title="owned"</script>`,
	`javascript:document.title="owned"`, "]]>--><svg onload=\"document.title='owned'\">", "a\u202egnirts\u202c\x1b[31m\x00", `{{.}}`, `&lt;b&gt;`,
}

func TestHostileTextsAreShownAndNeverRun(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var data []byte
	for i, text := range hostile {
		d := drain.Report{Node: text, Outcome: drain.Outcome(text), StartedAt: start, EndedAt: start.Add(time.Minute)}
		for j := range 3 {
			d.Pods = append(d.Pods, drain.PodReport{
				Namespace: text, Name: text, UID: fmt.Sprint(text, j), Owner: text, Removal: drain.RemovalMethod(text), End: drain.PodEnd(text),
				Decision:         drain.Decision{Rule: podrules.RuleProtected, Detail: text},
				FirstRequestedAt: start, RemovalRequestedAt: start.Add(time.Second), EndedAt: start.Add(2 * time.Second),
				Delays: []drain.Delay{{Reason: drain.ObstaclePDB, PDB: text, Detail: text, Count: 1, StartedAt: start}},
			})
		}
		data = append(data, d.JSON()...)
		for _, object := range []any{
			map[string]any{"kind": "Event", "reason": text, "message": text, "type": text, "lastTimestamp": start, "involvedObject": map[string]any{"kind": text, "name": text}, "source": map[string]any{"component": text}},
			map[string]any{"time": start, "level": "WARN", "msg": text, "node": text, text: text},
			map[string]any{
				"kind": "NodeRetirement", "metadata": map[string]any{"name": fmt.Sprint(text, i), "creationTimestamp": start},
				"spec": map[string]any{"nodeName": text, "reason": text, "requestedBy": text},
				"status": map[string]any{
					"phase": text, "message": text, "times": map[string]any{"finished": start.Add(time.Minute)},
					"conditions": []any{map[string]any{"type": text, "status": text, "reason": text, "message": text}},
					"reasons":    []any{map[string]any{"code": text, "object": text, "message": text}},
				},
			},
		} {
			raw, err := json.Marshal(object)
			check(t, err)
			data = append(append(data, raw...), '\n')
		}
	}
	file := writePage(t, data, hostile[0])
	page := openAndCheck(t, file, view{390, "screen", "light"})
	var is struct {
		Title, Text string
		Scripts     int
	}
	page.Eval(`({title: document.title, text: document.body.innerText,
		scripts: document.querySelectorAll("script, img, iframe, object, [onerror], [onload], a:not([href^='#'])").length})`, &is)
	if is.Title != hostile[0] || is.Scripts != 0 {
		t.Errorf("the title is %q, and %d elements come from the input", is.Title, is.Scripts)
	}
	for _, text := range hostile {
		if shown := strings.NewReplacer("\u202e", `\u202e`, "\u202c", `\u202c`, "\x1b", `\u001b`, "\x00", `\u0000`).Replace(text); !strings.Contains(is.Text, shown) {
			t.Errorf("the page does not show %q", shown)
		}
	}
}

// writePage writes the page of one input.
func writePage(t *testing.T, data []byte, title string) (file string) {
	t.Helper()
	var in report.Inputs
	check(t, in.Read("input", data))
	var out bytes.Buffer
	check(t, report.Build(&in, report.Options{Title: title}).WriteHTML(&out))
	file = filepath.Join(t.TempDir(), "report.html")
	check(t, os.WriteFile(file, out.Bytes(), 0o600))
	return file
}

func TestPageOf5000PodsStaysSmallAndFast(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d := drain.Report{Node: "large", Outcome: drain.Drained, StartedAt: start, EndedAt: start.Add(time.Hour), Deadline: start.Add(2 * time.Hour)}
	for i := range 5000 {
		at := start.Add(time.Duration(i*i%3500) * time.Second)
		d.Pods = append(d.Pods, drain.PodReport{
			Namespace: fmt.Sprintf("team-%02d", i%40), Name: fmt.Sprintf("%s-%05d", strings.Repeat("long-name-", 5), i), UID: fmt.Sprint(i),
			Owner: fmt.Sprintf("ReplicaSet/app-%03d", i%200), Removal: drain.Evicted, End: drain.Stopped, FirstRequestedAt: start, RemovalRequestedAt: at,
			EndedAt: at.Add(30 * time.Second),
			Delays:  []drain.Delay{{Reason: drain.ObstaclePDB, PDB: fmt.Sprintf("team-%02d/app", i%40), Count: i % 7, StartedAt: start, Detail: "allows 0 disruptions"}},
		})
	}
	file := writePage(t, d.JSON(), "")
	info, err := os.Stat(file)
	check(t, err)
	if info.Size() > 5<<20 {
		t.Errorf("the page has %d bytes", info.Size())
	}
	page := browser.Open(t, browser.FileURL(file), 390, 900) // axe-core would need a minute for this page
	checkLayout(t, page, view{390, "screen", "light"})
	var elements int
	page.Eval(`document.querySelectorAll("*").length`, &elements)
	if elements > 20_000 {
		t.Errorf("the page has %d elements", elements)
	}
	t.Logf("%d bytes and %d elements", info.Size(), elements)
}
