package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/slipway-dev/slipway/internal/drain"
)

// cordonStatus says whether a node is cordoned.
type cordonStatus int

const (
	notCordoned cordonStatus = iota
	cordoned
	cordonUnknown
)

// cordonState says whether a node is cordoned after a drain, and why.
type cordonState struct {
	status cordonStatus
	// why is the reason, or "" if none has to be named.
	why string
}

// maxListedPods is how many pods the explanation of an interrupt names.
const maxListedPods = 5

// explainInterrupt prints the state of the node and its pods after an interrupt, and how to continue or to undo the drain.
func (d *nodeDrain) explainInterrupt(r drain.Report, node cordonState) {
	name := d.options.Node
	var gone int
	var terminating, unanswered, waiting []string
	for _, p := range r.Pods {
		pod := p.Namespace + "/" + p.Name
		switch {
		case p.End != drain.StillPresent && p.Removal != drain.NotRemoved:
			gone++
		case !p.IsNotRemoved():
		case p.Removal != drain.NotRemoved, !p.TerminatingSince.IsZero(): // evicted, or deleted by another client
			terminating = append(terminating, pod)
		case p.UnansweredRequest != drain.NotRemoved:
			unanswered = append(unanswered, pod)
		default:
			waiting = append(waiting, pod)
		}
	}
	var b strings.Builder
	if len(r.Pods) == 0 {
		fmt.Fprintf(&b, "%s: interrupted: no pod is evicted; the drain had not begun\n", name)
	} else {
		fmt.Fprintf(&b, "%s: interrupted: %d evicted pods gone, %d still terminating, %d not evicted\n", name, gone, len(terminating),
			len(waiting)+len(unanswered))
	}
	if len(terminating) > 0 {
		fmt.Fprintf(&b, "  still terminating, because an accepted eviction cannot be undone: %s\n", formatPodNames(terminating))
	}
	if len(unanswered) > 0 {
		fmt.Fprintf(&b, "  possibly evicted, because the API server did not answer: %s\n", formatPodNames(unanswered))
	}
	why := ""
	if node.why != "" {
		why = ": " + node.why
	}
	const undo = "  to continue, run the command again; to undo, run kubectl uncordon %s\n"
	switch {
	case node.status == cordoned:
		fmt.Fprintf(&b, "  the node stays cordoned%s\n"+undo, why, name)
	case node.status == cordonUnknown && d.cordonedNode != nil:
		fmt.Fprintf(&b, "  the node may be cordoned%s\n"+undo, why, name)
	case node.status == cordonUnknown:
		fmt.Fprintf(&b, "  it is unknown whether the node is cordoned%s\n  to continue, run the command again; nothing else has to be undone\n", why)
	default:
		fmt.Fprintf(&b, "  the node is not cordoned%s\n  to continue, run the command again; nothing else has to be undone\n", why)
	}
	_, _ = d.errOut.Write([]byte(b.String())) // a closed output cannot be reported
}

func formatPodNames(pods []string) string {
	if more := len(pods) - maxListedPods; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(pods[:maxListedPods], ", "), more)
	}
	return strings.Join(pods, ", ")
}

// printCordonedNodes names the nodes that an interrupted drain of several nodes has left cordoned.
func printCordonedNodes(w io.Writer, drains []*nodeDrain) {
	var names []string
	for _, d := range drains {
		if d.left.status == cordoned {
			names = append(names, d.options.Node)
		}
	}
	if len(names) > 0 {
		list := strings.Join(names, " ")
		fmt.Fprintf(w, "still cordoned: %s\n  to undo, run kubectl uncordon %s\n", list, list)
	}
}
