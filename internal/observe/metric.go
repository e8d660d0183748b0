// Package observe provides metrics in the Prometheus text format, health endpoints, profiles and logs for Slipway's
// processes.
//
// It does not use the Prometheus client library. That library costs a process about 4 MiB of resident memory, too much
// for an agent on every node. This package has counters, gauges and histograms with labels, which is all that the agent
// needs. It writes the text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/). It imports
// only the standard library.
//
// An invalid definition of a metric (its name, its labels, the number of label values) is a bug. So the functions that
// define metrics, and With, panic on such a definition. Nothing else panics.
package observe

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Registry holds the metrics of a process. As an http.Handler it writes all metrics. It is safe for concurrent use.
type Registry struct {
	mu       sync.Mutex
	families []family        // sorted by name
	names    map[string]bool // of all families and samples
}

// family is one metric with the values of all its label sets.
type family interface {
	about() *definition
	// appendSamples appends the lines of the family, without HELP and TYPE.
	appendSamples(b []byte) []byte
}

// definition is the name, help text and labels of a metric.
type definition struct {
	name, help, kind string
	labels           []string
}

func (d *definition) about() *definition { return d }

// NewRegistry returns a Registry without metrics.
func NewRegistry() *Registry { return &Registry{names: map[string]bool{}} }

// Counter defines a number that only increases. name must end in _total.
func (r *Registry) Counter(name, help string, labels ...string) *Vec[Counter] {
	return defineMetric(r, definition{name, help, "counter", labels}, func() *Counter { return &Counter{} })
}

// Gauge defines a number that can increase and decrease.
func (r *Registry) Gauge(name, help string, labels ...string) *Vec[Gauge] {
	return defineMetric(r, definition{name, help, "gauge", labels}, func() *Gauge { return &Gauge{} })
}

// GaugeFunc defines a gauge that calls f at each scrape. f must be quick and safe for concurrent use.
func (r *Registry) GaugeFunc(name, help string, f func() float64) {
	r.addFuncMetric("gauge", name, help, func() (float64, bool) { return f(), true })
}

// Histogram defines a distribution of values over buckets. buckets holds the inclusive upper bounds in increasing
// order. Histogram adds a last bucket up to +Inf.
func (r *Registry) Histogram(name, help string, buckets []float64, labels ...string) *Vec[Histogram] {
	for i, b := range buckets {
		if math.IsNaN(b) || math.IsInf(b, 0) || i > 0 && b <= buckets[i-1] { //nolint:gosec // i-1 is not negative: it says so
			panic(fmt.Sprintf("metric %s: buckets %v: want finite bounds in rising order", name, buckets))
		}
	}
	if slices.Contains(labels, "le") {
		panic(fmt.Sprintf("metric %s: label le: a histogram has its own", name))
	}
	bounds := slices.Clone(buckets)
	return defineMetric(r, definition{name, help, "histogram", labels}, func() *Histogram {
		return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
	})
}

// Definition is the name, type, labels and help text of a metric.
type Definition struct {
	Name, Help string
	Type       string // counter, gauge or histogram
	Labels     []string
}

// Definitions returns the definitions of all metrics, sorted by name.
func (r *Registry) Definitions() []Definition {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Definition, 0, len(r.families))
	for _, f := range r.families {
		d := f.about()
		all = append(all, Definition{Name: d.name, Help: d.help, Type: d.kind, Labels: slices.Clone(d.labels)})
	}
	return all
}

func (r *Registry) addFamily(f family) {
	d := f.about()
	d.validate()
	names := []string{d.name}
	if d.kind == "histogram" {
		names = append(names, d.name+"_bucket", d.name+"_count", d.name+"_sum")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		if r.names[n] {
			panic(fmt.Sprintf("metric %s: the name %s is taken", d.name, n))
		}
		r.names[n] = true
	}
	at, _ := slices.BinarySearchFunc(r.families, d.name, func(f family, name string) int {
		return strings.Compare(f.about().name, name)
	})
	r.families = slices.Insert(r.families, at, f)
}

// validate panics if the definition does not follow https://prometheus.io/docs/concepts/data_model/.
func (d *definition) validate() {
	if !isMetricName(d.name, true) {
		panic(fmt.Sprintf("metric %q: want a name of letters, digits, _ and :, not beginning with a digit", d.name))
	}
	if d.help == "" {
		panic(fmt.Sprintf("metric %s: want a help text", d.name))
	}
	for i, l := range d.labels {
		if !isMetricName(l, false) || strings.HasPrefix(l, "__") || slices.Contains(d.labels[:i], l) {
			panic(fmt.Sprintf("metric %s: label %q: want a name of letters, digits and _, not beginning with a digit or __, once",
				d.name, l))
		}
	}
}

func isMetricName(s string, allowColon bool) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || allowColon && c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// sampler is a metric with one set of label values.
type sampler interface {
	// append appends the lines of the metric; labels is the text inside the braces.
	append(b []byte, name, labels string) []byte
}

// Vec is a metric with labels. It holds one M for each set of label values.
type Vec[M any] struct {
	definition
	create func() *M

	mu       sync.RWMutex
	children []child[M] // sorted by labels
}

type child[M any] struct {
	labels string // the text inside the braces
	metric *M
}

func defineMetric[M any](r *Registry, d definition, create func() *M) *Vec[M] {
	d.labels = slices.Clone(d.labels)
	v := &Vec[M]{definition: d, create: create}
	r.addFamily(v)
	if len(d.labels) == 0 {
		v.With()
	}
	return v
}

// With returns the metric with the given label values, in the order in which the labels were defined. The first call
// creates the metric. So an early call makes a counter start at 0. A metric without labels always exists. A caller
// should store a metric that it uses often. With panics if the number of values is wrong.
func (v *Vec[M]) With(values ...string) *M {
	if len(values) != len(v.labels) {
		panic(fmt.Sprintf("metric %s: %d label values for the labels %v", v.name, len(values), v.labels))
	}
	labels := string(appendLabels(nil, v.labels, values))
	v.mu.RLock()
	i, there := v.find(labels)
	if there {
		defer v.mu.RUnlock()
		return v.children[i].metric
	}
	v.mu.RUnlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if i, there = v.find(labels); !there {
		v.children = slices.Insert(v.children, i, child[M]{labels, v.create()})
	}
	return v.children[i].metric
}

func (v *Vec[M]) find(labels string) (int, bool) {
	return slices.BinarySearchFunc(v.children, labels, func(c child[M], l string) int {
		return strings.Compare(c.labels, l)
	})
}

func (v *Vec[M]) appendSamples(b []byte) []byte {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.children {
		b = any(c.metric).(sampler).append(b, v.name, c.labels) // define is only called with types that implement sampler
	}
	return b
}

// number is a float64 with atomic access.
type number struct{ bits atomic.Uint64 }

func (n *number) get() float64  { return math.Float64frombits(n.bits.Load()) }
func (n *number) set(v float64) { n.bits.Store(math.Float64bits(v)) }

func (n *number) add(v float64) {
	for {
		was := n.bits.Load()
		if n.bits.CompareAndSwap(was, math.Float64bits(math.Float64frombits(was)+v)) {
			return
		}
	}
}

// Counter is a number that only increases.
type Counter struct{ value number }

// Inc adds 1.
func (c *Counter) Inc() { c.value.add(1) }

// Add adds v. It ignores a negative v and NaN.
func (c *Counter) Add(v float64) {
	if v > 0 {
		c.value.add(v)
	}
}

func (c *Counter) append(b []byte, name, labels string) []byte {
	return appendSample(b, name, labels, c.value.get())
}

// Gauge is a number that increases and decreases.
type Gauge struct{ value number }

// Set sets the gauge to v.
func (g *Gauge) Set(v float64) { g.value.set(v) }

// Add adds v, which may be negative.
func (g *Gauge) Add(v float64) { g.value.add(v) }

func (g *Gauge) append(b []byte, name, labels string) []byte {
	return appendSample(b, name, labels, g.value.get())
}

// Histogram counts observations in buckets.
type Histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one for each bound, not cumulative, and one above the last
	sum    number
}

// Observe counts v in its bucket. v has the unit that the histogram's name says. NaN is ignored.
func (h *Histogram) Observe(v float64) {
	if math.IsNaN(v) {
		return
	}
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i].Add(1)
	h.sum.add(v)
}

// append writes the lines of the histogram. The count always equals the last bucket. The sum may differ by a few
// observations, because it is not updated atomically with them.
func (h *Histogram) append(b []byte, name, labels string) []byte {
	var total uint64
	for i := range h.counts {
		bound := math.Inf(1)
		if i < len(h.bounds) {
			bound = h.bounds[i]
		}
		total += h.counts[i].Load()
		b = appendSample(b, name+"_bucket", withBucketBound(labels, bound), float64(total))
	}
	b = appendSample(b, name+"_sum", labels, h.sum.get())
	return appendSample(b, name+"_count", labels, float64(total))
}

// funcMetric is a metric that calls a function at each scrape. If the function returns false, the metric is omitted.
type funcMetric struct {
	definition
	read func() (float64, bool)
}

func (r *Registry) addFuncMetric(kind, name, help string, read func() (float64, bool)) {
	r.addFamily(&funcMetric{definition{name, help, kind, nil}, read})
}

func (o *funcMetric) appendSamples(b []byte) []byte {
	v, known := o.read()
	if !known {
		return b
	}
	return appendSample(b, o.name, "", v)
}
