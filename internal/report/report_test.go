package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func readFiles(t *testing.T, names ...string) *Inputs {
	t.Helper()
	var in Inputs
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		must.NoError(t, err)
		must.NoError(t, in.Read(name, data))
	}
	return &in
}

func renderHTML(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	must.NoError(t, r.WriteHTML(&b))
	return b.String()
}

// styleText matches the style, which is tested in a browser.
var styleText = regexp.MustCompile(`(?s)<style>.*</style>|'sha256[^']*'`)

func TestPageOfSpotNoticeIsAsBefore(t *testing.T) {
	in := readFiles(t, "agent.log", "objects.yaml")
	r := Build(in, Options{Now: noon.Add(time.Hour), Version: "v1.2.3"})
	check.Len(t, 0, in.Problems())
	page := styleText.ReplaceAllString(renderHTML(t, r), "STYLE")
	golden.Check(t, filepath.Join("testdata", "spot.html"), []byte(page))
	raw, err := json.MarshalIndent(r, "", "  ")
	must.NoError(t, err)
	golden.Check(t, filepath.Join("testdata", "spot.json"), append(raw, '\n'))
}

func TestRangeAndNodeLimitTheReport(t *testing.T) {
	in := readFiles(t, "agent.log", "objects.yaml")
	for name, c := range map[string]struct {
		o                   Options
		drains, events, all int
	}{
		"all":          {Options{}, 1, 2, 1},
		"after drain":  {Options{From: noon.Add(32 * time.Second)}, 0, 1, 1},
		"before drain": {Options{To: noon.Add(time.Second)}, 0, 0, 0},
		"other node":   {Options{Nodes: []string{"spot-1"}}, 0, 0, 0},
	} {
		r := Build(in, c.o)
		if len(r.Drains) != c.drains || len(r.Events) != c.events || len(r.Retirements) != c.all {
			t.Errorf("%s: %d drains, %d Events and %d retirements", name, len(r.Drains), len(r.Events), len(r.Retirements))
		}
	}
}

func TestOverviewHasRowsOfEachNode(t *testing.T) {
	in := readFiles(t, "agent.log", "objects.yaml")
	must.NoError(t, in.Read("more", []byte(`{"node":"spot-1","outcome":"gave-up","startedAt":"2026-03-01T11:00:00Z","endedAt":"2026-03-01T11:01:00Z"}
{"kind":"Event","type":"Warning","reason":"NodeNotReady","lastTimestamp":"2026-03-01T11:00:00Z","involvedObject":{"kind":"Node","name":"a-quiet-node"}}
{"kind":"Event","type":"Normal","reason":"Launched","lastTimestamp":"2026-03-01T11:00:00Z","involvedObject":{"kind":"NodeGroup","name":"spot"}}`)))
	r := Build(in, Options{})
	check.Equal(t, []NodeRecords{
		{Node: "spot-0", Drains: 1, Retirements: 1, Events: 2, Warnings: 1}, {Node: "spot-1", Drains: 1}, {Node: "a-quiet-node", Events: 1, Warnings: 1},
	}, r.Nodes)
	check.Is(t, "Drains and retirements of 2 nodes", r.Title)
	p := newPage(r, newLimits(1))
	var rows []string
	for _, n := range p.Overview {
		for _, row := range n.Rows {
			rows = append(rows, strings.Join([]string{n.Node, row.ID, row.What, row.Outcome}, " | "))
		}
	}
	check.Equal(t, []string{
		"spot-0 | retirement-1 | NodeRetirement spot-0-x2m4z | Succeeded", "spot-0 | drain-2 | drain | drained", "spot-0 |  | 2 Events | 1 warning",
		"spot-1 | drain-1 | drain | gave-up", "a-quiet-node |  | 1 Event | 1 warning",
	}, rows)
	check.Contains(t, renderHTML(t, r), `<th scope="rowgroup" rowspan="3">spot-0</th><td><a href="#retirement-1">NodeRetirement spot-0-x2m4z</a></td>`)
	few := newLimits(1)
	few.overview = 2
	p = newPage(r, few)
	check.Is(t, 3, p.OverviewMore)
	check.Len(t, 1, p.Overview)
}

func TestRetirementWithoutEndIsInEveryLaterRange(t *testing.T) {
	const hangs = `{"kind":"NodeRetirement","metadata":{"name":"r","creationTimestamp":"2026-03-01T08:00:00Z"},"spec":{"nodeName":"n"},` +
		`"status":{"times":{"draining":"2026-03-01T08:01:00Z"%s}}}`
	for finished, want := range map[string]int{"": 1, `,"finished":"2026-03-01T08:02:00Z"`: 0, `,"finished":"2026-03-01T13:00:00Z"`: 1} {
		var in Inputs
		must.NoError(t, in.Read("in", fmt.Appendf(nil, hangs, finished)))
		check.Is(t, want, len(Build(&in, Options{From: noon}).Retirements), finished)
	}
}

func TestSameEventFromTwoInputsIsOne(t *testing.T) {
	event := func(name string) string {
		return `{"kind":"Event","reason":"` + name + `","lastTimestamp":"2026-03-01T12:00:00Z","involvedObject":{"kind":"Node","name":"n"}}`
	}
	var in Inputs
	for range 2 {
		must.NoError(t, in.Read("in", []byte(event("A")+event("B"))))
	}
	check.Is(t, 2, len(Build(&in, Options{}).Events))
}

// A delay has its first start and its last refusal, also if the pod waited for another obstacle meanwhile.
func TestWaitsOfAlternatingObstacles(t *testing.T) {
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	delay := func(reason drain.ObstacleKind, start, count, seconds int) drain.Delay {
		return drain.Delay{Reason: reason, StartedAt: at(start), Count: count, Seconds: float64(seconds)}
	}
	for name, c := range map[string]struct {
		delays []drain.Delay
		want   string
	}{
		"in turn":     {[]drain.Delay{delay(drain.ObstaclePDB, 0, 3, 5), delay(drain.ObstacleWebhook, 10, 1, 0)}, "[0 10][10 60]"},
		"alternating": {[]drain.Delay{delay(drain.ObstaclePDB, 0, 9, 40), delay(drain.ObstacleWebhook, 10, 5, 45)}, "[0 40][10 60]"},
		"interrupted": {[]drain.Delay{delay(drain.ObstaclePDB, 0, 9, 50), delay(drain.ObstacleWebhook, 10, 2, 5)}, "[0 60][10 15]"},
		"too long":    {[]drain.Delay{delay(drain.ObstaclePDB, 0, 9, 900), delay(drain.ObstacleWebhook, 10, 2, 999)}, "[0 60][10 60]"},
	} {
		got := ""
		for _, w := range waits(drain.PodReport{Delays: c.delays, RemovalRequestedAt: at(60)}, at(99)) {
			got += fmt.Sprint([]float64{w.start.Sub(noon).Seconds(), w.end.Sub(noon).Seconds()})
		}
		check.Is(t, c.want, got, name)
	}
}

func TestProblemsHaveNoTerminalEscapes(t *testing.T) {
	var in Inputs
	must.NoError(t, in.Read("in", []byte(`{"node":"n","outcome":"drained","startedAt":"x"}{"node":"a\u001b[2J","error":"b\u009bc"}`)))
	check.Contains(t, strings.Join(in.Problems(), "\n"), `a\u001b[2J has only an error: b\u009bc`)
}

func TestLogAfterAWarningIsNotYAML(t *testing.T) {
	var in Inputs
	must.NoError(t, in.Read("in", []byte("Warning: old server\n"+`{"msg":"cordoned","level":"INFO","node":"n"}`)))
	check.Is(t, 1, len(Build(&in, Options{}).Trace))
}

// The same drain report may be in a file and in a log.
func TestSameDrainFromTwoInputsIsOne(t *testing.T) {
	in := readFiles(t, "agent.log", "agent.log")
	r := Build(in, Options{})
	if len(r.Drains) != 1 || len(r.Drains[0].Pods) != 5 {
		t.Errorf("%d drains, %d pods", len(r.Drains), len(r.Drains[0].Pods))
	}
}

// The agent may end with its instance before it logs the drain report.
func TestLogWithoutReportStillShowsBlockedPods(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "agent.log"))
	must.NoError(t, err)
	lines := strings.Split(string(data), "\n")[:6]
	var in Inputs
	must.NoError(t, in.Read("log", []byte(strings.Join(lines, "\n"))))
	r := Build(&in, Options{})
	must.Not(t, len(r.Drains) != 1, "%+v", r.Drains)
	d := r.Drains[0]
	check.Not(t, !d.IsFromLog || !d.EndedAt.IsZero() || len(d.Pods) != 1 || d.Pods[0].Delays[0].PDB != "shop/invoices", "%+v", d)
	page := renderHTML(t, r)
	check.Contains(t, page, "The end of the drain is not in the inputs", "only log lines about the drain")
}

func TestDrainsOfLogHaveTheirOutcome(t *testing.T) {
	line := func(second int, msg, fields string) string {
		return fmt.Sprintf(`{"time":%q,"level":"INFO","msg":%q,"node":"n"%s}`+"\n", noon.Add(time.Duration(second)*time.Second).Format(time.RFC3339), msg, fields)
	}
	blocked := line(1, "drain is blocked", `,"blocked":[{"namespace":"shop","pod":"web"}]`)
	for name, c := range map[string]struct{ log, want string }{
		"drained, then kept empty": {line(0, "draining", "") + blocked + line(9, "drained", `,"summary":"n: drained after 9.0s"`) + line(90, "drain stopped", ""),
			"drained after 9s, 1 gone and 0 remaining\n"},
		"timeout":               {line(0, "draining", "") + blocked + line(9, "not drained", `,"summary":"n: gave-up after 9.0s"`), "gave-up after 9s, 0 gone and 1 remaining\n"},
		"stopped":               {line(0, "draining", "") + line(9, "drain stopped", ""), "cancelled after 9s, 0 gone and 0 remaining\n"},
		"kept empty afterwards": {line(0, "draining", "") + line(60, "keeping the drained node empty", "") + line(70, "drained", ""), " after 0s, 0 gone and 0 remaining\n"},
		"repeated after the deadline": {line(0, "draining", "") + blocked + line(30, "not drained", `,"summary":"n: deadline-passed after 30.0s"`) +
			line(30, "draining", "") + line(40, "not drained", `,"summary":"n: deadline-passed after 10.0s"`) + line(41, "draining", ""),
			"deadline-passed after 30s, 0 gone and 1 remaining\n"},
	} {
		var in Inputs
		must.NoError(t, in.Read("in", []byte(c.log)))
		got := ""
		for _, d := range Build(&in, Options{}).Drains {
			got += fmt.Sprintf("%s after %s, %d gone and %d remaining\n", d.Outcome, max(0, d.EndedAt.Sub(d.StartedAt)), d.Totals.Gone, d.Totals.Remaining)
		}
		check.Is(t, c.want, got, name)
	}
}

func TestProblemsNameFileLineAndField(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a time": {
			"{\n\"node\": \"a\",\n\"outcome\": \"drained\",\n\"pods\": [\n{\"name\": \"p\", \"endedAt\": \"yesterday\"}]}",
			`in:5: field pods[0].endedAt: "yesterday" is ignored: want a time in RFC 3339`,
		},
		"an action": {`{"node":"a","outcome":"drained","pods":[{"action":"explode"}]}`, `in:1: field pods[0].action: "explode" is ignored: want evict, leave, await or refuse`},
		"a rule":    {`{"node":"a","outcome":"drained","pods":[{"decision":{"rule":"x"}}]}`, `in:1: field pods[0].decision.rule: "x" is ignored: want a rule of docs/drain.md`},
		"a list":    {`{"node":"a","outcome":"drained","pods":"none"}`, `in:1: field pods: "none" is ignored: want a list`},
		"a number":  {`{"node":"a","outcome":"drained","pods":[{"graceWantedSeconds":"NaN"}]}`, `in:1: field pods[0].graceWantedSeconds: "NaN" is ignored: want a number`},
		"a text":    {"\n" + `{"node":{"name":"a"},"outcome":"drained"}`, `in:2: field node: an object is ignored: want a text`},
		"a cut log": {"{\"msg\":\"a\",\"level\":\"INFO\"}\n{\"msg\":\"b\",\"le", `in:2: JSON is broken: unexpected EOF`},
		"an error":  {`{"node":"a","error":"year outside of range"}` + `{"node":"b","outcome":"drained"}`, `in:1: the drain report of node a has only an error: year outside of range`},
		"yaml":      {"kind: NodeRetirement\nspec: {nodeName: a}\n---\nkind: NodeRetirement\nspec: {nodeName: a}\nmetadata: {creationTimestamp: 5}\n", `in:3: field metadata.creationTimestamp: 5 is ignored: want a time in RFC 3339`},
		"deep":      {`{"node":"b","outcome":"drained"}` + "\n" + strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), `in:2: JSON is broken: more than 64 levels of nesting`},
	} {
		var in Inputs
		if err := in.Read("in", []byte(c.text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := in.Problems(); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: problems %q, want %q", name, got, c.want)
		}
	}
}

func TestInputWithoutContentIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "in: contains nothing to report: want drain reports",
		"hello\nworld":                       "in: contains nothing to report",
		`{"kind":"Pod"}`:                     "in: contains nothing to report",
		`{"node":`:                           "in: nothing in it can be read: in:1: JSON is broken: unexpected EOF",
		"kind: [":                            "in: nothing in it can be read: in:1:",
		`{"items":[],"kind":"PodList"}`:      "in: contains nothing to report",
		`{"node":"n","error":"bad"}`:         "has only an error: bad",
		"time=x level=INFO msg=\"draining\"": "in: contains nothing to report",
	} {
		var in Inputs
		if err := in.Read("in", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestBrokenLineAndPrefixLoseNothingElse(t *testing.T) {
	text := "[pod/a/agent] {\"time\":\"2026-03-01T12:00:00Z\",\"level\":\"INFO\",\"msg\":\"first\",\"node\":\"n\"}\n" +
		"panic: x\n{\"time\":\"2026-03-01T12:00:01Z\",\"msg\": broken}\n" +
		"2026-03-01T12:00:02Z {\"time\":\"2026-03-01T12:00:02Z\",\"level\":\"INFO\",\"msg\":\"second\",\"node\":\"n\"}\n" +
		"{\"time\":\"2026-03-01T12:00:03Z\",\"level\":\"INFO\",\"msg\":\"third\",\"node\":\"n\"}{\"time\":\"2026-03-01T12:00:04Z\",\"level\":\"INFO\",\"msg\":\"fourth\",\"node\":\"n\"}"
	var in Inputs
	must.NoError(t, in.Read("in", []byte(text)))
	var all []string
	for _, e := range Build(&in, Options{}).Trace {
		all = append(all, e.What)
	}
	check.Equal(t, []string{"first", "second", "third", "fourth"}, all)
	check.Equal(t, []string{"in:3: JSON is broken: invalid character 'b' looking for beginning of value"}, in.Problems())
}

// readReports returns the report of drain reports as `slipway drain -o json` prints them.
func readReports(t *testing.T, drains ...drain.Report) *Report {
	t.Helper()
	var data []byte
	for _, d := range drains {
		data = append(append(data, d.JSON()...), '\n')
	}
	var in Inputs
	must.NoError(t, in.Read("in", data))
	check.Len(t, 0, in.Problems())
	return Build(&in, Options{})
}

func TestOddDrainsMakeAPage(t *testing.T) {
	pod := drain.PodReport{Namespace: "a", Name: "p", UID: "u", RemovalRequestedAt: noon.Add(time.Second), FirstRequestedAt: noon, Removal: drain.Evicted}
	gone := func(at time.Time) drain.PodReport {
		p := pod
		p.EndedAt, p.End = at, drain.Stopped
		return p
	}
	for name, c := range map[string]struct {
		drains []drain.Report
		want   string
	}{
		"no pods":                {[]drain.Report{{Node: "n", Outcome: drain.Drained, StartedAt: noon, EndedAt: noon}}, "The drain had no pods."},
		"no times":               {[]drain.Report{{Node: "n", Outcome: drain.Drained, Pods: []drain.PodReport{{Name: "p"}}}}, "<div class=\"chart\">"},
		"gone before asked":      {[]drain.Report{{Node: "n", Outcome: drain.Drained, StartedAt: noon, EndedAt: noon.Add(time.Minute), Pods: []drain.PodReport{gone(noon.Add(-time.Hour))}}}, "1 pod ended before the request"},
		"never ended":            {[]drain.Report{{Node: "n", StartedAt: noon, Pods: []drain.PodReport{pod}}}, "The end of the drain is not in the inputs."},
		"two drains of one node": {[]drain.Report{{Node: "n", Outcome: drain.TimedOut, StartedAt: noon, EndedAt: noon.Add(time.Minute)}, {Node: "n", Outcome: drain.Drained, StartedAt: noon.Add(time.Hour), EndedAt: noon.Add(time.Hour)}}, "<h1>Drains of node n</h1>"},
		"a deadline far away":    {[]drain.Report{{Node: "n", Outcome: drain.Drained, StartedAt: noon, EndedAt: noon.Add(time.Second), Deadline: noon.Add(time.Hour), Pods: []drain.PodReport{gone(noon.Add(time.Second))}}}, "deadline +1 h →"},
		"years":                  {[]drain.Report{{Node: "n", Outcome: drain.Drained, StartedAt: time.Unix(-1<<35, 0), EndedAt: noon.AddDate(7000, 0, 0), Pods: []drain.PodReport{gone(noon)}}}, "<div class=\"chart\">"},
	} {
		page := renderHTML(t, readReports(t, c.drains...))
		if !strings.Contains(html.UnescapeString(page), c.want) {
			t.Errorf("%s: the page lacks %q", name, c.want)
		}
		checkGeometry(t, page)
	}
}

var lengths = regexp.MustCompile(` (?:x|cx|x1|width)="([^"]*)%"`)

// checkGeometry checks that each bar is in the chart.
func checkGeometry(t *testing.T, page string) {
	t.Helper()
	for _, m := range lengths.FindAllStringSubmatch(page, -1) {
		var f float64
		if n, err := fmt.Sscanf(m[1], "%f", &f); n != 1 || err != nil || f < 0 || f > 100 {
			t.Errorf("length %s", m[0])
		}
	}
}

// largeDrain returns a drain of n pods with different times.
func largeDrain(n int) drain.Report {
	d := drain.Report{Node: "large", Outcome: drain.Drained, StartedAt: noon, EndedAt: noon.Add(time.Hour)}
	for i := range n {
		at := noon.Add(time.Duration(i) * 700 * time.Millisecond)
		d.Pods = append(d.Pods, drain.PodReport{
			Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%s-%d", strings.Repeat("p", 240), i), UID: fmt.Sprint(i), Owner: fmt.Sprintf("ReplicaSet/app-%d", i%700),
			Decision: drain.Decision{Detail: strings.Repeat("&", 2000)}, Removal: drain.Evicted, RemovalRequestedAt: at, EndedAt: at.Add(time.Second), End: drain.Stopped,
			Delays: []drain.Delay{{Reason: drain.ObstaclePDB, PDB: fmt.Sprintf("ns/pdb-%d", i%900), Detail: strings.Repeat("&", 2000), StartedAt: noon}},
		})
	}
	d.Pods[0].Action = podrules.Skip
	return d
}

func TestPageStaysBelow5MBForHostileSizes(t *testing.T) {
	many := []drain.Report{largeDrain(5000)}
	for i := range 200 {
		d := largeDrain(30)
		d.Node = fmt.Sprintf("node-%d", i)
		many = append(many, d)
	}
	for name, r := range map[string]*Report{"5,000 pods": readReports(t, many[0]), "200 drains": readReports(t, many[1:]...)} {
		if page := renderHTML(t, r); len(page) > 5<<20 {
			t.Errorf("%s: %d bytes", name, len(page))
		}
	}
}

func TestRowsHoldEachPodOnce(t *testing.T) {
	for _, n := range []int{1, 10, 299, 300, 301, 5000} {
		d := largeDrain(n)
		for _, limit := range []int{minRowsPerDrain, 300} {
			rows := groupPods(&d, newAxis(&d), limit)
			seen := map[string]int{}
			for _, r := range rows {
				for _, p := range r.pods {
					seen[p.UID]++
				}
			}
			if len(rows) > limit || len(seen) != n || slices.Max(slices.Collect(mapValues(seen))) != 1 {
				t.Errorf("%d pods: %d rows with %d pods, want %d rows at most", n, len(rows), len(seen), limit)
			}
			if n < limit && len(rows) != n {
				t.Errorf("%d pods: %d rows, want one for each pod", n, len(rows))
			}
		}
	}
}

func mapValues(m map[string]int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

func TestHiddenCharactersBecomeVisible(t *testing.T) {
	check.Is(t, `a b\u202ec\u0000\u200b`, cleanText("a\nb\u202ec\x00\u200b"))
	check.Is(t, "日本 ü", cleanText("日本 ü"))
}

// scriptOrHandler matches what a page must never have.
var scriptOrHandler = regexp.MustCompile(`(?i)<(script|img|iframe|object|embed|link rel="?stylesheet|form|base|foreignobject|animate|use)|\son[a-z]+=|(href|src)="?(javascript|http|//)|<[^>]*style=`)

func FuzzReport(f *testing.F) {
	for _, name := range []string{"agent.log", "objects.yaml"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, text := range []string{
		`{"node":"<script>","outcome":"x","startedAt":"9999-12-31T23:59:59Z","endedAt":"0001-01-01T00:00:00Z","pods":[{"endedAt":"2026-01-01T00:00:00Z","delays":[{"count":1e300,"durationSeconds":-1e300}]}]}`,
		`[[[[{"kind":"List","items":[{}]}]]]]`, "kind: &a [*a]", `{"msg":"draining","level":"","node":"n"}{"msg":"drain is blocked","level":"","node":"n","blocked":[1,{}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var in Inputs
		if err := in.Read("in", data); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		for _, p := range in.Problems() {
			if !strings.HasPrefix(p, "in:") && !strings.HasPrefix(p, "and ") {
				t.Errorf("problem %q names no input", p)
			}
		}
		r := Build(&in, Options{})
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("JSON: %v", err)
		}
		page := renderHTML(t, r)
		_, body, _ := strings.Cut(page, "</style>")
		if found := scriptOrHandler.FindString(body); found != "" {
			t.Errorf("the page contains %q", found)
		}
		checkGeometry(t, body)
	})
}

func TestRetriedDrainCountsEachPodOnce(t *testing.T) {
	var in Inputs
	for _, r := range []string{
		`{"node":"n","outcome":"deadline-passed","startedAt":"2026-03-01T12:00:00Z","endedAt":"2026-03-01T12:01:00Z","pods":[
{"namespace":"shop","name":"gone","uid":"u1","action":"evict","removal":"evicted","removalRequestedAt":"2026-03-01T12:00:01Z","end":"stopped","endedAt":"2026-03-01T12:00:02Z"},
{"namespace":"shop","name":"late","uid":"u2","action":"evict"},
{"namespace":"shop","name":"stuck","uid":"u3","action":"evict"},
{"namespace":"kube-system","name":"proxy","uid":"u4","action":"leave"}]}`,
		`{"node":"n","outcome":"deadline-passed","startedAt":"2026-03-01T12:02:00Z","endedAt":"2026-03-01T12:03:00Z","pods":[
{"namespace":"shop","name":"late","uid":"u2","action":"evict","removal":"deleted","removalRequestedAt":"2026-03-01T12:02:01Z","end":"stopped","endedAt":"2026-03-01T12:02:02Z"},
{"namespace":"shop","name":"stuck","uid":"u3","action":"evict"},
{"namespace":"kube-system","name":"proxy","uid":"u4","action":"leave"}]}`,
		`{"node":"m","outcome":"drained","startedAt":"2026-03-01T12:00:00Z","endedAt":"2026-03-01T12:01:00Z","pods":[
{"namespace":"kube-system","name":"proxy","uid":"u5","action":"leave"}]}`,
	} {
		must.NoError(t, in.Read("in", []byte(r)))
	}
	check.Len(t, 0, in.Problems())
	r := Build(&in, Options{})
	got := fmt.Sprintf("%d drains: %d gone, %d remaining, %d skipped", r.Totals.Drains, r.Totals.Gone, r.Totals.Remaining, r.Totals.Skipped)
	check.Is(t, "3 drains: 2 gone, 1 remaining, 2 skipped", got)
	check.Is(t, 2, r.Drains[slices.IndexFunc(r.Drains, func(d Drain) bool { return d.Node == "n" })].Totals.Remaining)
}

func TestPodOfLogCountsOnceInTheTotals(t *testing.T) {
	line := func(at, msg, fields string) string {
		return fmt.Sprintf(`{"time":"2026-03-01T12:0%sZ","level":"INFO","msg":%q,"node":"n"%s}`+"\n", at, msg, fields)
	}
	log := func(minute, end string) string {
		return line(minute+":00", "draining", "") + line(minute+":01", "drain is blocked", `,"blocked":[{"namespace":"shop","pod":"web"}]`) + end
	}
	report := func(minute, uid, end string) string {
		return fmt.Sprintf(`{"node":"n","outcome":"drained","startedAt":"2026-03-01T12:0%[1]s:00Z","endedAt":"2026-03-01T12:0%[1]s:09Z","pods":[
{"namespace":"shop","name":"web","uid":%[2]q,"action":"evict","end":%[3]q}]}`, minute, uid, end)
	}
	drainedIn := func(minute string) string { return line(minute+":09", "drained", `,"summary":"n: drained after 9.0s"`) }
	drained := drainedIn("0")
	for name, tt := range map[string]struct{ first, second, want string }{
		"gone in a later report":           {log("0", ""), report("1", "u1", "stopped"), "1 gone, 0 remaining"},
		"remaining in a later report":      {log("0", ""), report("1", "u1", ""), "0 gone, 1 remaining"},
		"remaining in an earlier report":   {report("0", "u1", ""), log("1", ""), "0 gone, 1 remaining"},
		"another one, the first was gone":  {log("0", drained), report("1", "u2", "stopped"), "2 gone, 0 remaining"},
		"both gone in logs":                {log("0", drained), log("1", drainedIn("1")), "2 gone, 0 remaining"},
		"the same log twice":               {log("0", drained), log("0", drained), "1 gone, 0 remaining"},
		"gone in a later log":              {report("0", "u1", ""), log("1", drainedIn("1")), "1 gone, 0 remaining"},
		"another one, the first, reported": {report("0", "u1", "stopped"), log("1", ""), "1 gone, 1 remaining"},
	} {
		var in Inputs
		must.NoError(t, in.Read("first", []byte(tt.first)))
		must.NoError(t, in.Read("second", []byte(tt.second)))
		r := Build(&in, Options{})
		check.Is(t, "2 drains: "+tt.want, fmt.Sprintf("%d drains: %d gone, %d remaining", r.Totals.Drains, r.Totals.Gone, r.Totals.Remaining), name)
	}
}

func TestPageShowsStartupOfSuccessors(t *testing.T) {
	const report = `{"node":"n","outcome":"drained","startedAt":"2026-03-01T12:00:00Z","endedAt":"2026-03-01T12:00:30Z","pods":[
{"namespace":"shop","name":"web","uid":"u1","decision":{"rule":"ordinary"},"action":"evict","wave":0,"removal":"surged","removalRequestedAt":"2026-03-01T12:00:20Z",
"graceWantedSeconds":8,"graceGivenSeconds":8,"end":"stopped","endedAt":"2026-03-01T12:00:22Z","delays":[{"reason":"surge","detail":"x","count":0,"startedAt":"2026-03-01T12:00:00Z","durationSeconds":0}],
"surge":{"decision":{"verdict":"needed","reason":"last-ready","detail":"it is the last"},"result":{"podLeft":true,"successor":"shop/next","startedAt":"2026-03-01T12:00:00Z","readyAt":"2026-03-01T12:00:18Z"}}},
{"namespace":"shop","name":"db","uid":"u2","decision":{"rule":"ordinary"},"action":"evict","wave":0,"removal":"evicted","removalRequestedAt":"2026-03-01T12:00:01Z",
"graceWantedSeconds":8,"graceGivenSeconds":8,"end":"stopped","endedAt":"2026-03-01T12:00:02Z","surge":{"decision":{"verdict":"refused","reason":"paused","detail":"it is paused"}}}]}`
	var in Inputs
	must.NoError(t, in.Read("in", []byte(report)))
	check.Len(t, 0, in.Problems())
	r := Build(&in, Options{})
	check.Is(t, 1, r.Totals.Surged)
	check.Is(t, 18, r.Totals.SecondsGained)
	page := renderHTML(t, r)
	check.Is(t, 2, strings.Count(page, `class="surge"`)) // in the chart and in the legend
	check.Contains(t, page, "needed: it is the last; successor shop/next is ready", "refused: it is paused", "deleted by its controller",
		"1 pod: got no successor, reason paused", "Service gained by successors")
}
