// Package report makes a page about drains, retirements or a time range: what happened to each pod, when, and why. Its
// inputs are drain reports, NodeRetirements, Events and logs. It reads no cluster; the caller passes what it has read.
package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Report is the content of a page.
type Report struct {
	Title string `json:"title"`
	// From and To limit the report; zero means no limit.
	From      time.Time `json:"from,omitzero"`
	To        time.Time `json:"to,omitzero"`
	CreatedAt time.Time `json:"createdAt,omitzero"`
	Version   string    `json:"version,omitempty"`
	// Nodes are the nodes of the drains, retirements and Events. Nodes that have only Events come last.
	Nodes       []NodeRecords `json:"nodes"`
	Drains      []Drain       `json:"drains"`
	Retirements []Retirement  `json:"retirements"`
	Trace       []TraceEntry  `json:"trace"`
	Events      []Event       `json:"events"`
	Totals      Totals        `json:"totals"`
	Sources     []Source      `json:"sources"`
	Problems    []string      `json:"problems,omitempty"`
}

// NodeRecords counts what the report has about one node.
type NodeRecords struct {
	Node        string `json:"node"`
	Drains      int    `json:"drains"`
	Retirements int    `json:"retirements"`
	Events      int    `json:"events"`
	// Warnings is how many of the Events have the type Warning.
	Warnings int `json:"warnings"`
}

func (n NodeRecords) hasOnlyEvents() bool { return n.Drains+n.Retirements == 0 }

// Totals are the sums of all drains. Each pod counts once.
type Totals struct {
	drain.Totals

	Drains int `json:"drains"`
	// LongestPDBWaitSeconds is how long a pod waited for a PDB at most, in seconds.
	LongestPDBWaitSeconds float64 `json:"longestPDBWaitSeconds"`
	LongestPDB            string  `json:"longestPDB,omitempty"`
}

// Drain is one drain of one node.
type Drain struct {
	drain.Report

	Totals drain.Totals `json:"totals"`
	PDBs   []PDBWait    `json:"pdbs"`
	// Notes are about the data, such as times of clocks that differ.
	Notes []string `json:"notes,omitempty"`
	// IsFromLog is true if only log lines tell of the drain, because its drain report is missing.
	IsFromLog bool `json:"isFromLog,omitempty"`
}

// PDBWait says how long pods of a drain waited for one PDB.
type PDBWait struct {
	PDB            string  `json:"pdb"`
	Pods           int     `json:"pods"`
	Refusals       int     `json:"refusals"`
	LongestSeconds float64 `json:"longestSeconds"`
	Forced         int     `json:"forced"`
	Detail         string  `json:"detail"`
}

// Retirement is one NodeRetirement.
type Retirement struct {
	Name        string       `json:"name"`
	Node        string       `json:"node"`
	Reason      string       `json:"reason,omitempty"`
	RequestedBy string       `json:"requestedBy,omitempty"`
	Group       string       `json:"group,omitempty"`
	Instance    string       `json:"instance,omitempty"`
	CreatedAt   time.Time    `json:"createdAt,omitzero"`
	Phase       string       `json:"phase,omitempty"`
	Message     string       `json:"message,omitempty"`
	Drain       string       `json:"drain,omitempty"`
	Override    string       `json:"override,omitempty"`
	Phases      []PhaseTime  `json:"phases,omitempty"`
	Conditions  []Condition  `json:"conditions,omitempty"`
	Reasons     []ReasonLine `json:"reasons,omitempty"`
}

// PhaseTime is when a retirement reached a phase.
type PhaseTime struct {
	Phase string    `json:"phase"`
	At    time.Time `json:"at"`
}

// Condition is one condition in the status of a NodeRetirement. At is its last transition.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// ReasonLine is a cause that blocks a retirement or that ended it.
type ReasonLine struct {
	Code    string `json:"code"`
	Object  string `json:"object,omitempty"`
	Message string `json:"message"`
}

func (r Retirement) isFinished() bool {
	return slices.ContainsFunc(r.Phases, func(p PhaseTime) bool { return p.Phase == "finished" })
}

func (r Retirement) hasFailed() bool {
	return r.Phase == "Failed" || r.Phase == "Refused" || r.Phase == "Aborted"
}

// lastTime returns when the retirement ended, or the last time that is known of it.
func (r Retirement) lastTime() time.Time {
	end := r.CreatedAt
	for _, p := range r.Phases {
		if p.At.After(end) {
			end = p.At
		}
	}
	return end
}

// Event is a Kubernetes Event.
type Event struct {
	At        time.Time `json:"at,omitzero"`
	Type      string    `json:"type,omitempty"`
	Reason    string    `json:"reason"`
	Kind      string    `json:"kind,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// Node is the Node that the Event is about, or the Node of the NodeRetirement. It is empty if it is not known.
	Node      string `json:"node,omitempty"`
	Message   string `json:"message"`
	Component string `json:"component,omitempty"`
	Count     int64  `json:"count"`
}

// Object returns the object that the Event is about.
func (e Event) Object() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + name
	}
	return strings.TrimSpace(e.Kind + " " + name)
}

// Options selects and describes the content of a report.
type Options struct {
	Title string
	// Nodes, if set, are the only nodes of the report.
	Nodes []string
	// From and To, if set, leave out what happened before or after.
	From, To time.Time
	// Now is when the report is made.
	Now     time.Time
	Version string
}

func (o Options) includesTime(at time.Time) bool {
	return at.IsZero() || (o.From.IsZero() || !at.Before(o.From)) && (o.To.IsZero() || !at.After(o.To))
}

// includesRange reports whether a time between start and end is in the report. A zero end is not ended.
func (o Options) includesRange(start, end time.Time) bool {
	return (o.From.IsZero() || end.IsZero() || !end.Before(o.From)) && (o.To.IsZero() || start.IsZero() || !start.After(o.To))
}

func (o Options) includesNode(node string) bool {
	return len(o.Nodes) == 0 || slices.Contains(o.Nodes, node)
}

// Build returns the report of the inputs.
func Build(in *Inputs, o Options) *Report {
	r := &Report{
		Title: o.Title, From: o.From, To: o.To, CreatedAt: o.Now, Version: o.Version, Drains: []Drain{}, Retirements: in.Retirements(o),
		Trace: []TraceEntry{}, Events: in.Events(o), Sources: in.sources,
	}
	add := func(all []*drain.Report, fromLog bool) {
		for _, d := range all {
			if o.includesNode(d.Node) && o.includesRange(d.StartedAt, d.EndedAt) {
				r.Drains = append(r.Drains, newDrain(d, fromLog))
			}
		}
	}
	add(in.drains, false)
	add(drainsOfLog(in), true)
	slices.SortStableFunc(r.Drains, func(a, b Drain) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.Node, b.Node)) })
	r.Nodes = countByNode(r)
	for _, node := range o.Nodes {
		if !slices.ContainsFunc(r.Nodes, func(n NodeRecords) bool { return n.Node == node }) {
			in.AddProblem("node %s: the inputs have no drain, retirement or Event of it in the time range", node)
		}
	}
	r.Trace = buildTrace(in, r, o)
	r.Totals = sumDrains(r.Drains)
	r.Problems = in.problems.all()
	if r.Title == "" {
		r.Title = defaultTitle(r)
	}
	return r
}

// Retirements returns the retirements that a report with these options has, the oldest first, each once.
func (in *Inputs) Retirements(o Options) []Retirement {
	all := []Retirement{}
	for _, t := range in.retirements {
		end := t.lastTime()
		if !t.isFinished() {
			end = time.Time{} // unknown
		}
		if o.includesNode(t.Node) && o.includesRange(t.CreatedAt, end) {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b Retirement) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return slices.CompactFunc(all, func(a, b Retirement) bool { return a.Name == b.Name && a.CreatedAt.Equal(b.CreatedAt) })
}

// Events returns the Events that a report with these options has, the oldest first, each once.
func (in *Inputs) Events(o Options) []Event {
	all := []Event{}
	known, nodeOf := map[Event]bool{}, map[string]string{}
	for _, t := range in.retirements {
		nodeOf[t.Name] = t.Node
	}
	for _, e := range in.events {
		switch e.Kind {
		case "Node":
			e.Node = e.Name
		case "NodeRetirement":
			e.Node = nodeOf[e.Name]
		}
		if o.includesTime(e.At) && (e.Node == "" || o.includesNode(e.Node)) && !known[e] {
			known[e] = true
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return a.At.Compare(b.At) })
	return all
}

func countByNode(r *Report) []NodeRecords {
	all := map[string]*NodeRecords{}
	of := func(node string) *NodeRecords {
		if all[node] == nil {
			all[node] = &NodeRecords{Node: node}
		}
		return all[node]
	}
	for _, d := range r.Drains {
		of(d.Node).Drains++
	}
	for _, t := range r.Retirements {
		of(t.Node).Retirements++
	}
	for _, e := range r.Events {
		if e.Node == "" {
			continue
		}
		n := of(e.Node)
		n.Events++
		if e.Type == "Warning" {
			n.Warnings++
		}
	}
	nodes := []NodeRecords{}
	for _, n := range all {
		nodes = append(nodes, *n)
	}
	slices.SortFunc(nodes, func(a, b NodeRecords) int {
		return cmp.Or(cmp.Compare(boolToInt(a.hasOnlyEvents()), boolToInt(b.hasOnlyEvents())), strings.Compare(a.Node, b.Node))
	})
	return nodes
}

func defaultTitle(r *Report) string {
	nodes := len(r.Nodes)
	if i := slices.IndexFunc(r.Nodes, NodeRecords.hasOnlyEvents); i >= 0 {
		nodes = i
	}
	switch {
	case nodes == 1 && len(r.Retirements) == 1:
		return "Retirement of node " + r.Retirements[0].Node
	case nodes == 1 && len(r.Drains) == 1:
		return "Drain of node " + r.Drains[0].Node
	case nodes == 1 && len(r.Drains) > 1:
		return "Drains of node " + r.Drains[0].Node
	case nodes == 0:
		return "Slipway report"
	case len(r.Retirements) == 0:
		return "Drains of " + observe.FormatCount(nodes, "node")
	case len(r.Drains) == 0:
		return "Retirements of " + observe.FormatCount(nodes, "node")
	}
	return "Drains and retirements of " + observe.FormatCount(nodes, "node")
}

func newDrain(d *drain.Report, fromLog bool) Drain {
	out := Drain{Report: *d, Totals: d.Totals(), IsFromLog: fromLog}
	if out.Pods == nil {
		out.Pods = []drain.PodReport{}
	}
	if fromLog {
		out.Notes = append(out.Notes, "No drain report was found, only log lines about the drain. Pods without a line are missing.")
	}
	if d.EndedAt.IsZero() {
		out.Notes = append(out.Notes, "The end of the drain is not in the inputs.")
	}
	skewed := 0
	for _, p := range d.Pods {
		if asked := startOfRemoval(p); !asked.IsZero() && !p.EndedAt.IsZero() && p.EndedAt.Before(asked.Add(-clockTolerance)) {
			skewed++
		}
	}
	if skewed > 0 {
		out.Notes = append(out.Notes, observe.FormatCount(skewed, "pod")+" ended before the request for the removal. Clocks differ, or the times are of different requests.")
	}
	out.PDBs = sumPDBs(d)
	return out
}

// clockTolerance is the difference of times that is not reported. The API server's times have whole seconds.
const clockTolerance = time.Second

// startOfRemoval returns when the pod's removal began: when the accepted request was sent, or when another client's
// deletion took effect.
func startOfRemoval(p drain.PodReport) time.Time {
	if !p.RemovalRequestedAt.IsZero() {
		return p.RemovalRequestedAt
	}
	return p.TerminatingSince
}

// nameOfPDB returns the PDB of a delay. Reports of earlier versions name it only in the detail.
func nameOfPDB(d drain.Delay) string { return cmp.Or(d.PDB, "not named") }

// waits returns the intervals of a pod's waits, one for each delay. A pod waits for one obstacle at a time, so an interval
// ends when the next one begins. If a pod waited for several obstacles in turn, their intervals overlap, because a delay
// has only its first start and its last refusal. The last obstacle is the one with the latest refusal.
func waits(p drain.PodReport, end time.Time) []interval {
	delays := slices.Clone(p.Delays)
	slices.SortStableFunc(delays, func(a, b drain.Delay) int { return a.StartedAt.Compare(b.StartedAt) })
	until := end
	if at := startOfRemoval(p); !at.IsZero() {
		until = at
	} else if !p.EndedAt.IsZero() {
		until = p.EndedAt
	}
	last := 0
	for i, d := range delays {
		if !lastRefusal(d).Before(lastRefusal(delays[last])) {
			last = i
		}
	}
	var all []interval
	for i, d := range delays {
		if d.StartedAt.IsZero() {
			continue
		}
		w := interval{d.StartedAt, lastRefusal(d), d}
		if i+1 < len(delays) && delays[i+1].StartedAt.After(w.end) {
			w.end = delays[i+1].StartedAt
		}
		if i == last || w.end.After(until) {
			w.end = until
		}
		if w.end.Before(w.start) {
			w.end = w.start
		}
		all = append(all, w)
	}
	return all
}

// lastRefusal returns when a request of the pod was last refused, or the start of a delay without a repeated request.
func lastRefusal(d drain.Delay) time.Time {
	if d.Count > 1 {
		return d.StartedAt.Add(toDuration(max(d.Seconds, 0)))
	}
	return d.StartedAt
}

// interval is the time that a pod waited for one obstacle.
type interval struct {
	start, end time.Time
	delay      drain.Delay
}

// lastTime returns the last time of a drain that is known, apart from its deadline.
func lastTime(d *drain.Report) time.Time {
	last := d.StartedAt
	for _, p := range d.Pods {
		_, ready := startOfSuccessor(p)
		for _, at := range []time.Time{p.FirstRequestedAt, p.RemovalRequestedAt, p.TerminatingSince, p.EndedAt, ready} {
			if at.After(last) {
				last = at
			}
		}
		for _, w := range p.Delays {
			if w.StartedAt.After(last) {
				last = w.StartedAt
			}
		}
	}
	if d.EndedAt.After(last) {
		last = d.EndedAt
	}
	return last
}

// sumPDBs returns the waits for each PDB, the longest first.
func sumPDBs(d *drain.Report) []PDBWait {
	byName := map[string]*PDBWait{}
	all := []PDBWait{}
	end := lastTime(d)
	for _, p := range d.Pods {
		took := map[string]float64{}
		for _, w := range waits(p, end) {
			took[string(w.delay.Reason)+w.delay.PDB] += w.end.Sub(w.start).Seconds()
		}
		for _, delay := range p.Delays {
			if !delay.IsPDB() {
				continue
			}
			name := nameOfPDB(delay)
			s := byName[name]
			if s == nil {
				s = &PDBWait{PDB: name}
				byName[name] = s
			}
			s.Pods++
			s.Refusals += delay.Count
			s.Detail = delay.Detail
			s.LongestSeconds = max(s.LongestSeconds, took[string(delay.Reason)+delay.PDB], delay.Seconds)
			if p.Removal == drain.ForceDeleted {
				s.Forced++
			}
		}
	}
	for _, s := range byName {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b PDBWait) int {
		return cmp.Or(cmp.Compare(b.LongestSeconds, a.LongestSeconds), strings.Compare(a.PDB, b.PDB))
	})
	return all
}

// sumDrains returns the totals of drains, the oldest first. It counts a pod once, in the latest drain of its node. A drain that
// is tried again reports the remaining pods again. A pod of a log has no UID: it is the same as a pod of the same name in another
// drain, unless the earlier drain removed it.
func sumDrains(drains []Drain) Totals {
	t := Totals{Drains: len(drains)}
	var latest drain.Report
	counted, named := map[string]bool{}, map[string]bool{} // by name and UID, and by name
	for _, d := range slices.Backward(drains) {
		for _, p := range d.Pods {
			name := d.Node + "/" + podKey(drain.PodReport{Namespace: p.Namespace, Name: p.Name})
			key := name + p.UID
			if p.UID == "" && !p.IsNotRemoved() {
				key += d.StartedAt.String()
			}
			if !counted[key] && !(p.IsNotRemoved() && (counted[name] || p.UID == "" && named[name])) {
				counted[key], counted[name] = true, counted[name] || p.UID == ""
				latest.Pods = append(latest.Pods, p)
			}
			named[name] = true
		}
		for _, w := range d.PDBs[:min(1, len(d.PDBs))] {
			if w.LongestSeconds > t.LongestPDBWaitSeconds {
				t.LongestPDBWaitSeconds, t.LongestPDB = w.LongestSeconds, w.PDB
			}
		}
	}
	t.Totals = latest.Totals()
	return t
}
