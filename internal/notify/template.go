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
	// maxTemplateBytes and maxOutputBytes limit a template and its output.
	maxTemplateBytes = 256 << 10
	maxOutputBytes   = 1 << 20
	// maxRepeats limits the functions that produce much from a number.
	maxRepeats = 10_000
)

// errTooLong stops a template that produces too much output.
var errTooLong = fmt.Errorf("the output has more than %d bytes", maxOutputBytes)

// textTemplateFunctionNames returns the names of the functions of text/template itself
// (https://pkg.go.dev/text/template#hdr-Functions).
func textTemplateFunctionNames() []string {
	return []string{
		"and", "call", "html", "index", "slice", "js", "len", "not", "or", "print", "printf", "println", "urlquery",
		"eq", "ge", "gt", "le", "lt", "ne",
	}
}

// newFunctions returns the functions for templates, from sprig (https://masterminds.github.io/sprig/). It removes
// functions that read the agent's environment, use the network, or replace a function of text/template. It limits
// functions that could use up the memory by mistake.
func newFunctions(secret func(string) (string, error)) template.FuncMap {
	f := sprig.TxtFuncMap()
	for _, name := range append(textTemplateFunctionNames(), "env", "expandenv", "getHostByName") {
		delete(f, name)
	}
	f["toJson"], f["mustToJson"], f["toRawJson"], f["mustToRawJson"] = toJSON, toJSON, toJSON, toJSON
	f["repeat"] = func(n int, s string) (string, error) {
		if n < 0 || len(s) > 0 && n > maxOutputBytes/len(s) {
			return "", fmt.Errorf("repeat %d: %w", n, errTooLong)
		}
		return strings.Repeat(s, n), nil
	}
	for _, name := range []string{"indent", "nindent"} {
		inner := f[name].(func(int, string) string)
		f[name] = func(n int, s string) (string, error) {
			if n < 0 || n > maxOutputBytes/(strings.Count(s, "\n")+1) {
				return "", fmt.Errorf("%s %d: %w", name, n, errTooLong)
			}
			return inner(n, s), nil
		}
	}
	for _, name := range []string{"randAlphaNum", "randAlpha", "randAscii", "randNumeric"} {
		inner := f[name].(func(int) string)
		f[name] = func(n int) (string, error) {
			if n < 0 || n > maxRepeats {
				return "", fmt.Errorf("%s %d: want 0 to %d", name, n, maxRepeats)
			}
			return inner(n), nil
		}
	}
	f["until"] = func(n int) ([]int, error) { return limitedUntilStep(0, n, 1) }
	f["untilStep"] = limitedUntilStep
	for _, name := range []string{"seq", "randBytes"} {
		delete(f, name) // unlimited, and not needed by a notification
	}
	f["secret"] = secret
	return f
}

// toJSON encodes a value as JSON. Unlike sprig's function it does not escape <, > and &, and it returns errors.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// limitedUntilStep is sprig's function untilStep with a limit on the number of elements.
func limitedUntilStep(start, stop, step int) ([]int, error) {
	var out []int
	for i := start; step != 0 && (step > 0) == (i < stop) && i != stop; i += step {
		if len(out) == maxRepeats {
			return nil, fmt.Errorf("until %d: want %d numbers at most", stop, maxRepeats)
		}
		out = append(out, i)
	}
	return out, nil
}

// limitedBuffer is a buffer that accepts at most maxOutputBytes.
type limitedBuffer struct{ bytes.Buffer }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxOutputBytes {
		return 0, errTooLong
	}
	return l.Buffer.Write(p)
}

// compileTemplate parses a template. Its errors name the field, the line and the column.
func compileTemplate(field, text string, secret func(string) (string, error)) (*template.Template, error) {
	if len(text) > maxTemplateBytes {
		return nil, fmt.Errorf("%s: %d bytes: want %d at most", field, len(text), maxTemplateBytes)
	}
	return template.New(field).Option("missingkey=zero").Funcs(newFunctions(secret)).Parse(text)
}

// ValidateTemplate returns an error if a template cannot be parsed. field is the name of the template in the error.
func ValidateTemplate(field, text string) error {
	_, err := compileTemplate(field, text, func(string) (string, error) { return "", nil })
	return err
}

// renderTemplate returns the output of a template for a message, or for other data about it.
func renderTemplate(t *template.Template, data any) (string, error) {
	var out limitedBuffer
	if err := t.Execute(&out, data); err == errTooLong { //nolint:errorlint // the writer's own error comes as it is, without a place
		return "", fmt.Errorf("template: %s: %w", t.Name(), err)
	} else if err != nil {
		return "", err
	}
	return out.String(), nil
}

// useMessage returns the message itself as the data of a template.
func useMessage(m Message) any { return m }

// checkSampleOutputs renders a template with a sample message for each moment of the receiver. It returns the errors of
// the template and of checkOutput. A secret file that cannot be read is no error of the template.
func checkSampleOutputs(t *template.Template, r *Receiver, data func(Message) any, checkOutput func(string) error) error {
	now := time.Now()
	var errs []error
	for _, m := range Moments() {
		if !r.wantsMoment(m) {
			continue
		}
		out, err := renderTemplate(t, data(NewSampleMessage(m, now)))
		if err == nil && checkOutput != nil {
			if err = checkOutput(out); err != nil {
				err = fmt.Errorf("template: %s: %w", t.Name(), err)
			}
		}
		if err == nil || isUnreadable(err) {
			continue
		}
		text := err.Error()
		if len(errs) == 0 || errs[0].Error() != text {
			errs = append(errs, errors.New(text))
		}
	}
	return errors.Join(errs...)
}
