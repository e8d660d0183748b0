// Package doctor checks a cluster and Slipway's installation. It finds what is wrong and what will block the removal of
// nodes, and says what to do. It changes nothing. First it reads Facts. The rules are functions of Facts, with one file
// for each subject.
//
// A failed read never counts as a good result. A rule that needs the failed read is reported as unchecked. A missing
// permission is a finding.
package doctor

import (
	"cmp"
	"slices"
	"strings"
)

// Severity is how serious a finding is.
type Severity string

const (
	// Problem means that something fails or will fail.
	Problem Severity = "problem"
	// Warning means that something can cause trouble later, or can be intended.
	Warning Severity = "warning"
	// Note is information.
	Note Severity = "note"
)

// severities are all severities, the worst first.
var severities = []Severity{Problem, Warning, Note}

func (s Severity) sortRank() int { return slices.Index(severities, s) }

// Object names the object of a finding. The zero value means the whole cluster.
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

// Finding is one result of a rule.
type Finding struct {
	// Rule is the name of the rule, and the heading of its section in docs/doctor.md.
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Object   Object   `json:"object,omitzero"`
	// Owners are the affected workloads, if Object is not a workload.
	Owners []Object `json:"owners,omitempty"`
	// Message says what is wrong and what it means. It does not name the object, so that equal findings can be
	// grouped.
	Message string `json:"message"`
	// Remedy says what to do.
	Remedy string `json:"remedy"`
}

// UncheckedRule names a rule that could not be checked, and why.
type UncheckedRule struct {
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
}

// Report holds the result of all rules, the most serious findings first.
type Report struct {
	// Server is the version of the API server, or empty if unknown.
	Server string `json:"server,omitempty"`
	// Parts are the parts of Slipway in the cluster.
	Parts     []InstalledPart `json:"parts"`
	Findings  []Finding       `json:"findings"`
	Unchecked []UncheckedRule `json:"unchecked"`
}

// InstalledPart is one part of Slipway that is installed in the cluster, such as the manager.
type InstalledPart struct {
	Part           PartKind `json:"part"`
	Object         Object   `json:"object"`
	ServiceAccount string   `json:"serviceAccount"`
}

// CountFindings returns the number of findings with the given severity.
func (r *Report) CountFindings(s Severity) int {
	n := 0
	for i := range r.Findings {
		if r.Findings[i].Severity == s {
			n++
		}
	}
	return n
}

// Rule is one check of the doctor, with the readings that it needs.
type Rule struct {
	// Name is unique and must not change.
	Name string
	// requires lists the readings that the rule needs. If one failed, the rule is not checked.
	requires []Reading
	// optionalReadings lists more readings that the rule uses. If one failed, the rule is checked and also listed as
	// partly unchecked.
	optionalReadings []Reading
	check            func(*Facts) []Finding
}

// ListRules returns all rules. A rule comes after the rules on which it depends.
func ListRules() []Rule {
	return []Rule{
		{Name: "caller-rights", check: checkCallerRights},
		{Name: "unreadable", check: checkFailedReadings},
		{Name: "installation", requires: []Reading{daemonSetsReading, deploymentsReading}, check: checkInstallation},
		{Name: "part-rights", requires: []Reading{daemonSetsReading, deploymentsReading, partAccessReading}, check: checkPartRights},
		{Name: "part-not-ready", requires: []Reading{deploymentsReading}, check: checkPartReady},
		{Name: "crds", requires: []Reading{crdsReading, deploymentsReading}, check: checkCRDs},
		{Name: "leader", requires: []Reading{deploymentsReading, leaderLeasesReading}, check: checkLeader},
		{Name: "agent-coverage", requires: []Reading{nodesReading, daemonSetsReading}, check: checkAgentCoverage},
		{Name: "agent-down", requires: []Reading{nodesReading, podsReading, daemonSetsReading}, check: checkAgentRunning},
		{Name: "metadata-endpoint", requires: []Reading{nodesReading, podsReading, daemonSetsReading}, check: checkMetadataEndpoint},
		{Name: "group-not-accepted", requires: []Reading{nodeGroupsReading}, check: checkGroupAccepted},
		{Name: "node-without-group", requires: []Reading{nodesReading, nodeGroupsReading, deploymentsReading}, check: checkNodeHasGroup},
		{Name: "manager-placement", requires: []Reading{nodesReading, podsReading, nodeGroupsReading, deploymentsReading}, check: checkManagerPlacement},
		{Name: "pdb-never-allows", requires: []Reading{pdbsReading, podsReading}, check: checkPDBNeverAllows},
		{Name: "pdb-blocks-now", requires: []Reading{pdbsReading}, check: checkPDBBlocksNow},
		{Name: "pdb-overlap", requires: []Reading{pdbsReading, podsReading}, check: checkPDBOverlap},
		{Name: "pdb-matches-nothing", requires: []Reading{pdbsReading, podsReading}, check: checkPDBMatchesNothing},
		{Name: "single-replica", requires: []Reading{deploymentsReading, statefulSetsReading}, check: checkSingleReplica},
		{Name: "pod-without-controller", requires: []Reading{podsReading}, check: checkPodsWithoutController},
		{Name: "other-tool", requires: []Reading{deploymentsReading, daemonSetsReading, nodesReading}, optionalReadings: []Reading{toolConfigMapsReading, apiGroupsReading}, check: checkOtherTools},
		{Name: "other-tool-at-work", requires: []Reading{nodesReading}, check: checkNodesRemovedByOtherTools},
		{Name: "clock-here", requires: []Reading{clockReading}, check: checkLocalClock},
		{Name: "clock-node", requires: []Reading{nodesReading, nodeLeasesReading, clockReading}, check: checkNodeClocks},
	}
}

// Diagnose applies all rules to the facts and returns the report.
func Diagnose(f *Facts) *Report {
	r := &Report{Server: f.Server, Parts: []InstalledPart{}, Findings: []Finding{}, Unchecked: []UncheckedRule{}}
	for _, p := range f.FindParts() {
		r.Parts = append(r.Parts, InstalledPart{p.Kind, p.Object, p.ServiceAccount})
	}
	for _, rule := range ListRules() {
		if missing := f.listFailedReadings(rule.requires); len(missing) > 0 {
			r.Unchecked = append(r.Unchecked, UncheckedRule{rule.Name, "not read: " + strings.Join(missing, ", ")})
			continue
		}
		if missing := f.listFailedReadings(rule.optionalReadings); len(missing) > 0 {
			r.Unchecked = append(r.Unchecked, UncheckedRule{rule.Name, "partly; not read: " + strings.Join(missing, ", ")})
		}
		for _, found := range rule.check(f) {
			found.Rule = rule.Name
			r.Findings = append(r.Findings, found)
		}
	}
	order := map[string]int{}
	for i, rule := range ListRules() {
		order[rule.Name] = i
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.sortRank(), b.Severity.sortRank()), cmp.Compare(order[a.Rule], order[b.Rule]),
			cmp.Compare(a.Message, b.Message), compareObjects(a.Object, b.Object))
	})
	return r
}
