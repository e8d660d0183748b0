// Package compat is what the personalities share. A personality, in a folder below, lets Slipway stand in for another
// tool: it reads that tool's inputs, makes Slipway's configuration of them, and lays that tool's outputs over Slipway's
// own. It decides nothing by itself.
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
	Null  bool // there is a key but nothing after it
	// Shape is what a value is that is no scalar, such as "a list"; empty for one that is.
	Shape string
	Line  int
	// Again is the line of a second value under the same key, which does not count; 0 without one.
	Again int

	node *yaml.Node
}

// Int is the whole number that the YAML library makes of the value, as of 1e1 and 1_000. What it makes none of is false.
func (e Entry) Int() (n int, ok bool) {
	return n, e.node != nil && e.node.Decode(&n) == nil
}

// Entries reads a YAML file that is a mapping. The keys of a section, in any letter case, are joined to its name by a dot. Keys
// stay as they are spelled. Merge keys count. A value of another shape is an entry too, as nobody may read its key. What is no
// mapping or cannot be merged is an error that names the line.
func Entries(raw []byte, sections ...string) (map[string]Entry, error) {
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
	r := reader{entries, sections}
	return entries, r.gather("", root)
}

// reader collects the entries of a file.
type reader struct {
	into     map[string]Entry
	sections []string
}

// gather adds the keys of a mapping: first its own, then those that a merge key adds.
func (r reader) gather(prefix string, n *yaml.Node) error {
	own := map[string]bool{}
	var merge, merged *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind == yaml.ScalarNode && name.ShortTag() == "!!merge" {
			if merge != nil {
				return fmt.Errorf("line %d: %s<<: is there already, in line %d: want <<: [*one, *other]", name.Line, prefix, merge.Line)
			}
			merge, merged = name, value
			continue
		}
		own[name.Value] = true
		if err := r.add(prefix, name, value); err != nil {
			return err
		}
	}
	if merge == nil {
		return nil
	}
	// The YAML library merges, so that its rules hold.
	var all map[string]yaml.Node
	if (&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{merge, merged}}).Decode(&all) != nil { // the error is left out, as it may quote a token
		return fmt.Errorf("line %d: %s<<: want an alias of keys with values, such as *name, or a list of such; each with no key twice", merge.Line, prefix)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		if own[key] {
			continue
		}
		if err := r.add(prefix, &yaml.Node{Kind: yaml.ScalarNode, Value: key, Line: value.Line}, &value); err != nil {
			return err
		}
	}
	return nil
}

// add adds one key, or the keys of a section.
func (r reader) add(prefix string, name, value *yaml.Node) error {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if name.Kind == yaml.AliasNode {
		name = &yaml.Node{Kind: name.Alias.Kind, Value: name.Alias.Value, Line: name.Line}
	}
	key := prefix + name.Value
	section := func(s string) bool { return strings.EqualFold(s, key) }
	if value.Kind == yaml.MappingNode && prefix == "" && name.Kind == yaml.ScalarNode && slices.ContainsFunc(r.sections, section) {
		return r.gather(key+".", value)
	}
	if name.Kind != yaml.ScalarNode {
		key = prefix + "?"
	} else if old, twice := r.into[key]; twice {
		old.Again = name.Line
		r.into[key] = old
		return nil
	}
	e := Entry{Line: name.Line, node: value}
	switch value.Kind {
	case yaml.ScalarNode:
		e.Value, e.Null = value.Value, value.Tag == "!!null"
		if value.ShortTag() == "!!binary" {
			_ = value.Decode(&e.Value) // what is no base64 stays as it is
		}
	case yaml.MappingNode:
		e.Shape = "keys with values"
	default:
		e.Shape = "a list"
	}
	r.into[key] = e
	return nil
}

// Bool reads a boolean as YAML spells it. The words that only YAML 1.1 takes for one, such as yes and on, are old.
func Bool(text string) (value, old, ok bool) {
	switch strings.ToLower(text) {
	case "y", "yes", "on":
		return true, true, true
	case "n", "no", "off":
		return false, true, true
	}
	value, err := strconv.ParseBool(text)
	return value, false, err == nil
}

// Closest is the known name that is most like an unknown one, or empty when none is like it.
func Closest(name string, known []string) string {
	return config.Closest(name, slices.Sorted(slices.Values(known)), max(2, len(name)/3))
}

// Unknown is the warning about a key that nothing reads.
func Unknown(key string, line int, known []string) string {
	text := fmt.Sprintf("line %d: %s: is no key that is known, and is passed over", line, key)
	if like := Closest(key, known); like != "" {
		text += "; meant " + like + "?"
	}
	return text
}
