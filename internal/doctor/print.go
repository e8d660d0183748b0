package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/slipway-dev/slipway/internal/observe"
)

// maxObjects is how many objects of one finding are printed by default.
const maxObjects = 5

// Print writes the report as text, the most serious finding first. It groups findings that differ only in their
// objects. It also groups findings that differ only in their messages, such as several missing permissions of one
// account. If showAllObjects is true, it lists every object.
func (r *Report) Print(w io.Writer, showAllObjects bool) error {
	p := &printer{w: w}
	for i := range r.Parts {
		p.printLine("found %s: %s, as ServiceAccount %s", r.Parts[i].Part, r.Parts[i].Object, r.Parts[i].ServiceAccount)
	}
	for _, g := range groupFindings(r.Findings) {
		p.printLine("")
		p.printLine("%s  %s", strings.ToUpper(string(g.firstFinding().Severity)), g.firstFinding().Rule)
		p.printObjects(g.objects, showAllObjects)
		p.printMessages(g.messages)
		p.printLine("  -> %s", toSentence(g.firstFinding().Remedy))
	}
	if len(r.Unchecked) > 0 {
		p.printLine("")
		p.printLine("NOT CHECKED")
	}
	for _, u := range r.Unchecked {
		p.printLine("  %s (%s)", u.Rule, u.Reason)
	}
	p.printLine("")
	p.printLine("%s, %s, %s; %d of %d rules checked", observe.FormatCount(r.CountFindings(Problem), "problem"), observe.FormatCount(r.CountFindings(Warning), "warning"),
		observe.FormatCount(r.CountFindings(Note), "note"), len(ListRules())-len(r.Unchecked), len(ListRules()))
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printLine(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) printObjects(g []Finding, all bool) {
	shown := g
	if !all && len(g) > maxObjects {
		shown = g[:maxObjects]
	}
	for i := range shown {
		f := &shown[i]
		if f.Object == (Object{}) {
			continue
		}
		about := f.Object.String()
		if len(f.Owners) > 0 {
			owners := make([]string, len(f.Owners))
			for i, o := range f.Owners {
				owners[i] = o.String()
			}
			about += "  (" + strings.Join(owners, ", ") + ")"
		}
		p.printLine("  %s", about)
	}
	if n := len(g) - len(shown); n > 0 {
		p.printLine("  and %d more (list all with -o wide)", n)
	}
}

func (p *printer) printMessages(all []Finding) {
	if len(all) == 1 {
		p.printLine("  %s", toSentence(all[0].Message))
		return
	}
	for i := range all {
		p.printLine("  - %s", all[i].Message)
	}
}

// block is a group of findings that are printed together. It has one message for several objects, or several messages
// for one object.
type block struct{ objects, messages []Finding }

func (b *block) firstFinding() *Finding { return &b.objects[0] }

// tryAdd adds a finding to the block if the finding differs from the block only in its object or only in its message.
// It reports whether it added the finding.
func (b *block) tryAdd(f Finding) (added bool) {
	first := b.firstFinding()
	switch {
	case f.Rule != first.Rule || f.Severity != first.Severity || f.Remedy != first.Remedy:
		return false
	case f.Message == first.Message && f.Object != Object{} && len(b.messages) == 1:
		b.objects = append(b.objects, f)
	case f.Object == first.Object && slices.Equal(f.Owners, first.Owners) && len(b.objects) == 1:
		b.messages = append(b.messages, f)
	default:
		return false
	}
	return true
}

// groupFindings groups sorted findings into blocks.
func groupFindings(all []Finding) []block {
	var blocks []block
	for i := range all {
		if last := len(blocks) - 1; last < 0 || !blocks[last].tryAdd(all[i]) {
			blocks = append(blocks, block{all[i : i+1 : i+1], all[i : i+1 : i+1]})
		}
	}
	return blocks
}

// toSentence returns a text with a capital letter at its beginning and a full stop at its end. It does not change a
// first word that has a fixed spelling.
func toSentence(s string) string {
	first, _, _ := strings.Cut(s, " ")
	if first == strings.ToLower(first) && first != "kubectl" && first != "minAvailable" && first != "slipway" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return strings.TrimSuffix(s, ".") + "."
}
