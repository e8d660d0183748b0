package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/doctor"
	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/report"
)

// The limits of what a report reads of one kind, in objects for each page and in pages.
const (
	reportPageSize = 500
	maxReportPages = 20
)

// maxReportAgents limits the agents with a log that a report of a time range reads.
const maxReportAgents = 50

// componentPrefix begins the source of the Events of agents and managers.
const componentPrefix = "slipway"

// readPages calls read for each page of a list, and at most for maxReportPages. read returns the number of objects and the
// token of the next page. A page that is missing is a problem of the report.
func (c *clusterReader) readPages(what string, read func(token string) (objects int, next string, err error)) {
	token, count := "", 0
	for range maxReportPages {
		objects, next, err := read(token)
		if meta.IsNoMatchError(err) { // only agents are installed
			return
		}
		if c.recordResult(what, err); err != nil {
			return
		}
		count += objects
		if token = next; token == "" {
			return
		}
	}
	c.in.AddProblem("%s: only the first %d by namespace and name were read: want node/NAME", what, count)
}

func (c *clusterReader) listRetirements(ctx context.Context) []v1alpha1.NodeRetirement {
	var all []v1alpha1.NodeRetirement
	c.readPages("NodeRetirements", func(token string) (int, string, error) {
		var page v1alpha1.NodeRetirementList
		err := c.objects.List(ctx, &page, client.Limit(reportPageSize), client.Continue(token))
		all = append(all, page.Items...)
		return len(page.Items), page.Continue, err
	})
	return all
}

// readRange reads the NodeRetirements, the Events about nodes, NodeRetirements and NodeGroups, and the logs of all managers and
// of agents. It returns an error if nothing can be read.
func (c *clusterReader) readRange(ctx context.Context, r timeRange) error {
	if err := c.addRetirements(c.listRetirements(ctx)...); err != nil {
		return err
	}
	for _, kind := range []string{"Node", "NodeRetirement", "NodeGroup"} {
		if err := c.readEvents(ctx, kind, ""); err != nil {
			return err
		}
	}
	pods, err := doctor.ListOwnPods(ctx, c.objects)
	c.recordResult("pods of Slipway", err)
	if err == nil {
		c.readRangeLogs(ctx, pods, r)
	}
	return c.failureOfAll()
}

// readRangeLogs reads the logs of the managers, and then of agents. Agents come first if Slipway has retired their node or
// reported an Event about it in the time range.
func (c *clusterReader) readRangeLogs(ctx context.Context, pods []doctor.OwnPod, r timeRange) {
	var managers, agents []doctor.OwnPod
	affected := c.findAffectedNodes(r)
	without := maps.Clone(affected)
	for _, p := range pods {
		switch p.Part {
		case doctor.Manager:
			managers = append(managers, p)
		case doctor.Agent:
			agents = append(agents, p)
			delete(without, p.Node)
		}
	}
	if len(managers) == 0 {
		c.in.AddProblem("no pod of the manager was found, so its log is missing (label app.kubernetes.io/name)")
	}
	if names := slices.Sorted(maps.Keys(without)); len(names) > 0 {
		c.in.AddProblem("no pod of the agent was found on %s, so its log is missing: %s", observe.FormatCount(len(names), "node"),
			strings.Join(names, ", "))
	}
	rank := func(p doctor.OwnPod) int {
		if affected[p.Node] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(agents, func(a, b doctor.OwnPod) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a.Node, b.Node)) })
	read := agents[:min(len(agents), maxReportAgents)]
	if left := agents[len(read):]; len(left) > 0 {
		c.in.AddProblem("logs of agents: only those of %d nodes were read, and not those of %s, the first of which is %s: want node/NAME",
			len(read), observe.FormatCount(len(left), "other node"), left[0].Node)
	}
	c.readLogs(ctx, slices.Concat(managers, read), "", r.from)
}

// findAffectedNodes returns the nodes that Slipway has retired, or reported an Event about, in the time range.
func (c *clusterReader) findAffectedNodes(r timeRange) map[string]bool {
	affected := map[string]bool{}
	o := report.Options{From: r.from, To: r.to}
	for _, t := range c.in.Retirements(o) {
		affected[t.Node] = true
	}
	for _, e := range c.in.Events(o) {
		if strings.HasPrefix(e.Component, componentPrefix) {
			affected[e.Node] = true
		}
	}
	delete(affected, "") // an Event about another object
	return affected
}
