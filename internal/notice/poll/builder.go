package poll

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
)

// ForEachElement calls read with each element of a JSON list and the element's path, for messages. It uses one buffer for
// all elements to save memory.
func ForEachElement(path string, list json.RawMessage, read func(path string, raw json.RawMessage)) error {
	dec := json.NewDecoder(bytes.NewReader(list))
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var raw json.RawMessage
	for i := 0; dec.More(); i++ {
		element := fmt.Sprintf("%s[%d]", path, i)
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("%s: %w", element, err)
		}
		read(element, raw)
	}
	return nil
}

// Builder collects the notices and problems of a document. The zero value is empty.
type Builder struct {
	notices    []notice.Notice
	index      map[string]int // index in notices, by ID
	unreadable problems
	warnings   problems
}

// AddUnreadable adds an entry to [notice.Snapshot.Unreadable].
func (b *Builder) AddUnreadable(id string, namesInstance bool, err error) {
	b.unreadable.add(id, namesInstance, err)
}

// AddWarning adds a problem to [notice.Snapshot.Warnings].
func (b *Builder) AddWarning(id string, namesInstance bool, err error) {
	b.warnings.add(id, namesInstance, err)
}

// NewUnusedID returns an ID for a notice without one. The ID contains the notice's type and its position among the notices
// of this type. So the ID stays the same while this position stays the same.
func (b *Builder) NewUnusedID(kind notice.Type) string {
	id := "unnamed-" + strings.ToLower(string(kind))
	for i := 2; ; i++ {
		if _, used := b.index[id]; !used {
			return id
		}
		id = fmt.Sprintf("unnamed-%s-%d", strings.ToLower(string(kind)), i)
	}
}

// AddNotice adds a notice. If several notices have the same ID, the most severe type counts. If their types are equal, the
// last one counts. idPath is the path of the ID, for the warning.
func (b *Builder) AddNotice(idPath string, n notice.Notice) {
	if i, twice := b.index[n.ID]; twice {
		taken := moreSevere(b.notices[i], n)
		b.warnings.add(n.ID, true, fmt.Errorf("%s: %q: is there twice; the %s counts", idPath, n.ID, taken.Type))
		b.notices[i] = taken
		return
	}
	if b.index == nil {
		b.index = map[string]int{}
	}
	b.index[n.ID] = len(b.notices)
	b.notices = append(b.notices, n)
}

// moreSevere returns the notice with the more severe type. It returns b if the types are equal.
func moreSevere(a, b notice.Notice) notice.Notice {
	types := notice.Interruptions()
	if slices.Index(types, a.Type) > slices.Index(types, b.Type) {
		return a
	}
	return b
}

// Build returns the snapshot. If a readable and an unreadable entry have the same ID, the snapshot has the readable one.
// The unreadable one becomes a warning.
func (b *Builder) Build(at time.Time) notice.Snapshot {
	s := notice.Snapshot{At: at, Notices: b.notices}
	for _, p := range b.unreadable.list {
		if _, readable := b.index[p.ID]; readable {
			b.warnings.add(p.ID, p.NamesInstance, p.Err)
		} else {
			s.Unreadable = append(s.Unreadable, p)
		}
	}
	s.Unreadable = append(s.Unreadable, b.unreadable.summarizeOmitted()...)
	s.Warnings = append(s.Warnings, b.warnings.list...)
	s.Warnings = append(s.Warnings, b.warnings.summarizeOmitted()...)
	slices.SortFunc(s.Notices, func(a, b notice.Notice) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// MaxProblems limits each list of problems in a snapshot. So no document can exhaust the agent's memory.
const MaxProblems = 64

// problems is a list of at most MaxProblems problems. Further problems are only counted.
type problems struct {
	list    []notice.Problem
	omitted int
}

func (p *problems) add(id string, namesInstance bool, err error) {
	if len(p.list) == MaxProblems {
		p.omitted++
		return
	}
	p.list = append(p.list, notice.Problem{ID: id, NamesInstance: namesInstance, Err: err})
}

// summarizeOmitted returns one problem that reports how many problems were omitted. This problem has no ID, so any
// notice may be one of them. No missing notice then counts as ended.
func (p *problems) summarizeOmitted() []notice.Problem {
	if p.omitted == 0 {
		return nil
	}
	return []notice.Problem{{Err: fmt.Errorf("and %d more problems", p.omitted)}}
}
