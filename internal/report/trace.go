package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/drain"
	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/observe"
)

// TraceEntry is one decision, or one thing that happened.
type TraceEntry struct {
	At   time.Time `json:"at,omitzero"`
	Node string    `json:"node,omitempty"`
	// From is where the entry comes from: drain report, retirement or log.
	From      string `json:"from"`
	What      string `json:"what"`
	Why       string `json:"why,omitempty"`
	IsWarning bool   `json:"isWarning,omitempty"`
}

// logLine is one line of a log.
type logLine struct {
	At      time.Time
	Level   string
	Message string
	Node    string
	value   *value
}

// maxTracedForced limits the entries about forced deletions of one drain.
const maxTracedForced = 20

func buildTrace(in *Inputs, r *Report, o Options) []TraceEntry {
	all := []TraceEntry{}
	for _, d := range r.Drains {
		all = append(all, traceDrain(d)...)
	}
	for _, t := range r.Retirements {
		all = append(all, traceRetirement(t)...)
	}
	for _, l := range in.log {
		if l.Message != drain.LogMessage && o.includesNode(l.Node) {
			all = append(all, TraceEntry{
				At: l.At, Node: l.Node, From: "log", What: l.Message, Why: l.describe(), IsWarning: l.Level == "WARN" || l.Level == "ERROR",
			})
		}
	}
	all = slices.DeleteFunc(all, func(e TraceEntry) bool { return !o.includesTime(e.At) })
	slices.SortStableFunc(all, func(a, b TraceEntry) int { return a.At.Compare(b.At) })
	return slices.Compact(all)
}

// describe returns the attributes of a log line, without the attributes of every line.
func (l logLine) describe() string {
	var parts []string
	for name, v := range l.value.fields {
		switch name {
		case "time", "level", "msg", "node", "report", "source":
		default:
			parts = append(parts, name+"="+v.summary())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// summary returns a value as short text.
func (v *value) summary() string {
	const most = 200
	var parts []string
	switch v.kind {
	case array:
		for _, item := range v.items[:min(len(v.items), 10)] {
			parts = append(parts, item.summary())
		}
		if more := len(v.items) - len(parts); more > 0 {
			parts = append(parts, fmt.Sprintf("and %d more", more))
		}
		return "[" + strings.Join(parts, "; ") + "]"
	case object:
		for name, field := range v.fields {
			parts = append(parts, name+": "+field.summary())
		}
		slices.Sort(parts)
		return observe.ClipBytes(strings.Join(parts, ", "), most)
	}
	return observe.ClipBytes(v.text, most)
}

// traceDrain returns the decisions that a drain report shows.
func traceDrain(d Drain) []TraceEntry {
	var all []TraceEntry
	add := func(at time.Time, warning bool, why, what string, args ...any) {
		all = append(all, TraceEntry{At: at, Node: d.Node, From: "drain report", What: fmt.Sprintf(what, args...), Why: why, IsWarning: warning})
	}
	why := "There is no deadline, so no PDB is bypassed."
	if !d.Deadline.IsZero() {
		why = "The instance stops at " + formatTime(d.Deadline) + ", " + formatDuration(d.Deadline.Sub(d.StartedAt)) + " later."
	}
	add(d.StartedAt, false, why, "drain started")
	traceDecisions(d, add)
	traceWaits(d, add)
	traceSurges(d, add)
	forced := 0
	for _, p := range d.Pods {
		if p.Removal == drain.ForceDeleted || p.Removal == drain.DeletedOnRequest {
			if forced++; forced <= maxTracedForced {
				why := fmt.Sprintf("It got %d s of the %d s grace period that it wanted.", p.GivenGraceSeconds, p.WantedGraceSeconds)
				switch {
				case p.HasBypassedPDB():
					add(p.RemovalRequestedAt, true, "No time was left to wait for its PDB. "+why, "forced deletion of %s/%s", p.Namespace, p.Name)
				case p.Removal == drain.ForceDeleted:
					add(p.RemovalRequestedAt, true, "No time was left to wait for its eviction. "+why, "forced deletion of %s/%s", p.Namespace, p.Name)
				default:
					add(p.RemovalRequestedAt, true, "The user has disabled eviction. "+why, "deletion of %s/%s", p.Namespace, p.Name)
				}
			}
		}
	}
	if forced > maxTracedForced {
		add(d.EndedAt, true, "", "and %s", observe.FormatCount(forced-maxTracedForced, "more forced deletion"))
	}
	if !d.EndedAt.IsZero() {
		add(d.EndedAt, d.Outcome != drain.Drained, d.Summary(), "drain ended: %s", cmp.Or(string(d.Outcome), "outcome unknown"))
	}
	return all
}

// traceDecisions adds one entry for each rule and action of the drain's pods.
func traceDecisions(d Drain, add func(at time.Time, warning bool, why, what string, args ...any)) {
	type decision struct {
		rule   podrules.Rule
		action podrules.Action
	}
	first, count := map[decision]drain.PodReport{}, map[decision]int{}
	var order []decision
	for _, p := range d.Pods {
		key := decision{p.Decision.Rule, p.Action}
		if count[key]++; count[key] == 1 {
			first[key] = p
			order = append(order, key)
		}
	}
	slices.SortFunc(order, func(a, b decision) int { return cmp.Or(cmp.Compare(a.action, b.action), cmp.Compare(a.rule, b.rule)) })
	for _, key := range order {
		why := "rule " + key.rule.String()
		if detail := first[key].Decision.Detail; detail != "" {
			why += ": " + first[key].Namespace + "/" + first[key].Name + " " + detail
		}
		add(d.StartedAt, key.action == podrules.RefuseDrain, why, "%s: %s", observe.FormatCount(count[key], "pod"), describeAction(key.action))
	}
}

func describeAction(a podrules.Action) string {
	switch a {
	case podrules.Skip:
		return "stays"
	case podrules.AwaitTermination:
		return "waited for"
	case podrules.RefuseDrain:
		return "refuses the drain"
	}
	return "evicted"
}

// traceWaits adds one entry for each obstacle of the drain.
func traceWaits(d Drain, add func(at time.Time, warning bool, why, what string, args ...any)) {
	type obstacle struct {
		reason drain.ObstacleKind
		pdb    string
	}
	type wait struct {
		since  time.Time
		pods   int
		detail string
	}
	all := map[obstacle]*wait{}
	for _, p := range d.Pods {
		for _, delay := range p.Delays {
			key := obstacle{delay.Reason, delay.PDB}
			w := all[key]
			if w == nil {
				w = &wait{since: delay.StartedAt}
				all[key] = w
			}
			if delay.StartedAt.Before(w.since) {
				w.since = delay.StartedAt
			}
			w.pods++
			w.detail = delay.Detail
		}
	}
	for key, w := range all {
		what := describeObstacle(key.reason, key.pdb)
		add(w.since, drain.Delay{Reason: key.reason}.IsPDB(), w.detail, "%s waited: %s", observe.FormatCount(w.pods, "pod"), what)
	}
}

// traceSurges adds one entry for each reason of a decision about successors.
func traceSurges(d Drain, add func(at time.Time, warning bool, why, what string, args ...any)) {
	type key struct{ verdict, reason string }
	count, why, order := map[key]int{}, map[key]string{}, []key{}
	for _, p := range d.Pods {
		if p.Surge == nil {
			continue
		}
		k := key{string(p.Surge.Decision.Verdict), p.Surge.Decision.Reason}
		if count[k]++; count[k] == 1 {
			order = append(order, k)
			why[k] = p.Namespace + "/" + p.Name + ": " + describeSurge(p)
		}
	}
	for _, k := range order {
		what := map[string]string{"needed": "got a successor first", "refused": "got no successor", "not-yet": "waited for their PDB before a successor"}[k.verdict]
		add(d.StartedAt, k.verdict != "needed", why[k], "%s: %s, reason %s", observe.FormatCount(count[k], "pod"), cmp.Or(what, "not decided about"),
			cmp.Or(k.reason, "not given"))
	}
}

// describeObstacle returns what a pod waits for.
func describeObstacle(reason drain.ObstacleKind, pdb string) string {
	switch reason {
	case drain.ObstaclePDB:
		return strings.TrimSpace("blocked by PDB " + pdb)
	case drain.ObstacleMultiplePDBs:
		return "blocked by several PDBs"
	case drain.ObstacleSurge:
		return "its successor starts"
	case drain.ObstacleEarlierWave:
		return "earlier wave"
	case drain.ObstacleAPIServerBusy:
		return "API server busy"
	case drain.ObstacleWebhook:
		return "admission webhook"
	case drain.ObstacleGroup:
		return "other pods of its group"
	case drain.ObstacleResponder:
		return "eviction responder"
	}
	return cmp.Or(string(reason), "unknown obstacle")
}

func traceRetirement(t Retirement) []TraceEntry {
	var all []TraceEntry
	add := func(at time.Time, warning bool, what, why string) {
		all = append(all, TraceEntry{At: at, Node: t.Node, From: "retirement", What: what, Why: why, IsWarning: warning})
	}
	why := "reason " + cmp.Or(t.Reason, "not given")
	if t.RequestedBy != "" {
		why += ", requested by " + t.RequestedBy
	}
	add(t.CreatedAt, false, "NodeRetirement "+t.Name+" created", why)
	if t.Override != "" {
		add(t.CreatedAt, true, "override", t.Override)
	}
	for _, p := range t.Phases {
		add(p.At, false, "phase "+p.Phase, "")
	}
	for _, c := range t.Conditions {
		add(c.At, c.Status == "False" && c.Type == "Succeeded" || c.Status == "True" && c.Type == "Blocked",
			"condition "+c.Type+" is "+c.Status, strings.TrimPrefix(c.Reason+": "+c.Message, ": "))
	}
	return all
}

// logTolerance is the longest time between the start of a drain and its log line.
const logTolerance = 5 * time.Second

// drainsOfLog returns the drains that only the log lines of an agent show. Their drain report is missing if the agent
// ended before it, or is an older version. After a passed deadline, an agent repeats the drain for the pods that are left,
// and logs a drain report only if their state has changed. Such a repeated drain is not returned.
func drainsOfLog(in *Inputs) []*drain.Report {
	var all []*drain.Report
	open := map[string]*drain.Report{} // by node
	passedAt := map[string]time.Time{} // when the latest drain of a node ended at its deadline
	for _, l := range in.log {
		d := open[l.Node]
		switch l.Message {
		case "draining", "keeping the drained node empty":
			open[l.Node] = nil
			known := slices.ContainsFunc(in.drains, func(r *drain.Report) bool {
				return r.Node == l.Node && r.StartedAt.Sub(l.At).Abs() < logTolerance
			})
			passed, hasPassed := passedAt[l.Node]
			repeated := hasPassed && l.At.Sub(passed).Abs() < logTolerance
			if l.Message == "draining" && !known && !repeated && l.Node != "" {
				d = &drain.Report{Node: l.Node, StartedAt: l.At, Deadline: l.value.get("deadline").time()}
				open[l.Node] = d
				all = append(all, d)
			}
		case "drain is blocked":
			if d != nil {
				for _, b := range l.value.get("blocked").list() {
					addLoggedDelay(d, b)
				}
			}
		case "pod was killed, force-deleted or left behind":
			if d != nil {
				addLoggedPod(d, l.value)
			}
		case "drained", "not drained", "drain stopped":
			outcome := loggedOutcome(l)
			if outcome == drain.DeadlinePassed {
				passedAt[l.Node] = l.At
			}
			if d != nil && d.EndedAt.IsZero() { // a drained node is kept empty until the drain is stopped
				d.EndedAt, d.Outcome = l.At, outcome
			}
		}
	}
	for _, d := range all {
		for i := range d.Pods {
			if d.Outcome == drain.Drained && d.Pods[i].End == drain.StillPresent {
				d.Pods[i].End = drain.Vanished // it is unknown how its containers ended
			}
		}
	}
	return all
}

// loggedOutcome returns the outcome in the summary of a log line, such as "node-7: drained after 3.0s".
func loggedOutcome(l logLine) drain.Outcome {
	for _, o := range drain.Outcomes() {
		if strings.HasPrefix(l.value.get("summary").string(), l.Node+": "+string(o)+" after ") {
			return o
		}
	}
	return map[string]drain.Outcome{"drained": drain.Drained, "drain stopped": drain.Cancelled}[l.Message]
}

func findOrAddPod(d *drain.Report, namespace, name string) *drain.PodReport {
	i := slices.IndexFunc(d.Pods, func(p drain.PodReport) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		i = len(d.Pods)
		d.Pods = append(d.Pods, drain.PodReport{Namespace: namespace, Name: name})
	}
	return &d.Pods[i]
}

func addLoggedDelay(d *drain.Report, b *value) {
	p := findOrAddPod(d, b.get("namespace").string(), b.get("pod").string())
	reason := drain.ObstacleKind(b.get("reason").string())
	if !slices.ContainsFunc(p.Delays, func(w drain.Delay) bool { return w.Reason == reason }) {
		p.Delays = append(p.Delays, drain.Delay{
			Reason: reason, PDB: b.get("pdb").string(), Detail: b.get("detail").string(), StartedAt: b.get("since").time(),
		})
	}
}

func addLoggedPod(d *drain.Report, v *value) {
	p := findOrAddPod(d, v.get("namespace").string(), v.get("pod").string())
	p.Owner, p.Removal, p.End = v.get("owner").string(), drain.RemovalMethod(v.get("asked").string()), drain.PodEnd(v.get("end").string())
	p.WantedGraceSeconds, p.GivenGraceSeconds = v.get("graceWanted").int(), v.get("graceGiven").int()
}
