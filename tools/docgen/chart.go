package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/slipway-dev/slipway/internal/config"
)

// documentedCharts are the charts with a README that is generated from their values, with the text before the tables.
var documentedCharts = map[string]string{
	"slipway": "# Chart slipway\n\nThis chart installs Slipway: agents that drain nodes before the cloud takes them away, and optionally the " +
		"manager and the\ncloudpool server. By default it installs only the agents. [Install](../../docs/install.md) and " +
		"[GitOps](../../docs/gitops.md) describe its use.\n\n```console\n$ helm install slipway charts/slipway -n slipway " +
		"--create-namespace --set image.registry=registry.example.com/slipway\n```\n\nThe chart refuses unknown values, and values that contradict each other.\n",
	"slipway-crds": "# Chart slipway-crds\n\nThis chart installs the CustomResourceDefinitions of Slipway. Use it with `crds.by: none` of the chart " +
		"[slipway](../slipway/README.md), so that\nthe CRDs have a release of their own. Upgrade it before the chart slipway. " +
		"[GitOps](../../docs/gitops.md) describes its use.\n",
}

// monitoringCopies are files of deploy/monitoring that the chart contains, because a chart cannot read files outside of
// its folder.
var monitoringCopies = []string{"dashboard.json", "slipway.rules.yaml"}

// chartIcon matches the line of Chart.yaml with the icon.
var chartIcon = regexp.MustCompile(`(?m)^icon:.*$`)

// chartFiles returns the generated files of the charts by their paths in the repository.
func chartFiles() map[string]string {
	files := map[string]string{}
	for name, head := range documentedCharts {
		dir := "charts/" + name + "/"
		c := parseChart(dir)
		files[dir+"README.md"] = head + c.tables()
		files[dir+"values.schema.json"] = c.schemaText()
		icon := "icon: data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(readFile("charts/slipway/icon.svg"))
		files[dir+"Chart.yaml"] = chartIcon.ReplaceAllLiteralString(string(readFile(dir+"Chart.yaml")), icon)
	}
	for _, name := range monitoringCopies {
		files["charts/slipway/files/monitoring/"+name] = string(readFile("deploy/monitoring/" + name))
	}
	return files
}

func readFile(path string) []byte {
	raw, err := os.ReadFile(repositoryPath(path))
	must(err)
	return raw
}

// chart is a chart's values with their comments, and its schema.
type chart struct {
	dir            string
	values, schema *yaml.Node
	rows           []valueRow
}

// valueRow is a row of a table in the README. A row without a key begins a section.
type valueRow struct{ key, value, kind, text string }

// schemaLeaves are values that the README describes as a whole, although the schema lists their keys.
var schemaLeaves = []string{"agent.config"}

func parseChart(dir string) *chart {
	c := &chart{dir: dir, values: parseYAML(readFile(dir + "values.yaml")), schema: parseYAML(readFile(dir + "values.schema.json"))}
	var undocumented []string
	setRequired(c.schema, c.values)
	for _, group := range pairs(c.values) {
		c.describe(group.key.Value, group, property(c.schema, group.key.Value), &undocumented)
	}
	if len(undocumented) > 0 {
		failf("%svalues.yaml: these values have no comment: %s", dir, strings.Join(undocumented, ", "))
	}
	c.describeAgentFile()
	return c
}

// describe adds the rows of a value and of its keys, and writes the comments into the schema.
func (c *chart) describe(key string, p pair, schema *yaml.Node, undocumented *[]string) {
	if schema == nil {
		failf("%svalues.schema.json has no property %s", c.dir, key)
	}
	text := commentText(p.key.HeadComment)
	if text == "" {
		*undocumented = append(*undocumented, key)
	}
	setDescription(schema, text)
	fixed := find(schema, "properties") != nil && p.value.Kind == yaml.MappingNode && !slices.Contains(schemaLeaves, key)
	if !fixed {
		c.rows = append(c.rows, valueRow{key, compactJSON(p.value), schemaKind(schema), strings.TrimSuffix(text, ".")})
		return
	}
	if !strings.Contains(key, ".") {
		c.rows = append(c.rows, valueRow{text: "## " + key + "\n\n" + text})
	}
	setRequired(schema, p.value)
	has := map[string]bool{}
	for _, below := range pairs(p.value) {
		has[below.key.Value] = true
		c.describe(key+"."+below.key.Value, below, property(schema, below.key.Value), undocumented)
	}
	for _, below := range pairs(find(schema, "properties")) {
		if !has[below.key.Value] {
			failf("%svalues.yaml has no %s.%s, but the schema has: add it with its default", c.dir, key, below.key.Value)
		}
	}
}

// describeAgentFile describes the keys of agent.config in the schema by the usages of the agent's flags.
func (c *chart) describeAgentFile() {
	agent := property(c.schema, "agent")
	if agent == nil {
		return
	}
	keys := property(agent, "config")
	var a config.Agent
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.RegisterFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if schema := property(keys, config.ToFileKey(f.Name)); schema != nil {
			_, usage := pflag.UnquoteUsage(f)
			setDescription(schema, capitalize(usage))
		}
	})
	setDescription(property(keys, "notifications"), "Receivers of notifications about the node")
	setDescription(property(keys, "conditions"), "Actions for conditions of the node")
	for _, p := range pairs(find(keys, "properties")) {
		if find(p.value, "description") == nil {
			failf("%svalues.schema.json: agent.config.%s is no flag of the agent and has no description", c.dir, p.key.Value)
		}
	}
}

// tables returns the values as Markdown tables, one for each part of the values.
func (c *chart) tables() string {
	const columns = "| value | default | type | |\n|---|---|---|---|\n"
	var b, general strings.Builder
	for _, row := range c.rows {
		to := &b
		if !strings.Contains(row.key, ".") && row.key != "" {
			to = &general
		}
		if row.key == "" {
			fmt.Fprintf(&b, "\n%s\n\n%s", row.text, columns)
			continue
		}
		fmt.Fprintf(to, "| `%s` | `%s` | %s | %s |\n", row.key, cellEscaper.Replace(row.value), row.kind, cellEscaper.Replace(row.text))
	}
	return "\n## General values\n\n" + columns + general.String() + b.String()
}

// schemaText returns the schema as JSON.
func (c *chart) schemaText() string {
	var b bytes.Buffer
	must(json.Indent(&b, []byte(compactJSON(c.schema)), "", "  "))
	return b.String() + "\n"
}

// commentText returns the text of a comment. It leaves out lines that are indented, because they are examples.
func commentText(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		line = strings.TrimPrefix(strings.TrimRight(line, "\n"), "#")
		line = strings.TrimPrefix(strings.TrimPrefix(line, " "), "-- ")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		words = append(words, strings.TrimSpace(line))
	}
	text := strings.TrimSpace(strings.Join(words, " "))
	return strings.TrimSuffix(text, " Fields:")
}

// schemaKind returns the type of a value in words.
func schemaKind(schema *yaml.Node) string {
	if values := find(schema, "enum"); values != nil {
		var all []string
		for _, v := range values.Content {
			all = append(all, "`"+v.Value+"`")
		}
		return strings.Join(all, ", ")
	}
	if choices := find(schema, "anyOf"); choices != nil {
		var all []string
		for _, s := range choices.Content {
			all = append(all, schemaKind(s))
		}
		return strings.Join(all, " or ")
	}
	switch kind := find(schema, "type"); {
	case kind == nil:
		failf("the schema of a value has neither type, enum nor anyOf: %s", compactJSON(schema))
	case kind.Kind == yaml.SequenceNode:
		var all []string
		for _, k := range kind.Content {
			all = append(all, k.Value)
		}
		return strings.Join(all, " or ")
	default:
		return kind.Value
	}
	return ""
}

type pair struct{ key, value *yaml.Node }

func pairs(m *yaml.Node) (all []pair) {
	if m == nil {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		all = append(all, pair{m.Content[i], m.Content[i+1]})
	}
	return all
}

func parseYAML(raw []byte) *yaml.Node {
	var document yaml.Node
	must(yaml.Unmarshal(raw, &document))
	return document.Content[0]
}

// find returns the value of a key, or nil.
func find(m *yaml.Node, key string) *yaml.Node {
	for _, p := range pairs(m) {
		if p.key.Value == key {
			return p.value
		}
	}
	return nil
}

func property(schema *yaml.Node, key string) *yaml.Node { return find(find(schema, "properties"), key) }

// setDescription sets the description of a schema, as its first key.
func setDescription(schema *yaml.Node, text string) {
	text = strings.TrimSuffix(text, ".")
	if d := find(schema, "description"); d != nil {
		d.Value = text
		return
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "description"}
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	schema.Content = append([]*yaml.Node{key, value}, schema.Content...)
}

// setRequired lists the keys of values as required in their schema, as its last key. With the value null, Helm removes a key and
// its default, and a template would then read it as false. A key is not required if its schema allows null.
func setRequired(schema, values *yaml.Node) {
	all := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, p := range pairs(values) {
		if !allowsNull(property(schema, p.key.Value)) {
			all.Content = append(all.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: p.key.Value})
		}
	}
	if required := find(schema, "required"); required != nil {
		*required = *all
		return
	}
	schema.Content = append(schema.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "required"}, all)
}

func allowsNull(schema *yaml.Node) bool {
	kinds := find(schema, "type")
	return kinds != nil && slices.ContainsFunc(kinds.Content, func(k *yaml.Node) bool { return k.Value == "null" })
}

// compactJSON returns a node as JSON, with the order of its keys.
func compactJSON(n *yaml.Node) string {
	var parts []string
	switch n.Kind {
	case yaml.MappingNode:
		for _, p := range pairs(n) {
			parts = append(parts, jsonText(p.key.Value)+":"+compactJSON(p.value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case yaml.SequenceNode:
		for _, item := range n.Content {
			parts = append(parts, compactJSON(item))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	if n.ShortTag() == "!!str" {
		return jsonText(n.Value)
	}
	return n.Value
}

func jsonText(text string) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	must(encoder.Encode(text))
	return strings.TrimSpace(b.String())
}
