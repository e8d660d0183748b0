// Package compat contains what the compatibility modes share. A compatibility mode, in a folder below, replaces another
// tool: it reads that tool's inputs, converts them to Slipway's configuration, and adds that tool's outputs to Slipway's
// own. It makes no decisions.
package compat

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-dev/slipway/internal/config"
)

// Entry is one value of a configuration file.
type Entry struct {
	Value string
	Null  bool // the key has no value
	// NonScalarKind describes a value that is not a scalar, for example "a list". It is empty for a scalar.
	NonScalarKind string
	Line          int
	// DuplicateLine is the line of a second value for the same key, which is ignored; 0 without one.
	DuplicateLine int

	node *yaml.Node
}

// Int returns the value as the YAML library converts it to an integer, for example of 1e1 or 1_000. It returns false if the
// library cannot.
func (e Entry) Int() (n int, ok bool) {
	return n, e.node != nil && e.node.Decode(&n) == nil
}

// ReadYAMLEntries reads the entries of a YAML mapping. A key within one of the sections (in any letter case) becomes "section.key".
// Keys keep their spelling. Merge keys are applied. A value that is not a scalar is an entry too, so that unknown keys can
// be reported. It returns an error with the line if the file is not a mapping or a merge fails.
func ReadYAMLEntries(raw []byte, sections ...string) (map[string]Entry, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return nil, err
	}
	entries := map[string]Entry{}
	if len(document.Content) == 0 {
		return entries, nil
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return entries, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want keys with values", root.Line)
	}
	r := entryReader{entries, sections}
	return entries, r.addMapping("", root)
}

// entryReader collects the entries of a file.
type entryReader struct {
	entries  map[string]Entry
	sections []string
}

// addMapping adds the keys of a mapping: first its own, then the keys of a merge key.
func (r entryReader) addMapping(prefix string, n *yaml.Node) error {
	own := map[string]bool{}
	var merge, merged *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind == yaml.ScalarNode && name.ShortTag() == "!!merge" {
			if merge != nil {
				return fmt.Errorf("line %d: %s<<: already set in line %d: want <<: [*one, *other]", name.Line, prefix, merge.Line)
			}
			merge, merged = name, value
			continue
		}
		own[name.Value] = true
		if err := r.addKey(prefix, name, value); err != nil {
			return err
		}
	}
	if merge == nil {
		return nil
	}
	// The YAML library merges, so its rules apply.
	var all map[string]yaml.Node
	if (&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{merge, merged}}).Decode(&all) != nil { // the error is omitted, because it may quote a token
		return fmt.Errorf("line %d: %s<<: want an alias of keys with values, such as *name, or a list of aliases, without duplicate keys", merge.Line, prefix)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		if own[key] {
			continue
		}
		if err := r.addKey(prefix, &yaml.Node{Kind: yaml.ScalarNode, Value: key, Line: value.Line}, &value); err != nil {
			return err
		}
	}
	return nil
}

// addKey adds one key, or the keys of a section.
func (r entryReader) addKey(prefix string, name, value *yaml.Node) error {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if name.Kind == yaml.AliasNode {
		name = &yaml.Node{Kind: name.Alias.Kind, Value: name.Alias.Value, Line: name.Line}
	}
	key := prefix + name.Value
	section := func(s string) bool { return strings.EqualFold(s, key) }
	if value.Kind == yaml.MappingNode && prefix == "" && name.Kind == yaml.ScalarNode && slices.ContainsFunc(r.sections, section) {
		return r.addMapping(key+".", value)
	}
	if name.Kind != yaml.ScalarNode {
		key = prefix + "?"
	} else if old, twice := r.entries[key]; twice {
		old.DuplicateLine = name.Line
		r.entries[key] = old
		return nil
	}
	e := Entry{Line: name.Line, node: value}
	switch value.Kind {
	case yaml.ScalarNode:
		e.Value, e.Null = value.Value, value.Tag == "!!null"
		if value.ShortTag() == "!!binary" {
			_ = value.Decode(&e.Value) // invalid base64 stays unchanged
		}
	case yaml.MappingNode:
		e.NonScalarKind = "keys with values"
	default:
		e.NonScalarKind = "a list"
	}
	r.entries[key] = e
	return nil
}

// ParseBool parses a YAML boolean. old is true for words that are booleans only in YAML 1.1, such as yes and on.
func ParseBool(text string) (value, yaml11Only, ok bool) {
	switch strings.ToLower(text) {
	case "y", "yes", "on":
		return true, true, true
	case "n", "no", "off":
		return false, true, true
	}
	value, err := strconv.ParseBool(text)
	return value, false, err == nil
}

// FindClosestName returns the known name that is most similar to an unknown one, or "" if none is similar.
func FindClosestName(name string, known []string) string {
	return config.FindClosestName(name, slices.Sorted(slices.Values(known)), max(2, len(name)/3))
}

// FormatUnknownKeyWarning returns the warning about an unknown key.
func FormatUnknownKeyWarning(key string, line int, known []string) string {
	text := fmt.Sprintf("line %d: %s: unknown key, ignored", line, key)
	if like := FindClosestName(key, known); like != "" {
		text += "; did you mean " + like + "?"
	}
	return text
}
