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

// podRow is one row of the chart and of the table: one pod, or several pods that went alike.
type podRow struct {
	pods []drain.PodReport
	// pod has the texts of the first pod, and the earliest start and the latest end of all of them.
	pod   drain.PodReport
	waits []interval
}

// groupPods returns at most limit rows for the pods of a drain, in the order of their removal. Pods that stay share a row
// for each rule. If there are more than limit other pods, pods that went
// alike at about the same time share a row.
func groupPods(d *drain.Report, axis axis, limit int) []podRow {
	pods := slices.Clone(d.Pods)
	slices.SortStableFunc(pods, comparePods)
	keys := []func(drain.PodReport) string{podKey}
	for step := axis.span() / 100; step < 4*axis.span(); step *= 2 {
		keys = append(keys, func(p drain.PodReport) string {
			return fmt.Sprint(kindOfPod(p), p.Namespace, p.Owner, waitKey(p), startOfRemoval(p).Sub(axis.start)/step, p.EndedAt.Sub(axis.start)/step)
		})
	}
	keys = append(keys,
		func(p drain.PodReport) string { return fmt.Sprint(kindOfPod(p), p.Namespace, waitKey(p)) },
		func(p drain.PodReport) string { return fmt.Sprint(kindOfPod(p), p.Namespace) }, kindOfPod)
	end := lastTime(d)
	var rows []podRow
	for _, key := range keys {
		rows = mergePods(pods, key, end)
		if len(rows) <= limit {
			return rows
		}
	}
	rest := podRow{}
	for _, r := range rows[limit-1:] {
		rest.pods = append(rest.pods, r.pods...)
	}
	rest.sum(end)
	return append(rows[:limit-1], rest)
}

func comparePods(a, b drain.PodReport) int {
	last := func(t time.Time) time.Time { // unknown times come last
		if t.IsZero() {
			return time.Unix(1<<40, 0)
		}
		return t
	}
	return cmp.Or(
		cmp.Compare(boolToInt(a.Action == podrules.Skip), boolToInt(b.Action == podrules.Skip)),
		last(startOfRemoval(a)).Compare(last(startOfRemoval(b))), last(a.EndedAt).Compare(last(b.EndedAt)),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
	)
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// kindOfPod returns what the rows of all pods of a kind have in common.
func kindOfPod(p drain.PodReport) string {
	return fmt.Sprint(p.Decision.Rule, p.Action, p.Removal, p.End, p.WasCutShort())
}

func waitKey(p drain.PodReport) string {
	var all []string
	for _, d := range p.Delays {
		all = append(all, string(d.Reason)+d.PDB)
	}
	return strings.Join(all, ",")
}

func mergePods(pods []drain.PodReport, key func(drain.PodReport) string, end time.Time) []podRow {
	index := map[string]int{}
	var rows []podRow
	for _, p := range pods {
		k := "stays " + p.Decision.Rule.String()
		if p.Action != podrules.Skip {
			k = key(p)
		}
		i, found := index[k]
		if !found {
			i = len(rows)
			index[k] = i
			rows = append(rows, podRow{})
		}
		rows[i].pods = append(rows[i].pods, p)
	}
	for i := range rows {
		rows[i].sum(end)
	}
	return rows
}

// sum sets the fields of the row from its pods.
func (r *podRow) sum(end time.Time) {
	r.pod = r.pods[0]
	r.waits = waits(r.pod, end)
	earliest := func(to *time.Time, at time.Time) {
		if !at.IsZero() && (to.IsZero() || at.Before(*to)) {
			*to = at
		}
	}
	for _, p := range r.pods[1:] {
		earliest(&r.pod.FirstRequestedAt, p.FirstRequestedAt)
		earliest(&r.pod.RemovalRequestedAt, p.RemovalRequestedAt)
		earliest(&r.pod.TerminatingSince, p.TerminatingSince)
		switch {
		case p.EndedAt.IsZero():
			r.pod.EndedAt = time.Time{}
		case !r.pod.EndedAt.IsZero() && p.EndedAt.After(r.pod.EndedAt):
			r.pod.EndedAt = p.EndedAt
		}
		r.pod.GivenGraceSeconds = min(r.pod.GivenGraceSeconds, p.GivenGraceSeconds)
		for _, w := range waits(p, end) {
			i := slices.IndexFunc(r.waits, func(o interval) bool { return o.delay.Reason == w.delay.Reason && o.delay.PDB == w.delay.PDB })
			if i < 0 {
				r.waits = append(r.waits, w)
				continue
			}
			o := &r.waits[i]
			o.delay.Count += w.delay.Count
			earliest(&o.start, w.start)
			if w.end.After(o.end) {
				o.end = w.end
			}
		}
	}
}

// name returns the row's pod, or the number of its pods with the first of them.
func (r *podRow) name() string {
	first := r.pod.Namespace + "/" + r.pod.Name
	if len(r.pods) == 1 {
		return first
	}
	return fmt.Sprintf("%d pods: %s, …", len(r.pods), first)
}

// label returns the row's name for the chart.
func (r *podRow) label() string {
	switch {
	case r.pod.Action == podrules.Skip:
		return fmt.Sprintf("%s not evicted: %s", observe.FormatCount(len(r.pods), "pod"), r.pod.Decision.Rule)
	case len(r.pods) == 1:
		return r.pod.Namespace + "/" + r.pod.Name
	}
	return fmt.Sprintf("%d × %s/%s", len(r.pods), r.pod.Namespace, cmp.Or(r.pod.Owner, r.pod.Name))
}
