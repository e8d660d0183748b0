package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/surge"
)

// Inputs collects what the inputs of a report contain. It reads leniently: a part that cannot be read is ignored and
// becomes a problem.
type Inputs struct {
	drains      []*drain.Report
	retirements []Retirement
	events      []Event
	log         []logLine
	sources     []Source
	problems    problems
}

// Source says what was found in one input.
type Source struct {
	Name        string `json:"name"`
	Drains      int    `json:"drainReports"`
	Retirements int    `json:"nodeRetirements"`
	Events      int    `json:"events"`
	LogLines    int    `json:"logLines"`
	// Skipped counts what is none of these: lines that are not JSON, and objects of other kinds.
	Skipped int `json:"skipped"`
}

func (s Source) isEmpty() bool { return s.Drains+s.Retirements+s.Events+s.LogLines == 0 }

// Problems returns what could not be read, one problem a line, with the input and its line.
func (in *Inputs) Problems() []string { return in.problems.all() }

// AddProblem adds a problem that the caller has met.
func (in *Inputs) AddProblem(format string, args ...any) {
	in.problems.list = append(in.problems.list, cleanText(fmt.Sprintf(format, args...)))
}

// Read reads one input: drain reports, NodeRetirements and Events as JSON or YAML, and JSON logs of agents and managers, also
// mixed. It returns an error if nothing in the input is useful for a report.
func (in *Inputs) Read(name string, data []byte) error { return in.ReadLogOfNode(name, data, "") }

// ReadLogOfNode reads a log like Read, and leaves out log lines about other nodes. An empty node means all nodes.
func (in *Inputs) ReadLogOfNode(name string, data []byte, node string) error {
	f := &file{name: cleanText(name), data: data, problems: &in.problems, yamlOffset: -1}
	r := inputReader{Inputs: in, file: f, source: Source{Name: name}, onlyNode: node}
	known := len(in.problems.list)
	if isYAML(data) {
		r.readYAML()
	} else {
		r.readJSON()
	}
	in.sources = append(in.sources, r.source)
	if !r.source.isEmpty() {
		return nil
	}
	const want = "want drain reports (slipway drain -o json), NodeRetirements, Events, or logs of Slipway as JSON"
	if all := in.problems.list; len(all) > known {
		return fmt.Errorf("%s: nothing in it can be read: %s; %s", name, all[known], want)
	}
	return fmt.Errorf("%s: contains nothing to report: %s", name, want)
}

// inputReader reads one input.
type inputReader struct {
	*Inputs

	file   *file
	source Source
	// onlyNode, if set, is the node of the log lines that are read.
	onlyNode string
}

// isYAML reports whether the first line with content is a field in YAML.
func isYAML(data []byte) bool {
	if bytes.HasPrefix(data, []byte("{")) || bytes.Contains(data, []byte("\n{")) { // a log after a warning, for example
		return false
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' || bytes.Equal(line, []byte("---")) {
			continue
		}
		name, _, found := bytes.Cut(line, []byte(":"))
		return found && bytes.IndexFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }) < 0
	}
	return false
}

func (r *inputReader) readYAML() {
	offset := 0
	for document := range bytes.SplitSeq(r.file.data, []byte("\n---")) {
		r.file.yamlOffset = offset
		raw, err := yaml.YAMLToJSON(document)
		if err != nil {
			r.problems.add(r.file, 0, "%v", err)
		} else if v, _, err := r.file.parseValue(raw, 0); err != nil {
			r.problems.add(r.file, 0, "%v", err)
		} else if v != nil {
			r.readObject(v, 0)
		}
		offset += len(document) + len("\n---")
	}
}

// readJSON reads JSON values, which may follow each other on one line or on several. Text before a value is skipped, such
// as the prefix of kubectl logs. After a broken value, it continues with the next line that is not inside of the value.
func (r *inputReader) readJSON() {
	data := r.file.data
	for at := 0; at < len(data); {
		c := data[at]
		if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
			at++
			continue
		}
		if c == '{' || c == '[' {
			v, n, err := r.file.parseValue(data[at:], at)
			if err == nil {
				r.readObject(v, 0)
				at += n
				continue
			}
			if c == '{' {
				r.problems.add(r.file, at+n, "JSON is broken: %v", err)
				at = nextOuterLine(data, at)
				continue
			}
		}
		end := lineEnd(data, at)
		r.readPrefixedLine(at, end)
		at = end
	}
}

// readPrefixedLine reads a line of a log with text before its JSON.
func (r *inputReader) readPrefixedLine(at, end int) {
	if i := bytes.IndexByte(r.file.data[at:end], '{'); i >= 0 {
		if v, _, err := r.file.parseValue(r.file.data[at+i:end], at+i); err == nil {
			r.readObject(v, 0)
			return
		}
	}
	r.source.Skipped++
}

// lineEnd returns the offset of the end of the line at an offset.
func lineEnd(data []byte, at int) int {
	if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
		return at + i
	}
	return len(data)
}

// nextOuterLine returns the offset of the next line that is not the inside of a value on several lines.
func nextOuterLine(data []byte, at int) int {
	for {
		at = lineEnd(data, at) + 1
		if at >= len(data) {
			return len(data)
		}
		if !bytes.ContainsRune([]byte(" \t\r\n}]\""), rune(data[at])) {
			return at
		}
	}
}

// readObject reads one value of the input. depth is the number of lists around it.
func (r *inputReader) readObject(v *value, depth int) {
	const maxLists = 3
	if v.kind == array || v.has("items") && strings.HasSuffix(v.get("kind").string(), "List") {
		if depth > maxLists {
			return
		}
		items := v
		if v.kind == object {
			items = v.get("items")
		}
		for _, item := range items.list() {
			r.readObject(item, depth+1)
		}
		return
	}
	switch kind := v.get("kind"); {
	case v.kind != object:
		r.source.Skipped++
	case v.has("msg") && (v.has("time") || v.has("level")):
		r.readLogLine(v)
	case v.has("spec") && kind.string() == "NodeRetirement":
		r.source.Retirements++
		r.retirements = append(r.retirements, readRetirement(v))
	case kind.string() == "Event", v.has("involvedObject"), v.has("regarding"):
		r.source.Events++
		r.events = append(r.events, readEvent(v))
	case v.has("node") && v.has("error"):
		r.problems.add(r.file, v.offset, "the drain report of node %s has only an error: %s", v.get("node").string(), v.get("error").string())
	case v.has("node") && (v.has("outcome") || v.has("startedAt")):
		r.addDrainReport(readDrainReport(v))
	case kind != nil:
		r.source.Skipped++
	default:
		r.source.Skipped++
		r.problems.add(r.file, v.offset, "an object is ignored: it is no drain report, no log line and no Kubernetes object")
	}
}

func (r *inputReader) readLogLine(v *value) {
	r.source.LogLines++
	l := logLine{
		At: v.get("time").time(), Level: strings.ToUpper(v.get("level").string()), Message: v.get("msg").string(), Node: v.get("node").string(),
		value: v,
	}
	if r.onlyNode != "" && l.Node != r.onlyNode {
		return
	}
	if report := v.get("report"); l.Message == drain.LogMessage && report != nil && report.kind == object {
		r.addDrainReport(readDrainReport(report))
	}
	if l.Level != "DEBUG" {
		r.log = append(r.log, l)
	}
}

// addDrainReport adds a drain report, or a part of one. The log has a drain report in parts, and it may also be in
// another input.
func (r *inputReader) addDrainReport(d *drain.Report) {
	r.source.Drains++
	i := slices.IndexFunc(r.drains, func(o *drain.Report) bool { return o.Node == d.Node && o.StartedAt.Equal(d.StartedAt) })
	if i < 0 {
		r.drains = append(r.drains, d)
		return
	}
	known := map[string]bool{}
	for _, p := range r.drains[i].Pods {
		known[podKey(p)] = true
	}
	for _, p := range d.Pods {
		if !known[podKey(p)] {
			r.drains[i].Pods = append(r.drains[i].Pods, p)
		}
	}
}

func podKey(p drain.PodReport) string { return p.Namespace + "/" + p.Name + "/" + p.UID }

func readDrainReport(v *value) *drain.Report {
	d := &drain.Report{
		Node: v.get("node").string(), Outcome: drain.Outcome(v.get("outcome").string()), StartedAt: v.get("startedAt").time(),
		EndedAt: v.get("endedAt").time(), Deadline: v.get("deadline").time(),
	}
	for _, p := range v.get("pods").list() {
		if p.kind != object {
			p.refuse("a pod")
			continue
		}
		d.Pods = append(d.Pods, readPod(p))
	}
	return d
}

func readPod(v *value) drain.PodReport {
	p := drain.PodReport{
		Namespace: v.get("namespace").string(), Name: v.get("name").string(), UID: v.get("uid").string(), Owner: v.get("owner").string(),
		Wave: int(v.get("wave").int()), Group: v.get("group").string(), FirstRequestedAt: v.get("firstRequestedAt").time(),
		Removal: drain.RemovalMethod(v.get("removal").string()), RemovalRequestedAt: v.get("removalRequestedAt").time(),
		TerminatingSince: v.get("terminatingSince").time(), WantedGraceSeconds: v.get("graceWantedSeconds").int(),
		GivenGraceSeconds: v.get("graceGivenSeconds").int(), End: drain.PodEnd(v.get("end").string()), EndedAt: v.get("endedAt").time(),
		UnansweredRequest: drain.RemovalMethod(v.get("unansweredRequest").string()),
	}
	p.Surge = readSurge(v.get("surge"))
	decision := v.get("decision")
	p.Decision.Detail = decision.get("detail").string()
	if rule := decision.get("rule"); rule != nil && p.Decision.Rule.UnmarshalText([]byte(rule.string())) != nil {
		rule.refuse("a rule of docs/drain.md")
	}
	if action := v.get("action"); action != nil && p.Action.UnmarshalText([]byte(action.string())) != nil {
		action.refuse("evict, leave, await or refuse")
		p.Action = podrules.Evict
	}
	for _, d := range v.get("delays").list() {
		p.Delays = append(p.Delays, drain.Delay{
			Reason: drain.ObstacleKind(d.get("reason").string()), PDB: d.get("pdb").string(), Detail: d.get("detail").string(),
			Count: int(d.get("count").int()), StartedAt: d.get("startedAt").time(), Seconds: d.get("durationSeconds").number(),
		})
	}
	return p
}

// readSurge reads what a page shows of a pod's surge. It returns nil if the pod has none.
func readSurge(v *value) *drain.SurgeReport {
	if v == nil {
		return nil
	}
	if v.kind != object {
		v.refuse("a surge")
		return nil
	}
	decision, progress, result := v.get("decision"), v.get("progress"), v.get("result")
	return &drain.SurgeReport{
		Decision: surge.Decision{
			Verdict: surge.Verdict(decision.get("verdict").string()), Reason: decision.get("reason").string(),
			Detail: decision.get("detail").string(), StartupSeconds: decision.get("startupSeconds").number(), LaunchSeconds: decision.get("launchSeconds").number(),
		},
		Progress: surge.Progress{
			Step: surge.Step(progress.get("step").string()), Since: progress.get("since").time(),
			Successor: progress.get("successor").string(), Detail: progress.get("detail").string(),
		},
		Result: surge.Result{
			PodLeft: result.get("podLeft").string() == "true", Successor: result.get("successor").string(), Reason: result.get("reason").string(),
			Detail: result.get("detail").string(), StartedAt: result.get("startedAt").time(), ReadyAt: result.get("readyAt").time(),
			EndedAt: result.get("endedAt").time(),
		},
		Problem: v.get("problem").string(),
	}
}

func readEvent(v *value) Event {
	about := v.get("involvedObject")
	if about == nil {
		about = v.get("regarding")
	}
	e := Event{
		At: firstTime(v.get("series").get("lastObservedTime"), v.get("lastTimestamp"), v.get("deprecatedLastTimestamp"), v.get("eventTime"),
			v.get("firstTimestamp"), v.get("metadata").get("creationTimestamp")),
		Type: v.get("type").string(), Reason: v.get("reason").string(), Message: v.get("message").string() + v.get("note").string(),
		Kind: about.get("kind").string(), Namespace: about.get("namespace").string(), Name: about.get("name").string(),
		Component: v.get("source").get("component").string(), Count: max(v.get("count").int(), v.get("deprecatedCount").int(), v.get("series").get("count").int(), 1),
	}
	if e.Component == "" {
		e.Component = v.get("reportingController").string() + v.get("reportingComponent").string()
	}
	return e
}

func firstTime(candidates ...*value) time.Time {
	for _, v := range candidates {
		if at := v.time(); !at.IsZero() {
			return at
		}
	}
	return time.Time{}
}

// phaseNames are the fields of status.times of a NodeRetirement, in the order of the phases.
var phaseNames = []string{"cordoned", "draining", "releasing", "drained", "nodeDeleted", "instanceDeleted", "finished"}

func readRetirement(v *value) Retirement {
	meta, spec, status := v.get("metadata"), v.get("spec"), v.get("status")
	r := Retirement{
		Name: meta.get("name").string(), Node: spec.get("nodeName").string(), Reason: spec.get("reason").string(),
		RequestedBy: spec.get("requestedBy").string(), CreatedAt: meta.get("creationTimestamp").time(), Phase: status.get("phase").string(),
		Message: status.get("message").string(), Group: status.get("captured").get("group").string(),
		Instance: status.get("captured").get("instanceName").string(), Drain: status.get("drain").get("summary").string(),
	}
	for _, name := range phaseNames {
		if at := status.get("times").get(name).time(); !at.IsZero() {
			r.Phases = append(r.Phases, PhaseTime{name, at})
		}
	}
	for _, c := range status.get("conditions").list() {
		r.Conditions = append(r.Conditions, Condition{
			Type: c.get("type").string(), Status: c.get("status").string(), Reason: c.get("reason").string(), Message: c.get("message").string(),
			At: c.get("lastTransitionTime").time(),
		})
	}
	for _, c := range status.get("reasons").list() {
		r.Reasons = append(r.Reasons, ReasonLine{c.get("code").string(), c.get("object").string(), c.get("message").string()})
	}
	if o := spec.get("overrideProtection"); o != nil {
		r.Override = fmt.Sprintf("protected pods may be evicted until %s, by %s: %s", formatTime(o.get("until").time()), o.get("by").string(), o.get("why").string())
	}
	return r
}
