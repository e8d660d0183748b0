package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/slipway-dev/slipway/internal/drain"
)

// previewDrain prints what a drain would do with each pod. It changes nothing. If the drain would be refused, it
// returns an error with exitRefused.
func (d *nodeDrain) previewDrain(ctx context.Context) error {
	if _, err := d.api.GetNode(ctx, d.options.Node); err != nil {
		return err
	}
	d.startTimeout()
	f, err := drain.Predict(ctx, d.api, d.options, d.flags.dryRun == "server")
	if err != nil {
		return err
	}
	d.rooms.addTo(ctx, f, d.errOut)
	if err := d.printPreview(f); err != nil {
		return err
	}
	if refused := f.PodsRefusingDrain(); len(refused) > 0 {
		return &exitError{exitRefused, fmt.Errorf("node %s: would not be drained because of %d protected pods", f.Node,
			len(refused))}
	}
	return nil
}

func (d *nodeDrain) printPreview(f drain.Prediction) error {
	return d.flags.output.printRecord(d.out, f, func(w io.Writer, wide bool) error { return d.writePreview(w, f, wide) },
		d.nameIf(len(f.PodsRefusingDrain()) == 0)...)
}

// writePreview writes a row for each pod. If wide is true, it has the owner and the pod's own grace period too.
func (d *nodeDrain) writePreview(out io.Writer, f drain.Prediction, wide bool) error {
	for _, problem := range f.Problems {
		fmt.Fprintf(d.errOut, "%s: %s\n", f.Node, problem)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	grouped := slices.ContainsFunc(f.Pods, func(p drain.PodPrediction) bool { return p.Group != "" })
	header := "NAMESPACE\tPOD\tACTION\tWAVE\tGRACE\tRULE"
	if wide {
		header = "NAMESPACE\tPOD\tOWNER\tACTION\tWAVE\tGRACE\tWANTED GRACE\tRULE"
	}
	if grouped {
		header += "\tGROUP"
	}
	header += "\tOBSTACLE"
	if d.options.Surger != nil {
		header += "\tSUCCESSOR FIRST"
	}
	fmt.Fprintln(w, header)
	var asked []string
	for _, p := range f.Pods {
		rule := describeDecision(p.Decision)
		obstacle := string(p.Obstacle.Reason)
		if p.Obstacle.Detail != "" {
			obstacle += ": " + p.Obstacle.Detail
		}
		if wide {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%ds\t%ds\t%s", p.Namespace, p.Name, cmp.Or(p.Owner, "-"), p.Action, p.Wave, p.GivenGraceSeconds,
				p.WantedGraceSeconds, rule)
		} else {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%ds\t%s", p.Namespace, p.Name, p.Action, p.Wave, p.GivenGraceSeconds, rule)
		}
		if grouped {
			fmt.Fprintf(w, "\t%s", cmp.Or(p.Group, "-"))
		}
		fmt.Fprintf(w, "\t%s", obstacle)
		if d.options.Surger != nil {
			fmt.Fprintf(w, "\t%s", p.Surge)
		}
		fmt.Fprintln(w)
		if p.EvictionRequest != nil {
			asked = append(asked, fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, p.EvictionRequest))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range asked {
		fmt.Fprintln(out, line)
	}
	if slices.ContainsFunc(f.Pods, func(p drain.PodPrediction) bool { return p.Surge != nil && p.Surge.Room != nil }) {
		fmt.Fprintln(out, drainRoomNote)
	}
	return nil
}
