package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
)

// maxDepth limits the nesting of an input. Logs and Kubernetes objects need about ten levels.
const maxDepth = 64

// value is a JSON value with its place in the input. All methods accept a nil value, which is a missing field.
type value struct {
	in     *file
	parent *value
	key    string // the field of parent, or [index]
	offset int    // in the input, in bytes

	text   string // of a string, a number or a boolean
	kind   kind
	fields map[string]*value
	items  []*value
}

type kind byte

const (
	object kind = iota
	array
	text
	number
	boolean
)

// file is one input.
type file struct {
	name     string
	data     []byte
	problems *problems
	// yamlOffset is where the YAML document begins that is being read; -1 in JSON. A value of YAML has no offset.
	yamlOffset int
}

// line returns the line at an offset, counted from 1.
func (f *file) line(offset int) int {
	if f.yamlOffset >= 0 {
		offset = f.yamlOffset
	}
	return 1 + bytes.Count(f.data[:min(offset, len(f.data))], []byte("\n"))
}

// parseValue parses the first JSON value of raw, which begins at offset of the input. It returns the number of bytes that it
// has read.
func (f *file) parseValue(raw []byte, offset int) (v *value, n int, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err = f.parseTokens(d, nil, "", offset, 0)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return v, int(d.InputOffset()), err
}

func (f *file) parseTokens(d *json.Decoder, parent *value, key string, offset, depth int) (*value, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels of nesting", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	v := &value{in: f, parent: parent, key: key, offset: offset + int(d.InputOffset())}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			v.fields = map[string]*value{}
			for d.More() {
				name, err := d.Token()
				if err != nil {
					return nil, err
				}
				field, _ := name.(string)
				child, err := f.parseTokens(d, v, field, offset, depth+1)
				if err != nil {
					return nil, err
				}
				if child != nil {
					v.fields[field] = child
				}
			}
		} else {
			v.kind = array
			for i := 0; d.More(); i++ {
				child, err := f.parseTokens(d, v, "["+strconv.Itoa(i)+"]", offset, depth+1)
				if err != nil {
					return nil, err
				}
				if child != nil {
					v.items = append(v.items, child)
				}
			}
		}
		_, err := d.Token()
		return v, err
	case string:
		v.kind, v.text = text, t
	case json.Number:
		v.kind, v.text = number, t.String()
	case bool:
		v.kind, v.text = boolean, strconv.FormatBool(t)
	default: // null is a missing field
		return nil, nil
	}
	return v, nil
}

// path returns the field path of the value, such as pods[2].endedAt.
func (v *value) path() string {
	if v.parent == nil {
		return v.key
	}
	switch before := v.parent.path(); {
	case before == "", v.key != "" && v.key[0] == '[':
		return before + v.key
	default:
		return before + "." + v.key
	}
}

// get returns a field of an object, or nil.
func (v *value) get(name string) *value {
	if v == nil {
		return nil
	}
	return v.fields[name]
}

func (v *value) has(name string) bool { return v.get(name) != nil }

// string returns the text of a string. Numbers and booleans are accepted.
func (v *value) string() string {
	switch {
	case v == nil:
		return ""
	case v.kind == object, v.kind == array:
		v.refuse("a text")
		return ""
	}
	return v.text
}

// time returns a time, or the zero time if it cannot be read.
func (v *value) time() time.Time {
	if v == nil || v.text == "" && v.kind == text {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, v.text)
	if err != nil || v.kind != text {
		v.refuse("a time in RFC 3339")
		return time.Time{}
	}
	return at.UTC()
}

// number returns a number, or 0 if it cannot be read.
func (v *value) number() float64 {
	if v == nil {
		return 0
	}
	f, err := strconv.ParseFloat(v.text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || v.kind != number && v.kind != text {
		v.refuse("a number")
		return 0
	}
	return f
}

// int returns a whole number that fits into 53 bits.
func (v *value) int() int64 {
	const most = 1 << 53
	return int64(max(-most, min(v.number(), most)))
}

// list returns the items of an array. A single value counts as a list of one.
func (v *value) list() []*value {
	switch {
	case v == nil:
		return nil
	case v.kind == array:
		return v.items
	case v.kind == object:
		return []*value{v}
	}
	v.refuse("a list")
	return nil
}

// refuse records that the value is ignored because it is not what was wanted.
func (v *value) refuse(want string) {
	is := "an object"
	switch v.kind {
	case array:
		is = "a list"
	case text:
		is = strconv.Quote(observe.ClipBytes(v.text, maxQuoted))
	case number, boolean:
		is = v.text
	}
	v.in.problems.add(v.in, v.offset, "field %s: %s is ignored: want %s", v.path(), is, want)
}

// maxQuoted is the length of the longest quoted text in a problem, in bytes.
const maxQuoted = 80

// maxProblems limits the problems of all inputs. The rest is only counted.
const maxProblems = 50

// problems are the parts of the inputs that could not be read.
type problems struct {
	list []string
	more int
}

func (p *problems) add(f *file, offset int, format string, args ...any) {
	if len(p.list) >= maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, fmt.Sprintf("%s:%d: %s", f.name, f.line(offset), cleanText(fmt.Sprintf(format, args...))))
}

// all returns the problems, one a line.
func (p *problems) all() []string {
	if p.more == 0 {
		return p.list
	}
	return append(p.list[:len(p.list):len(p.list)], fmt.Sprintf("and %d more problems", p.more))
}
