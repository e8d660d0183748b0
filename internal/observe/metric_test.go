package observe

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"
)

func TestTheExactText(t *testing.T) {
	r := NewRegistry()
	h := r.Histogram("b_seconds", "Time.", []float64{0.1, 1, 2.5}, "step")
	h.With("drain").Observe(0.1) // a bound belongs to its bucket
	h.With("drain").Observe(0.5)
	h.With("drain").Observe(99)
	h.With("drain").Observe(math.NaN())
	h.With("cordon")
	c := r.Counter("a_total", "Counts \\ in\ntwo \"lines\".", "kind", "why")
	c.With("x", "a\"b\\c\nd").Add(2.5)
	c.With("x", "").Inc()
	c.With("never", "").Add(-1)
	c.With("never", "").Add(math.NaN())
	r.Counter("plain_total", "Begins at zero.")
	r.Counter("nothing_total", "No label values yet.", "kind")
	g := r.Gauge("c", "A gauge.", "v")
	g.With("big").Set(1e21)
	g.With("down").Add(-3)
	g.With("inf").Set(math.Inf(1))
	g.With("nan").Set(math.NaN())
	g.With("neg").Set(math.Inf(-1))
	g.With("bad\xffutf").Set(1)
	r.GaugeFunc("d", "Read.", func() float64 { return 0.25 })
	r.addFuncMetric("gauge", "e", "Not known.", func() (float64, bool) { return 1, false })

	want := `# HELP a_total Counts \\ in\ntwo "lines".
# TYPE a_total counter
a_total{kind="never",why=""} 0
a_total{kind="x",why=""} 1
a_total{kind="x",why="a\"b\\c\nd"} 2.5
# HELP b_seconds Time.
# TYPE b_seconds histogram
b_seconds_bucket{step="cordon",le="0.1"} 0
b_seconds_bucket{step="cordon",le="1"} 0
b_seconds_bucket{step="cordon",le="2.5"} 0
b_seconds_bucket{step="cordon",le="+Inf"} 0
b_seconds_sum{step="cordon"} 0
b_seconds_count{step="cordon"} 0
b_seconds_bucket{step="drain",le="0.1"} 1
b_seconds_bucket{step="drain",le="1"} 2
b_seconds_bucket{step="drain",le="2.5"} 2
b_seconds_bucket{step="drain",le="+Inf"} 3
b_seconds_sum{step="drain"} 99.6
b_seconds_count{step="drain"} 3
# HELP c A gauge.
# TYPE c gauge
c{v="bad` + "\uFFFD" + `utf"} 1
c{v="big"} 1e+21
c{v="down"} -3
c{v="inf"} +Inf
c{v="nan"} NaN
c{v="neg"} -Inf
# HELP d Read.
# TYPE d gauge
d 0.25
# HELP plain_total Begins at zero.
# TYPE plain_total counter
plain_total 0
`
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if diff := cmp.Diff(want, w.Body.String()); diff != "" {
		t.Error(diff)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	if !bytes.Equal(r.formatMetrics(), r.formatMetrics()) {
		t.Error("two scrapes of the same values differ")
	}
}

func parse(t interface{ Fatalf(string, ...any) }, text []byte) map[string]*dto.MetricFamily {
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// TestWhatIsWrittenIsWhatPrometheusReads compares the text with what Prometheus' own parser makes of it and its own
// encoder writes, for any help text, label value and number.
func TestWhatIsWrittenIsWhatPrometheusReads(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := NewRegistry()
		help := "." + rapid.StringN(0, 20, -1).Draw(rt, "help") // the parser takes leading spaces off
		counter := r.Counter("a_total", help, "one", "two")
		histogram := r.Histogram("b_seconds", help, []float64{0.5, 1}, "one")
		type key struct{ one, two string }
		sums, observed := map[key]float64{}, map[string][]float64{}
		label := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{`"`, `\`, "\n", `\n`, "a,b=\"c\"} 1", ""}))
		for range rapid.IntRange(1, 10).Draw(rt, "changes") {
			k := key{label.Draw(rt, "one"), label.Draw(rt, "two")}
			v := rapid.Float64Range(0, 1e9).Draw(rt, "value")
			counter.With(k.one, k.two).Add(v)
			sums[k] += v
			histogram.With(k.one).Observe(v)
			observed[k.one] = append(observed[k.one], v)
		}
		text := r.formatMetrics()
		families := parse(rt, text)
		if got := families["a_total"]; got.GetHelp() != help || got.GetType() != dto.MetricType_COUNTER {
			rt.Fatalf("help %q type %v, want %q", got.GetHelp(), got.GetType(), help)
		}
		if len(families["a_total"].Metric) != len(sums) || len(families["b_seconds"].Metric) != len(observed) {
			rt.Fatalf("%d and %d metrics, want %d and %d", len(families["a_total"].Metric), len(families["b_seconds"].Metric),
				len(sums), len(observed))
		}
		for _, m := range families["a_total"].Metric {
			k := key{m.Label[0].GetValue(), m.Label[1].GetValue()}
			if want, there := sums[k]; !there || m.Counter.GetValue() != want {
				rt.Fatalf("%v is %v, want %v", k, m.Counter.GetValue(), want)
			}
		}
		for _, m := range families["b_seconds"].Metric {
			values := observed[m.Label[0].GetValue()]
			for _, b := range m.Histogram.Bucket {
				n := 0
				for _, v := range values {
					if v <= b.GetUpperBound() {
						n++
					}
				}
				if b.GetCumulativeCount() != uint64(n) {
					rt.Fatalf("bucket %v holds %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), n)
				}
			}
			if m.Histogram.GetSampleCount() != uint64(len(values)) || len(m.Histogram.Bucket) != 3 {
				rt.Fatalf("%d observations in %v, want %d", m.Histogram.GetSampleCount(), m.Histogram.Bucket, len(values))
			}
		}
		var again bytes.Buffer
		for _, name := range []string{"a_total", "b_seconds"} {
			if _, err := expfmt.MetricFamilyToText(&again, families[name]); err != nil {
				rt.Fatal(err)
			}
		}
		if diff := cmp.Diff(again.String(), string(text)); diff != "" {
			rt.Fatalf("Prometheus would write (-): %s", diff)
		}
	})
}

func TestTheStandardMetricsAreThereAndTrue(t *testing.T) {
	r := NewRegistry()
	r.AddStandardMetrics(Build{"v1.2.3", "abc"})
	families := parse(t, r.formatMetrics())
	value := func(name string) float64 {
		f := families[name]
		if f == nil {
			t.Errorf("%s is not there", name)
			return math.NaN()
		}
		return f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
	}
	for name, want := range standardRanges() {
		if got := value(name); !(got >= want[0] && got <= want[1]) {
			t.Errorf("%s is %v, want between %v and %v", name, got, want[0], want[1])
		}
	}
	var labels []string
	for _, l := range families["slipway_build_info"].Metric[0].Label {
		labels = append(labels, l.GetName()+"="+l.GetValue())
	}
	if len(labels) != 3 || labels[0] != "version=v1.2.3" || labels[1] != "revision=abc" || !strings.HasPrefix(labels[2], "goversion=go") {
		t.Errorf("slipway_build_info has %v", labels)
	}
	if typ := families["process_cpu_seconds_total"].GetType(); families["process_cpu_seconds_total"] != nil && typ != dto.MetricType_COUNTER {
		t.Errorf("process_cpu_seconds_total is a %v", typ)
	}
}

func TestPromtoolFindsNothingToSay(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool in PATH")
	}
	r := NewRegistry()
	r.AddStandardMetrics(Build{"v1.2.3", "abc"})
	r.Counter("slipway_evictions_total", "Evictions asked for.", "result").With("denied")
	r.Histogram("slipway_drain_duration_seconds", "How long drains took.", []float64{1, 60}).With().Observe(5)
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(r.formatMetrics())
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestMetricsAreUsedAndScrapedConcurrently(t *testing.T) {
	r := NewRegistry()
	c := r.Counter("a_total", "Counts.", "kind")
	h := r.Histogram("b_seconds", "Time.", []float64{1})
	g := r.Gauge("c", "Level.")
	const workers, rounds = 8, 500
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range rounds {
				c.With(fmt.Sprint(i % 10)).Inc()
				h.With().Observe(float64(i % 3))
				g.With().Add(1)
				if w == 0 && i%50 == 0 {
					r.Gauge(fmt.Sprintf("later_%d", i), "Defined while scraped.")
				}
				if w == 1 && i%50 == 0 {
					f := parse(t, r.formatMetrics())["b_seconds"].Metric[0].Histogram
					if f.GetSampleCount() != f.Bucket[len(f.Bucket)-1].GetCumulativeCount() {
						t.Errorf("%d observations, %v", f.GetSampleCount(), f.Bucket)
					}
				}
			}
		})
	}
	all.Wait()
	families := parse(t, r.formatMetrics())
	total := 0.0
	for _, m := range families["a_total"].Metric {
		total += m.Counter.GetValue()
	}
	if total != workers*rounds || families["c"].Metric[0].Gauge.GetValue() != workers*rounds ||
		families["b_seconds"].Metric[0].Histogram.GetSampleCount() != workers*rounds {
		t.Errorf("lost some of %d: %v", workers*rounds, families)
	}
}

func TestAWrongDefinitionPanicsAndNamesTheMetric(t *testing.T) {
	fresh := func(f func(r *Registry)) func() { return func() { f(NewRegistry()) } }
	wrong := map[string]func(){
		"no name":            fresh(func(r *Registry) { r.Gauge("", "Help.") }),
		"name with a dash":   fresh(func(r *Registry) { r.Gauge("a-b", "Help.") }),
		"name with a digit":  fresh(func(r *Registry) { r.Gauge("1a", "Help.") }),
		"no help":            fresh(func(r *Registry) { r.Gauge("a", "") }),
		"label with a colon": fresh(func(r *Registry) { r.Gauge("a", "Help.", "b:c") }),
		"reserved label":     fresh(func(r *Registry) { r.Gauge("a", "Help.", "__b") }),
		"label twice":        fresh(func(r *Registry) { r.Gauge("a", "Help.", "b", "b") }),
		"le in a histogram":  fresh(func(r *Registry) { r.Histogram("a", "Help.", nil, "le") }),
		"falling buckets":    fresh(func(r *Registry) { r.Histogram("a", "Help.", []float64{2, 1}) }),
		"an infinite bucket": fresh(func(r *Registry) { r.Histogram("a", "Help.", []float64{math.Inf(1)}) }),
		"NaN as a bucket":    fresh(func(r *Registry) { r.Histogram("a", "Help.", []float64{math.NaN()}) }),
		"name taken":         fresh(func(r *Registry) { r.Gauge("a", "Help."); r.Counter("a", "Help.") }),
		"name of a sample":   fresh(func(r *Registry) { r.Gauge("a_count", "Help."); r.Histogram("a", "Help.", nil) }),
		"too few values":     fresh(func(r *Registry) { r.Gauge("a", "Help.", "b").With() }),
		"too many values":    fresh(func(r *Registry) { r.Gauge("a", "Help.").With("x") }),
	}
	for name, f := range wrong {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "metric ") {
					t.Errorf("%s: %s", name, said)
				}
			}()
			f()
		}()
	}
}

func TestLaterChangesOfArgumentsChangeNoMetric(t *testing.T) {
	r := NewRegistry()
	buckets, labels := []float64{1, 2}, []string{"x"}
	h := r.Histogram("a_seconds", "Time.", buckets, labels...)
	buckets[0], labels[0] = 99, "changed"
	h.With("v").Observe(0.5)
	if got := string(r.formatMetrics()); !strings.Contains(got, `a_seconds_bucket{x="v",le="1"} 1`) {
		t.Error(got)
	}
	if !slices.Equal(buckets, []float64{99, 2}) {
		t.Error("the caller's slice was changed")
	}
}

func BenchmarkScrape(b *testing.B) {
	r := NewRegistry()
	r.AddStandardMetrics(Build{"v1.2.3", "abc"})
	c := r.Counter("a_total", "Counts.", "kind")
	for i := range 50 {
		c.With(fmt.Sprint(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(r.formatMetrics()) == 0 {
			b.Fatal("no text")
		}
	}
}

func BenchmarkInc(b *testing.B) {
	c := NewRegistry().Counter("a_total", "Counts.", "kind", "why")
	b.ReportAllocs()
	for b.Loop() {
		c.With("x", "y").Inc()
	}
}
