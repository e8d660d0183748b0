package main

import (
	"fmt"
	"strings"

	"github.com/slipway-dev/slipway/internal/drain"
)

// cordonState says whether a node is cordoned after a failed drain, and why.
type cordonState struct {
	cordoned bool
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
		case p.Removal != drain.NotRemoved:
			terminating = append(terminating, pod)
		case p.UnansweredRequest != drain.NotRemoved:
			unanswered = append(unanswered, pod)
		default:
			waiting = append(waiting, pod)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: interrupted: %d evicted pods gone, %d still terminating, %d not evicted\n", name, gone, len(terminating),
		len(waiting)+len(unanswered))
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
	if node.cordoned {
		fmt.Fprintf(&b, "  the node stays cordoned%s\n  to continue, run the command again; to undo, run kubectl uncordon %s\n", why, name)
	} else {
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
