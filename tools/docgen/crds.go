package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// crd has the fields of a CustomResourceDefinition that the reference page shows.
type crd struct {
	Spec struct {
		Scope string
		Names struct {
			Kind       string
			Plural     string
			ShortNames []string
			Categories []string
		}
		Versions []struct {
			Name                     string
			AdditionalPrinterColumns []struct {
				Name, JSONPath, Type string
				Priority             int
			}
			Subresources map[string]any
			Schema       struct{ OpenAPIV3Schema schema }
		}
	}
}

// schema has the fields of an OpenAPI schema that the reference page shows.
type schema struct {
	Type, Format, Description, Pattern string
	Default                            any
	Enum                               []any
	Minimum, Maximum                   *float64
	MinLength, MaxLength               *int
	MinItems, MaxItems                 *int
	MinProperties, MaxProperties       *int
	IntOrString                        bool `json:"x-kubernetes-int-or-string"`
	Properties                         map[string]schema
	AdditionalProperties               *schema
	Items                              *schema
	Required                           []string
	Validations                        []struct{ Rule, Message string } `json:"x-kubernetes-validations"`
}

func (s *schema) typeName() string {
	switch {
	case s.IntOrString:
		return "integer or string"
	case s.Items != nil:
		return "list of: " + s.Items.typeName()
	case s.AdditionalProperties != nil:
		return "map of: " + s.AdditionalProperties.typeName()
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	}
	return s.Type
}

// constraints returns text for each constraint of a value, such as its allowed values or its limits.
func (s *schema) constraints() []string {
	var all []string
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprint(v))
		}
		all = append(all, "one of "+formatList(values))
	}
	addBounds := func(minimum, maximum *int, of string) {
		if minimum != nil {
			all = append(all, fmt.Sprintf("at least %d %s", *minimum, of))
		}
		if maximum != nil {
			all = append(all, fmt.Sprintf("at most %d %s", *maximum, of))
		}
	}
	if s.Minimum != nil {
		all = append(all, fmt.Sprintf("at least %v", *s.Minimum))
	}
	if s.Maximum != nil {
		all = append(all, fmt.Sprintf("at most %v", *s.Maximum))
	}
	addBounds(s.MinLength, s.MaxLength, "characters")
	addBounds(s.MinItems, s.MaxItems, "items")
	addBounds(s.MinProperties, s.MaxProperties, "keys")
	if s.Pattern != "" {
		all = append(all, "matches `"+s.Pattern+"`")
	}
	for _, v := range s.Validations {
		all = append(all, v.Message+": `"+v.Rule+"`")
	}
	return all
}

type crdRow struct{ path, kind, standard, limits, text string }

// tableRows returns one table row for each field of a schema, including nested fields. Each path begins with prefix.
func (s *schema) tableRows(prefix string) (all []crdRow) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		f := s.Properties[name]
		row := crdRow{path: prefix + name, kind: f.typeName(), text: strings.Join(strings.Fields(f.Description), " ")}
		if f.Default != nil {
			raw, err := yaml.Marshal(f.Default)
			if err == nil {
				row.standard = "`" + strings.TrimSpace(string(raw)) + "`"
			}
		}
		limits := f.constraints()
		if slices.Contains(s.Required, name) {
			limits = append([]string{"required"}, limits...)
		}
		below, inner := &f, row.path
		for {
			element, within := below.Items, "[]"
			if element == nil {
				element, within = below.AdditionalProperties, ".KEY"
			}
			if element == nil {
				break
			}
			below, inner = element, inner+within
			for _, limit := range below.constraints() {
				limits = append(limits, "each "+limit)
			}
			if row.text == "" {
				row.text = strings.Join(strings.Fields(below.Description), " ")
			}
		}
		row.limits = strings.Join(limits, "; ")
		all = append(all, row)
		all = append(all, below.tableRows(inner+".")...)
	}
	return all
}

func newCRDTable(prefix string, s schema) string {
	var b strings.Builder
	for _, v := range s.Validations {
		fmt.Fprintf(&b, "%s: `%s`.\n\n", capitalize(v.Message), v.Rule)
	}
	b.WriteString("| field | type | default | constraints | |\n|---|---|---|---|---|\n")
	for _, row := range s.tableRows(prefix) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", row.path, row.kind, cellEscaper.Replace(row.standard), cellEscaper.Replace(row.limits), cellEscaper.Replace(row.text))
	}
	return b.String()
}

func crdsPage() string {
	files, err := filepath.Glob(repositoryPath("api/crds/*.yaml"))
	if err != nil || len(files) < 2 {
		failf("%v: %v", files, err)
	}
	var b strings.Builder
	b.WriteString("# Custom resources\n\nAll fields of NodeGroups and NodeRetirements, generated from the CustomResourceDefinitions, with the constraints that the API server " +
		"checks. The condition `Accepted`\nof a NodeGroup reports all other checks. See [conditions.md](conditions.md) for the conditions and " +
		"[examples](../examples).\n")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		must(err)
		var c crd
		must(yaml.Unmarshal(raw, &c))
		names := c.Spec.Names
		for _, v := range c.Spec.Versions {
			of := v.Schema.OpenAPIV3Schema
			fmt.Fprintf(&b, "\n## %s\n\n`slipway.dev/%s`, %s-scoped; `%s` for short. %s\n", names.Kind, v.Name, strings.ToLower(c.Spec.Scope),
				strings.Join(names.ShortNames, "`, `"), strings.Join(strings.Fields(of.Description), " "))
			if len(v.Subresources) > 0 {
				fmt.Fprintf(&b, "\nSubresources: %s.\n", formatList(slices.Sorted(maps.Keys(v.Subresources))))
			}
			fmt.Fprintf(&b, "\n### %s: spec\n\n%s", names.Kind, newCRDTable("spec.", of.Properties["spec"]))
			fmt.Fprintf(&b, "\n### %s: status\n\n%s", names.Kind, newCRDTable("status.", of.Properties["status"]))
			fmt.Fprintf(&b, "\n### %s: columns\n\nThe columns of `kubectl get %s`.\n\n| column | from | |\n|---|---|---|\n", names.Kind, names.Plural)
			for _, column := range v.AdditionalPrinterColumns {
				when := ""
				if column.Priority > 0 {
					when = "with `-o wide`"
				}
				fmt.Fprintf(&b, "| %s | `%s` | %s |\n", column.Name, cellEscaper.Replace(column.JSONPath), when)
			}
		}
	}
	return b.String()
}
