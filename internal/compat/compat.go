// Package compat is what the personalities share. A personality, in a folder below, lets Slipway stand in for another
// tool: it reads that tool's inputs, makes Slipway's configuration of them, and lays that tool's outputs over Slipway's
// own. It decides nothing by itself.
package compat

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-dev/slipway/internal/config"
)

// Entry is one scalar of a configuration file.
type Entry struct {
	Value string
	Null  bool // there is a key but nothing after it
	Line  int
}

// Entries reads a YAML file that is one mapping of scalars and of mappings of scalars, the keys of the latter joined
// by dots. Keys stay as they are spelled. What cannot be that is an error that names the line.
func Entries(raw []byte) (map[string]Entry, error) {
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
	return entries, gather(entries, "", root)
}

func gather(into map[string]Entry, prefix string, n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want keys with values", n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: want a key that is plain text", name.Line)
		}
		key := prefix + name.Value
		if value.Kind == yaml.AliasNode && value.Alias.Kind == yaml.ScalarNode {
			value = value.Alias
		}
		switch value.Kind {
		case yaml.MappingNode:
			if prefix != "" {
				return fmt.Errorf("line %d: %s: is nested too deep: want a value", value.Line, key)
			}
			if err := gather(into, key+".", value); err != nil {
				return err
			}
		case yaml.ScalarNode:
			if old, twice := into[key]; twice {
				return fmt.Errorf("line %d: %s: is there already, in line %d", name.Line, key, old.Line)
			}
			into[key] = Entry{Value: value.Value, Null: value.Tag == "!!null", Line: name.Line}
		default:
			return fmt.Errorf("line %d: %s: is a list or an alias of more than a value: want a value", value.Line, key)
		}
	}
	return nil
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
