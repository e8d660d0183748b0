package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// listed is how many objects of one finding are listed unless all are wanted.
const listed = 5

// Print writes the report for people, the worst first: findings that differ in their objects alone are put together, and so
// are those that differ in their messages alone, such as the rights that one account lacks. all lists every object.
func (r *Report) Print(w io.Writer, all bool) error {
	p := &printer{w: w}
	for i := range r.Parts {
		p.line("found %s: %s, as ServiceAccount %s", r.Parts[i].Part, r.Parts[i].Object, r.Parts[i].ServiceAccount)
	}
	for _, g := range blocksOf(r.Findings) {
		p.line("")
		p.line("%s  %s", strings.ToUpper(string(g.first().Severity)), g.first().Rule)
		p.objects(g.objects, all)
		p.messages(g.messages)
		p.line("  -> %s", sentence(g.first().Remedy))
	}
	if len(r.Unchecked) > 0 {
		p.line("")
		p.line("NOT CHECKED")
	}
	for _, u := range r.Unchecked {
		p.line("  %s (%s)", u.Rule, u.Because)
	}
	p.line("")
	p.line("%s, %s, %s; %d of %d rules checked", numberOf(r.Count(Problem), "problem"), numberOf(r.Count(Warning), "warning"),
		numberOf(r.Count(Note), "note"), len(Rules())-len(r.Unchecked), len(Rules()))
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) objects(g []Finding, all bool) {
	shown := g
	if !all && len(g) > listed {
		shown = g[:listed]
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
		p.line("  %s", about)
	}
	if n := len(g) - len(shown); n > 0 {
		p.line("  and %d more (-o wide lists them)", n)
	}
}

func (p *printer) messages(all []Finding) {
	if len(all) == 1 {
		p.line("  %s", sentence(all[0].Message))
		return
	}
	for i := range all {
		p.line("  - %s", all[i].Message)
	}
}

// block is findings that are printed as one: the same of several objects, or several things of the same object.
type block struct{ objects, messages []Finding }

func (b *block) first() *Finding { return &b.objects[0] }

// takes puts a finding into the block, if it belongs there.
func (b *block) takes(f Finding) bool {
	first := b.first()
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

// blocksOf puts findings together. They are sorted so that those of a block are neighbours.
func blocksOf(all []Finding) []block {
	var blocks []block
	for i := range all {
		if last := len(blocks) - 1; last < 0 || !blocks[last].takes(all[i]) {
			blocks = append(blocks, block{all[i : i+1 : i+1], all[i : i+1 : i+1]})
		}
	}
	return blocks
}

func numberOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// sentence begins with a capital and ends with a full stop, unless it begins with a word that must stay as it is.
func sentence(s string) string {
	first, _, _ := strings.Cut(s, " ")
	if first == strings.ToLower(first) && first != "kubectl" && first != "minAvailable" && first != "slipway" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return strings.TrimSuffix(s, ".") + "."
}
