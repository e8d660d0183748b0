package config

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// EncodeFile returns a configuration file with all options that differ from their defaults. LoadFile decodes this file
// to the same options, except for options from the environment.
func (a *Agent) EncodeFile() ([]byte, error) {
	var bound Agent
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	bound.RegisterFlags(fs)
	bound = *a // the flags still point here
	var b strings.Builder
	var err error
	add := func(key string, value any) {
		line, e := yaml.Marshal(map[string]any{key: value})
		b.Write(line)
		if e != nil && err == nil {
			err = fmt.Errorf("%s: %w", key, e)
		}
	}
	fs.SortFlags = false
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != configFlag && f.Name != conditionFlag && f.Value.String() != f.DefValue {
			add(ToFileKey(f.Name), toYAMLValue(f.Value))
		}
	})
	for _, s := range []struct {
		key   string
		empty bool
		value any
	}{
		{"conditions", len(a.Conditions) == 0, a.Conditions},
		{"notifications", len(a.Notifications) == 0, a.Notifications},
	} {
		if !s.empty {
			add(s.key, s.value)
		}
	}
	return []byte(b.String()), err
}

// toYAMLValue returns the value of a flag in the type that YAML needs.
func toYAMLValue(v pflag.Value) any {
	text := v.String()
	switch v.Type() {
	case "bool":
		return text == "true"
	case "int", "int64":
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			return number
		}
	case pairsType:
		values := map[string]string{}
		pairs, _ := csv.NewReader(strings.NewReader(text[1 : len(text)-1])).Read() // pflag has written it, between brackets
		for _, pair := range pairs {
			key, value, _ := strings.Cut(pair, "=")
			values[key] = value
		}
		return values
	}
	return text
}
