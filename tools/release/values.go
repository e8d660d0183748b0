package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// chartValue is a new default for a value of a chart.
type chartValue struct {
	path    string // such as image.agent.digest
	content string
}

// setValues returns the text of a values.yaml with new defaults. It changes only the scalars, so that comments and order
// stay. It returns an error if a value does not exist, because the chart would ignore the new default.
func setValues(text []byte, values []chartValue) ([]byte, error) {
	for _, v := range values {
		node, err := findValue(text, v.path)
		if err != nil {
			return nil, err
		}
		lines := bytes.Split(text, []byte("\n"))
		line := string(lines[node.Line-1])
		before, rest := line[:node.Column-1], line[node.Column-1:]
		old, err := scalarSource(node, rest)
		if err != nil {
			return nil, fmt.Errorf("values.yaml: %s: %w", v.path, err)
		}
		lines[node.Line-1] = []byte(before + strconv.Quote(v.content) + rest[len(old):])
		text = bytes.Join(lines, []byte("\n"))
		if node, err = findValue(text, v.path); err != nil || node.Value != v.content {
			return nil, fmt.Errorf("values.yaml: %s could not be set to %q: write it on a line of its own", v.path, v.content)
		}
	}
	return text, nil
}

// findValue returns the node of a value with a path such as image.registry.
func findValue(text []byte, path string) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	node := &yaml.Node{}
	if len(document.Content) > 0 {
		node = document.Content[0]
	}
	for key := range strings.SplitSeq(path, ".") {
		var child *yaml.Node
		for i := 0; node.Kind == yaml.MappingNode && i < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				child = node.Content[i+1]
			}
		}
		if child == nil {
			return nil, fmt.Errorf("values.yaml: %s does not exist, and the release must set it", path)
		}
		node = child
	}
	return node, nil
}

// scalarSource returns the source text of a scalar, with its quotes. It is a prefix of rest.
func scalarSource(node *yaml.Node, rest string) (string, error) {
	switch {
	case node.Kind == yaml.ScalarNode && node.Style == yaml.DoubleQuotedStyle:
		return strconv.QuotedPrefix(rest)
	case node.Kind == yaml.ScalarNode && node.Style == 0 && node.Value != "" && strings.HasPrefix(rest, node.Value):
		return node.Value, nil
	}
	return "", errors.New("must be a string on one line, plain or in double quotes")
}
