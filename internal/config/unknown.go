package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// unknownKey says that a key means nothing, and which one may have been meant.
func unknownKey(path, key string, known []string) error {
	sorted := slices.Sorted(slices.Values(known))
	if best := Closest(key, sorted, len(key)/3+1); best != "" {
		return fmt.Errorf("%s: unknown key: did you mean %s?", path, best)
	}
	return fmt.Errorf("%s: unknown key: want one of %s", path, strings.Join(sorted, ", "))
}

// Closest is the known name that is most like another, in small letters, the first of several; empty when each would take
// more changes than most.
func Closest(name string, known []string, most int) string {
	best, least := "", most+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// longestKey bounds the work of finding a key that is alike.
const longestKey = 64

// distance is how many letters must be changed, added or left out to make y of x (Levenshtein); of a longer key it is
// taken to be all of them.
func distance(x, y string) int {
	if len(x) > longestKey || len(y) > longestKey {
		return max(len(x), len(y))
	}
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(x) {
		before := row[0]
		row[0] = i + 1
		for j := range len(y) {
			change := before
			if x[i] != y[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}

// unknownBelow finds the keys in raw that mean nothing to the type that it is decoded into. Unlike encoding/json it
// tells big letters from small, as Kubernetes does.
func unknownBelow(path string, raw json.RawMessage, into any) []error {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil // decoding says it better
	}
	return unknownIn(path, v, reflect.TypeOf(into))
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func unknownIn(path string, v any, t reflect.Type) []error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return nil // it says itself what it takes
	}
	var errs []error
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				errs = append(errs, unknownIn(fmt.Sprintf("%s[%d]", path, i), e, t.Elem())...)
			}
		}
	case map[string]any:
		errs = unknownInObject(path, v, t)
	}
	return errs
}

func unknownInObject(path string, v map[string]any, t reflect.Type) []error {
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		fields = jsonFields(t)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(v)) {
		below := path + "." + key
		field, ok := fields[key]
		switch {
		case t.Kind() == reflect.Map:
			errs = append(errs, unknownIn(below, v[key], t.Elem())...)
		case ok:
			errs = append(errs, unknownIn(below, v[key], field)...)
		case fields != nil:
			errs = append(errs, unknownKey(below, key, slices.Collect(maps.Keys(fields))))
		}
	}
	return errs
}

// jsonFields are the fields of a struct by the name that encoding/json gives them, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "-" || f.Anonymous && name == "":
		case name == "":
			fields[f.Name] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}
