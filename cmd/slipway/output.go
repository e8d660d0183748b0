package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// outputFlag is the flag that selects the output format of a command. It has the same values and meaning in all commands. A
// command without objects has no names.
type outputFlag string

const (
	outputTable outputFlag = ""
	outputJSON  outputFlag = "json"
	outputYAML  outputFlag = "yaml"
	outputWide  outputFlag = "wide"
	outputName  outputFlag = "name"
)

// outputFormats are the values of the flag. outputFormatsWithoutNames are the values for a command without objects.
var (
	outputFormats             = []string{string(outputJSON), string(outputYAML), string(outputWide), string(outputName)}
	outputFormatsWithoutNames = outputFormats[:3]
)

const (
	outputUsage             = "output format: json, yaml, wide (a table with more columns) or name (only names of objects)"
	outputUsageWithoutNames = "output format: json, yaml or wide (a table with more columns)"
)

func (o *outputFlag) addFlag(fs *pflag.FlagSet) {
	fs.StringVarP((*string)(o), "output", "o", "", outputUsage)
}

func (o *outputFlag) addFlagWithoutNames(fs *pflag.FlagSet) {
	fs.StringVarP((*string)(o), "output", "o", "", outputUsageWithoutNames)
}

func (o outputFlag) validate() error { return o.validateAs(outputFormats) }

func (o outputFlag) validateWithoutNames() error { return o.validateAs(outputFormatsWithoutNames) }

func (o outputFlag) validateAs(formats []string) error {
	if o == outputTable || slices.Contains(formats, string(o)) {
		return nil
	}
	return fmt.Errorf("--output: %q: want %s or nothing", string(o), strings.Join(formats, ", "))
}

// printAnswer prints an answer in the selected format: as JSON, as YAML, as a table that the function table writes, or as
// the names of its objects, one per line. A name has the form of kubectl's -o name, such as node/a.
func (o outputFlag) printAnswer(w io.Writer, answer any, table func(w io.Writer, wide bool) error, names ...string) error {
	return o.print(w, answer, jsonIndent, "", table, names)
}

// printRecord prints one of several answers as printAnswer does, but JSON has one line, and YAML has a document for each.
func (o outputFlag) printRecord(w io.Writer, record any, table func(w io.Writer, wide bool) error, names ...string) error {
	return o.print(w, record, "", "---\n", table, names)
}

func (o outputFlag) print(
	w io.Writer, answer any, indent, yamlStart string, table func(w io.Writer, wide bool) error, names []string,
) error {
	switch o {
	case outputJSON, outputYAML:
		raw, err := encodeJSON(answer, indent)
		if err == nil && o == outputYAML {
			raw, err = yaml.JSONToYAML(raw)
			raw = append([]byte(yamlStart), raw...)
		}
		if err == nil {
			_, err = w.Write(raw)
		}
		return err
	case outputName:
		for _, name := range names {
			if _, err := fmt.Fprintln(w, name); err != nil {
				return err
			}
		}
		return nil
	}
	return table(textWriter{w}, o == outputWide)
}

// jsonIndent is the indentation of JSON for people.
const jsonIndent = "  "

// encodeJSON returns JSON that ends with a newline. It rounds floating-point numbers to three decimals, and escapes all control
// characters. Without an indentation it returns one line.
func encodeJSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return jsonToken.ReplaceAllFunc(b.Bytes(), formatJSONToken), nil
}

// jsonToken matches a string or a number of a JSON text.
var jsonToken = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*`)

// formatJSONToken rounds a floating-point number, and escapes the control characters of a string. The encoder leaves U+007F to
// U+009F, and U+009B starts a control sequence of a terminal.
func formatJSONToken(token []byte) []byte {
	if token[0] == '"' {
		if bytes.IndexFunc(token, unicode.IsControl) < 0 {
			return token
		}
		var escaped []byte
		for _, r := range string(token) {
			if unicode.IsControl(r) {
				escaped = fmt.Appendf(escaped, `\u%04x`, r)
			} else {
				escaped = utf8.AppendRune(escaped, r)
			}
		}
		return escaped
	}
	if !bytes.ContainsAny(token, ".eE") {
		return token
	}
	v, err := strconv.ParseFloat(string(token), 64)
	if err != nil {
		return token
	}
	return strconv.AppendFloat(nil, math.Round(v*1000)/1000, 'f', -1, 64)
}

// resourceByKind maps the kinds of objects in answers to their resources in kubectl's -o name.
var resourceByKind = map[string]string{
	"CustomResourceDefinition": "customresourcedefinition.apiextensions.k8s.io",
	"DaemonSet":                "daemonset.apps",
	"Deployment":               "deployment.apps",
	"Job":                      "job.batch",
	"Lease":                    "lease.coordination.k8s.io",
	"NodeGroup":                "nodegroup.slipway.dev",
	"NodeRetirement":           "noderetirement.slipway.dev",
	"PodDisruptionBudget":      "poddisruptionbudget.policy",
	"ReplicaSet":               "replicaset.apps",
	"StatefulSet":              "statefulset.apps",
}

// formatName returns the name of an object as kubectl's -o name prints it, such as node/a.
func formatName(kind, name string) string {
	resource := resourceByKind[kind]
	if resource == "" {
		resource = strings.ToLower(kind)
	}
	return resource + "/" + name
}
