package notify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
)

const (
	// mostTemplate and mostOutput bound a template and what it makes, in bytes.
	mostTemplate = 256 << 10
	mostOutput   = 1 << 20
	// mostRepeats bounds the functions that make much out of a number.
	mostRepeats = 10_000
)

// errTooLong ends a template whose output is too long.
var errTooLong = fmt.Errorf("the output has more than %d bytes", mostOutput)

// builtins are the functions of text/template itself (https://pkg.go.dev/text/template#hdr-Functions).
func builtins() []string {
	return []string{
		"and", "call", "html", "index", "slice", "js", "len", "not", "or", "print", "printf", "println", "urlquery",
		"eq", "ge", "gt", "le", "lt", "ne",
	}
}

// functions are those of sprig (https://masterminds.github.io/sprig/), without the ones that read the agent's
// environment or ask the network, or that would replace one of text/template's, and with bounds on those that would fill the memory by a slip of the keyboard.
func functions(secret func(string) (string, error)) template.FuncMap {
	f := sprig.TxtFuncMap()
	for _, name := range append(builtins(), "env", "expandenv", "getHostByName") {
		delete(f, name)
	}
	f["toJson"], f["mustToJson"], f["toRawJson"], f["mustToRawJson"] = toJSON, toJSON, toJSON, toJSON
	f["repeat"] = func(n int, s string) (string, error) {
		if n < 0 || len(s) > 0 && n > mostOutput/len(s) {
			return "", fmt.Errorf("repeat %d: %w", n, errTooLong)
		}
		return strings.Repeat(s, n), nil
	}
	for _, name := range []string{"indent", "nindent"} {
		inner := f[name].(func(int, string) string)
		f[name] = func(n int, s string) (string, error) {
			if n < 0 || n > mostOutput/(strings.Count(s, "\n")+1) {
				return "", fmt.Errorf("%s %d: %w", name, n, errTooLong)
			}
			return inner(n, s), nil
		}
	}
	for _, name := range []string{"randAlphaNum", "randAlpha", "randAscii", "randNumeric"} {
		inner := f[name].(func(int) string)
		f[name] = func(n int) (string, error) {
			if n < 0 || n > mostRepeats {
				return "", fmt.Errorf("%s %d: want 0 to %d", name, n, mostRepeats)
			}
			return inner(n), nil
		}
	}
	f["until"] = func(n int) ([]int, error) { return count(0, n, 1) }
	f["untilStep"] = count
	for _, name := range []string{"seq", "randBytes"} {
		delete(f, name) // nothing that a notification needs, and unbounded
	}
	f["secret"] = secret
	return f
}

// toJSON writes a value as JSON. Unlike sprig's it keeps <, > and & as they are, and reports what cannot be written.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// count is sprig's untilStep, bounded.
func count(start, stop, step int) ([]int, error) {
	var out []int
	for i := start; step != 0 && (step > 0) == (i < stop) && i != stop; i += step {
		if len(out) == mostRepeats {
			return nil, fmt.Errorf("until %d: want %d numbers at most", stop, mostRepeats)
		}
		out = append(out, i)
	}
	return out, nil
}

// limited is a buffer that takes no more than mostOutput.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > mostOutput {
		return 0, errTooLong
	}
	return l.Buffer.Write(p)
}

// compile parses a template. Its errors name the field, the line and the column.
func compile(field, text string, secret func(string) (string, error)) (*template.Template, error) {
	if len(text) > mostTemplate {
		return nil, fmt.Errorf("%s: %d bytes: want %d at most", field, len(text), mostTemplate)
	}
	return template.New(field).Option("missingkey=zero").Funcs(functions(secret)).Parse(text)
}

// CheckTemplate reports a template that cannot be read; field is what its errors call it.
func CheckTemplate(field, text string) error {
	_, err := compile(field, text, func(string) (string, error) { return "", nil })
	return err
}

// render fills in a template.
func render(t *template.Template, m Message) (string, error) {
	var out limited
	if err := t.Execute(&out, m); err == errTooLong { //nolint:errorlint // the writer's own error comes as it is, without a place
		return "", fmt.Errorf("template: %s: %w", t.Name(), err)
	} else if err != nil {
		return "", err
	}
	return out.String(), nil
}

// check renders a template for a sample of every moment that its receiver is told of.
func check(t *template.Template, r *Receiver, judge func(string) error) error {
	now := time.Now()
	var errs []error
	for _, m := range Moments() {
		if !r.tells(m) {
			continue
		}
		out, err := render(t, Sample(m, now))
		if err == nil && judge != nil {
			if err = judge(out); err != nil {
				err = fmt.Errorf("template: %s: %w", t.Name(), err)
			}
		}
		if err == nil {
			continue
		}
		text := err.Error()
		if len(errs) == 0 || errs[0].Error() != text {
			errs = append(errs, errors.New(text))
		}
	}
	return errors.Join(errs...)
}
