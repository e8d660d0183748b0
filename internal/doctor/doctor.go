// Package doctor looks a cluster and an installation over: what is wrong, what will be in the way when a node has to leave,
// and what to do about it. It reads and changes nothing. What it knows is read first, into Facts; the rules are functions
// of those alone, one file for each subject.
//
// A thing that could not be read is never taken for a thing that is well: the rules that need it are listed as unchecked,
// and a right that was missing is a finding of its own.
package doctor

import (
	"cmp"
	"slices"
	"strings"
)

// Severity is how bad a finding is.
type Severity string

const (
	// Problem is something that will fail, or is failing.
	Problem Severity = "problem"
	// Warning is something that will hurt on a bad day, or that may be meant.
	Warning Severity = "warning"
	// Note is something to know.
	Note Severity = "note"
)

// severities from bad to good.
var severities = []Severity{Problem, Warning, Note}

func (s Severity) rank() int { return slices.Index(severities, s) }

// Object is what a finding is about. The zero value is the cluster as a whole.
type Object struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

func (o Object) String() string {
	switch {
	case o == Object{}:
		return "the cluster"
	case o.Namespace != "":
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}

func compareObjects(a, b Object) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Finding is one thing that a rule has found.
type Finding struct {
	// Rule is the name of the rule, which is also the heading of its section in docs/doctor.md.
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Object   Object   `json:"object,omitzero"`
	// Owners are the workloads that the finding is about where the object is not one itself.
	Owners []Object `json:"owners,omitempty"`
	// Message says what is the case and what it means. It does not name the object, so that findings can be put together.
	Message string `json:"message"`
	// Remedy is what to do.
	Remedy string `json:"remedy"`
}

// Unchecked is a rule that could not look.
type Unchecked struct {
	Rule    string `json:"rule"`
	Because string `json:"because"`
}

// Report is everything that was found, the worst first.
type Report struct {
	// Server is the version of the API server, where it said so.
	Server string `json:"server,omitempty"`
	// Parts are those of Slipway that were found in the cluster.
	Parts     []Installed `json:"parts"`
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
}

// Installed is a part of Slipway in the cluster.
type Installed struct {
	Part           PartKind `json:"part"`
	Object         Object   `json:"object"`
	ServiceAccount string   `json:"serviceAccount"`
}

// Count is how many findings of a severity there are.
func (r *Report) Count(s Severity) int {
	n := 0
	for i := range r.Findings {
		if r.Findings[i].Severity == s {
			n++
		}
	}
	return n
}

// Rule is one thing that is looked at.
type Rule struct {
	// Name is unique, and does not change.
	Name string
	// needs is what it has to have been read; without any of it, it is not checked.
	needs []Reading
	// also is what it looks at besides; without any of it, it says what it can, and is listed as not checked in full.
	also  []Reading
	check func(*Facts) []Finding
}

// Rules are all rules, in the order of what they build on.
func Rules() []Rule {
	return []Rule{
		{Name: "caller-rights", check: callerRights},
		{Name: "unreadable", check: unreadable},
		{Name: "installation", needs: []Reading{readDaemonSets, readDeployments}, check: installation},
		{Name: "part-rights", needs: []Reading{readDaemonSets, readDeployments, readAccess}, check: partRights},
		{Name: "part-not-ready", needs: []Reading{readDeployments}, check: partNotReady},
		{Name: "crds", needs: []Reading{readCRDs, readDeployments}, check: definitions},
		{Name: "leader", needs: []Reading{readDeployments, readLeaderLeases}, check: leader},
		{Name: "agent-coverage", needs: []Reading{readNodes, readDaemonSets}, check: agentCoverage},
		{Name: "agent-down", needs: []Reading{readNodes, readPods, readDaemonSets}, check: agentDown},
		{Name: "metadata-endpoint", needs: []Reading{readNodes, readPods, readDaemonSets}, check: metadataEndpoint},
		{Name: "group-not-accepted", needs: []Reading{readNodeGroups}, check: groupNotAccepted},
		{Name: "node-without-group", needs: []Reading{readNodes, readNodeGroups, readDeployments}, check: nodeWithoutGroup},
		{Name: "pdb-never-allows", needs: []Reading{readBudgets, readPods}, check: budgetNeverAllows},
		{Name: "pdb-blocks-now", needs: []Reading{readBudgets}, check: budgetBlocksNow},
		{Name: "pdb-overlap", needs: []Reading{readBudgets, readPods}, check: budgetOverlap},
		{Name: "pdb-matches-nothing", needs: []Reading{readBudgets, readPods}, check: budgetMatchesNothing},
		{Name: "single-replica", needs: []Reading{readDeployments, readStatefulSets}, check: singleReplica},
		{Name: "pod-without-controller", needs: []Reading{readPods}, check: podWithoutController},
		{Name: "other-tool", needs: []Reading{readDeployments, readDaemonSets, readNodes}, also: []Reading{readMarks, readGroups}, check: otherTool},
		{Name: "other-tool-at-work", needs: []Reading{readNodes}, check: otherToolAtWork},
		{Name: "clock-here", needs: []Reading{readClock}, check: clockHere},
		{Name: "clock-node", needs: []Reading{readNodes, readNodeLeases, readClock}, check: clockNode},
	}
}

// Diagnose applies every rule.
func Diagnose(f *Facts) *Report {
	r := &Report{Server: f.Server, Parts: []Installed{}, Findings: []Finding{}, Unchecked: []Unchecked{}}
	for _, p := range f.Parts() {
		r.Parts = append(r.Parts, Installed{p.Kind, p.Object, p.ServiceAccount})
	}
	for _, rule := range Rules() {
		if missing := f.missing(rule.needs); len(missing) > 0 {
			r.Unchecked = append(r.Unchecked, Unchecked{rule.Name, "not read: " + strings.Join(missing, ", ")})
			continue
		}
		if missing := f.missing(rule.also); len(missing) > 0 {
			r.Unchecked = append(r.Unchecked, Unchecked{rule.Name, "in part; not read: " + strings.Join(missing, ", ")})
		}
		for _, found := range rule.check(f) {
			found.Rule = rule.Name
			r.Findings = append(r.Findings, found)
		}
	}
	order := map[string]int{}
	for i, rule := range Rules() {
		order[rule.Name] = i
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(order[a.Rule], order[b.Rule]),
			cmp.Compare(a.Message, b.Message), compareObjects(a.Object, b.Object))
	})
	return r
}
