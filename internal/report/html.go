package report

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/observe"
)

// maxPageBytes keeps a page usable. Few pages are larger at first.
const maxPageBytes = 5 << 20

// limits bound what a page shows.
type limits struct {
	// drains is how many drains have a section of their own. Drains that went wrong come first.
	drains int
	// rows is how many rows all charts have together, and rowsPerDrain one chart.
	rows, rowsPerDrain int
	// names is how many pods are listed by name if they share a row.
	names                         int
	trace, events                 int
	overview, retirements, inputs int
	// text is the longest text in bytes.
	text int
}

// newLimits returns the limits of a page. The divisor is larger if the page would be too large.
func newLimits(divisor int) limits {
	return limits{
		drains: max(1, 60/divisor), rows: 2000 / divisor, rowsPerDrain: max(minRowsPerDrain, 300/divisor), names: 6000 / divisor, trace: max(50, 600/divisor),
		events: max(50, 600/divisor), overview: max(50, 1000/divisor), retirements: max(5, 60/divisor), inputs: 100, text: max(100, maxText/divisor),
	}
}

// minRowsPerDrain is the limit of rows in a chart if there are many drains.
const minRowsPerDrain = 20

// clean returns a text of the page, see cleanText.
func (l limits) clean(s string) string { return observe.ClipBytes(cleanText(s), l.text) }

//go:embed page.html.tmpl
var pageTemplate string

//go:embed style.css
var pageStyle string

var pageTemplates = template.Must(template.New("page").Parse(pageTemplate))

// contentSecurityPolicy allows the page's own style and nothing else: no script, no request. The page has names and
// messages of the cluster, which anybody may have chosen.
func contentSecurityPolicy() string {
	hash := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'"
}

// page is the data of the template. Its texts are clean.
type page struct {
	Title, Policy string
	Style         template.CSS
	Range         string
	Cards         []card
	Overview      []overviewNode
	OverviewMore  int
	Drains        []drainSection
	DrainsMore    int
	Retirements   []retirementSection
	RetireMore    int
	Trace         []traceRow
	TraceMore     int
	Events        []eventRow
	EventsMore    int
	Sources       []Source
	Problems      []string
	Created       string
}

type card struct {
	Label, Value string
	IsBad        bool
}

// overviewNode is a node of the overview, with a row for each of its retirements and drains, and one for its Events.
type overviewNode struct {
	Node string
	Rows []overviewRow
}

// overviewRow has the ID of a section, if there is one. Totals is set only for a drain.
type overviewRow struct {
	ID, What, Start, Took, Outcome string
	IsBad                          bool
	Totals                         *drain.Totals
}

type drainSection struct {
	ID, Heading, Summary string
	IsBad                bool
	Facts                []card
	Notes                []string
	Chart                chart
	HasPods              bool
	Rows                 []tableRow
	PDBs                 []pdbRow
}

type tableRow struct {
	Name, Owner, Rule, Asked, Waited, Removal, Terminated, Gone, End string
	Names                                                            []string
	NamesMore                                                        int
	IsBad                                                            bool
}

type pdbRow struct {
	PDB, Longest, Detail   string
	Pods, Refusals, Forced int
}

type retirementSection struct {
	ID, Heading, Summary string
	IsBad                bool
	Facts                []card
	Chart                chart
	HasChart             bool
	Phases               []card
	Conditions           []conditionRow
	Reasons              []ReasonLine
}

type conditionRow struct{ Type, Status, Reason, Message, At string }

type traceRow struct {
	At, Node, From, What, Why string
	IsWarning                 bool
}

type eventRow struct {
	At, Type, Reason, Object, Message, Component string
	Count                                        int64
	IsWarning                                    bool
}

// WriteHTML writes the report as one HTML page that needs no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	const maxDivisor = 64
	var b bytes.Buffer
	for divisor := 1; ; divisor *= 2 {
		b.Reset()
		if err := pageTemplates.Execute(&b, newPage(r, newLimits(divisor))); err != nil {
			return err
		}
		if b.Len() <= maxPageBytes || divisor >= maxDivisor {
			_, err := b.WriteTo(w)
			return err
		}
	}
}

func newPage(r *Report, l limits) *page {
	p := &page{Title: cleanText(r.Title), Policy: contentSecurityPolicy(), Style: template.CSS(pageStyle), Sources: cleanSources(r.Sources[:min(len(r.Sources), l.inputs)]), Problems: cleanAll(r.Problems)} //nolint:gosec // an embedded file
	switch {
	case !r.From.IsZero() && !r.To.IsZero():
		p.Range = "From " + formatTime(r.From) + " to " + formatTime(r.To)
	case !r.From.IsZero():
		p.Range = "Since " + formatTime(r.From)
	case !r.To.IsZero():
		p.Range = "Until " + formatTime(r.To)
	}
	if !r.CreatedAt.IsZero() {
		p.Created = formatTime(r.CreatedAt)
	}
	if r.Version != "" {
		p.Created = strings.TrimSpace(p.Created + " by slipway " + cleanText(r.Version))
	}
	p.Cards = newCards(r)
	p.addDrains(r, l)
	p.addRetirements(r, l)
	p.addOverview(r, l)
	// The latest entries are kept: they say how it ended.
	for _, e := range r.Trace[max(0, len(r.Trace)-l.trace):] {
		p.Trace = append(p.Trace, traceRow{formatTime(e.At), l.clean(e.Node), e.From, l.clean(e.What), l.clean(e.Why), e.IsWarning})
	}
	p.TraceMore = len(r.Trace) - len(p.Trace)
	for _, e := range r.Events[max(0, len(r.Events)-l.events):] {
		p.Events = append(p.Events, eventRow{
			formatTime(e.At), l.clean(e.Type), l.clean(e.Reason), l.clean(e.Object()), l.clean(e.Message), l.clean(e.Component), e.Count,
			e.Type == "Warning",
		})
	}
	p.EventsMore = len(r.Events) - len(p.Events)
	return p
}

func cleanAll(texts []string) []string {
	var all []string
	for _, s := range texts {
		all = append(all, cleanText(s))
	}
	return all
}

func cleanSources(sources []Source) []Source {
	all := slices.Clone(sources)
	for i := range all {
		all[i].Name = cleanText(all[i].Name)
	}
	return all
}

func newCards(r *Report) []card {
	t := r.Totals
	all := []card{
		{"Drains", fmt.Sprint(t.Drains), false}, {"Pods gone", fmt.Sprint(t.Gone), false}, {"Pods remaining", fmt.Sprint(t.Remaining), t.Remaining > 0},
		{"Deleted without eviction", fmt.Sprint(t.Forced), t.Forced > 0}, {"Cut short", fmt.Sprint(t.CutShort), t.CutShort > 0},
		{"Not to be evicted", fmt.Sprint(t.Skipped), false},
	}
	if t.Surged > 0 {
		all = append(all, card{"Left after their successor was ready", fmt.Sprint(t.Surged), false},
			card{"Service gained by successors", formatDuration(toDuration(t.SecondsGained)), false})
	}
	if t.LongestPDBWaitSeconds > 0 {
		all = append(all, card{"Longest wait for a PDB", formatDuration(toDuration(t.LongestPDBWaitSeconds)), false})
	}
	if len(r.Drains) == 0 {
		all = nil
	}
	if n := len(r.Retirements); n > 0 {
		all = append(all, card{"Retirements", fmt.Sprint(n), false})
	}
	return all
}

func (p *page) addDrains(r *Report, l limits) {
	shown := chooseDrains(r.Drains, l.drains)
	p.DrainsMore = len(r.Drains) - len(shown)
	for _, i := range shown {
		rows := max(minRowsPerDrain, min(l.rowsPerDrain, l.rows/len(shown)))
		p.Drains = append(p.Drains, newDrainSection(drainID(i), &r.Drains[i], rows, &l))
	}
}

// addOverview adds the overview, unless there is only one node with one drain. It links the sections that the page has.
func (p *page) addOverview(r *Report, l limits) {
	if len(r.Nodes) <= 1 && len(r.Drains) <= 1 {
		return
	}
	sections := map[string]bool{}
	for _, s := range p.Drains {
		sections[s.ID] = true
	}
	for _, s := range p.Retirements {
		sections[s.ID] = true
	}
	link := func(id string) string {
		if sections[id] {
			return id
		}
		return ""
	}
	rows := map[string][]overviewRow{}
	for i, t := range r.Retirements {
		took := ""
		if t.isFinished() {
			took = formatDuration(t.lastTime().Sub(t.CreatedAt))
		}
		rows[t.Node] = append(rows[t.Node], overviewRow{
			link(retirementID(i)), l.clean("NodeRetirement " + t.Name), formatTime(t.CreatedAt), took, l.clean(t.Phase), t.hasFailed(), nil,
		})
	}
	for i := range r.Drains {
		d := &r.Drains[i]
		rows[d.Node] = append(rows[d.Node], overviewRow{link(drainID(i)), "drain", formatTime(d.StartedAt), describeTook(*d), describeOutcome(*d), isBad(*d), &d.Totals})
	}
	total := 0
	for _, n := range r.Nodes {
		if n.Events > 0 {
			warnings := ""
			if n.Warnings > 0 {
				warnings = observe.FormatCount(n.Warnings, "warning")
			}
			rows[n.Node] = append(rows[n.Node], overviewRow{What: observe.FormatCount(n.Events, "Event"), Outcome: warnings})
		}
		shown := rows[n.Node][:min(len(rows[n.Node]), max(0, l.overview-total))]
		if total += len(rows[n.Node]); len(shown) > 0 {
			p.Overview = append(p.Overview, overviewNode{l.clean(n.Node), shown})
		}
	}
	p.OverviewMore = max(0, total-l.overview)
}

func drainID(i int) string { return fmt.Sprintf("drain-%d", i+1) }

func retirementID(i int) string { return fmt.Sprintf("retirement-%d", i+1) }

// chooseDrains returns the indexes of the drains that have a section, in their order. If there
// are too many, it prefers drains that went wrong.
func chooseDrains(drains []Drain, most int) []int {
	all := make([]int, len(drains))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(boolToInt(!isBad(drains[a])), boolToInt(!isBad(drains[b]))) })
	all = all[:min(len(all), most)]
	slices.Sort(all)
	return all
}

// isBad reports whether a person should look at the drain.
func isBad(d Drain) bool {
	return d.Outcome != drain.Drained || d.Totals.Forced+d.Totals.CutShort+d.Totals.Remaining > 0
}

func describeTook(d Drain) string {
	if d.EndedAt.IsZero() || d.StartedAt.IsZero() {
		return "not known"
	}
	return formatDuration(d.EndedAt.Sub(d.StartedAt))
}

func describeOutcome(d Drain) string {
	if d.Outcome == "" {
		return "not ended, as far as is known"
	}
	return cleanText(string(d.Outcome))
}

// newDrainSection returns the section of a drain with at most limit rows. It takes the listed names off the limits.
func newDrainSection(id string, d *Drain, limit int, l *limits) drainSection {
	a := newAxis(&d.Report)
	s := drainSection{ID: id, Heading: cleanText("Drain of node " + d.Node), Summary: cleanText(d.describe()), IsBad: isBad(*d), Notes: cleanAll(d.Notes), HasPods: len(d.Pods) > 0}
	s.Facts = []card{{"Started", formatTime(d.StartedAt), false}, {"Took", describeTook(*d), false}, {"Outcome", describeOutcome(*d), d.Outcome != drain.Drained}}
	if d.Deadline.IsZero() {
		s.Facts = append(s.Facts, card{"Deadline", "none", false})
	} else {
		s.Facts = append(s.Facts, card{"Deadline", formatTime(d.Deadline) + ", " + offset(a, d.Deadline), false})
	}
	if !s.HasPods {
		return s
	}
	rows := groupPods(&d.Report, a, limit)
	if len(rows) < len(d.Pods) {
		s.Notes = append(s.Notes, "Pods that went alike share a row. A shared row lasts from the first start to the last end of its pods.")
	}
	s.Chart = newDrainChart(id+"-chart", d, a, rows, *l)
	for i := range rows {
		s.Rows = append(s.Rows, newTableRow(a, &rows[i], l))
	}
	for _, w := range d.PDBs[:min(len(d.PDBs), limit)] {
		s.PDBs = append(s.PDBs, pdbRow{l.clean(w.PDB), formatDuration(toDuration(w.LongestSeconds)), l.clean(w.Detail), w.Pods, w.Refusals, w.Forced})
	}
	return s
}

// describeSurgeAfter returns the decision about a pod's successor as the end of a list.
func describeSurgeAfter(p drain.PodReport) string {
	if text := describeSurge(p); text != "" {
		return "; " + text
	}
	return ""
}

func newTableRow(a axis, r *podRow, l *limits) tableRow {
	p := r.pod
	row := tableRow{
		Name: cleanText(r.name()), Owner: cleanText(p.Owner), Rule: l.clean(strings.TrimSuffix(p.Decision.Rule.String()+": "+p.Decision.Detail, ": ")),
		Asked: offset(a, p.FirstRequestedAt), Waited: l.clean(strings.TrimPrefix(describeWaits(r.waits)+describeSurgeAfter(p), "; ")),
		Removal: cleanText(strings.TrimSpace(describeRemoval(p) + " " + offset(a, startOfRemoval(p)))), Gone: offset(a, p.EndedAt),
		End: cleanText(string(p.End)), IsBad: r.wasCutShort() || p.IsNotRemoved() || p.Removal == drain.ForceDeleted,
	}
	if len(r.pods) > 1 {
		for _, pod := range r.pods[:min(len(r.pods), l.names)] {
			row.Names = append(row.Names, cleanText(pod.Namespace+"/"+pod.Name))
		}
		l.names -= len(row.Names)
		row.NamesMore = len(r.pods) - len(row.Names)
	}
	if p.Action == podrules.Skip {
		row.Removal = "not evicted"
		return row
	}
	if began := startOfRemoval(p); !began.IsZero() {
		row.Terminated = fmt.Sprintf("of %d s", p.WantedGraceSeconds)
		if p.GivenGraceSeconds != p.WantedGraceSeconds {
			row.Terminated += fmt.Sprintf(", got %d s", p.GivenGraceSeconds)
		}
		if !p.EndedAt.IsZero() {
			row.Terminated = formatDuration(p.EndedAt.Sub(began)) + " " + row.Terminated
		}
	}
	if p.IsNotRemoved() {
		row.End = "still on the node"
	}
	return row
}

func (p *page) addRetirements(r *Report, l limits) {
	p.RetireMore = max(0, len(r.Retirements)-l.retirements)
	for i, t := range r.Retirements[:len(r.Retirements)-p.RetireMore] {
		s := retirementSection{
			ID: retirementID(i), Heading: l.clean("NodeRetirement " + t.Name), Summary: l.clean(t.Message),
			IsBad: t.hasFailed(),
			Facts: []card{{"Node", l.clean(t.Node), false}, {"Phase", l.clean(t.Phase), false}, {"Reason", l.clean(t.Reason), false}, {"Created", formatTime(t.CreatedAt), false}},
		}
		for _, c := range []card{{"Requested by", t.RequestedBy, false}, {"NodeGroup", t.Group, false}, {"Instance", t.Instance, false}, {"Drain", t.Drain, false}, {"Override", t.Override, true}} {
			if c.Value != "" {
				s.Facts = append(s.Facts, card{c.Label, l.clean(c.Value), c.IsBad})
			}
		}
		s.Chart, s.HasChart = newRetirementChart(s.ID+"-chart", &t)
		for _, phase := range t.Phases {
			s.Phases = append(s.Phases, card{phase.Phase, formatTime(phase.At) + ", " + offset(axis{start: t.CreatedAt}, phase.At), false})
		}
		for _, c := range t.Conditions[:min(len(t.Conditions), 50)] {
			s.Conditions = append(s.Conditions, conditionRow{l.clean(c.Type), l.clean(c.Status), l.clean(c.Reason), l.clean(c.Message), formatTime(c.At)})
		}
		for _, c := range t.Reasons[:min(len(t.Reasons), 64)] {
			s.Reasons = append(s.Reasons, ReasonLine{l.clean(c.Code), l.clean(c.Object), l.clean(c.Message)})
		}
		p.Retirements = append(p.Retirements, s)
	}
}
