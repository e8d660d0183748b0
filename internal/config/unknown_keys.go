package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// newUnknownKeyError returns the error for an unknown key. The error suggests the most similar known key, or lists all
// known keys.
func newUnknownKeyError(path, key string, known []string) error {
	sorted := slices.Sorted(slices.Values(known))
	if best := FindClosestName(key, sorted, len(key)/3+1); best != "" {
		return fmt.Errorf("%s: unknown key: did you mean %s?", path, best)
	}
	return fmt.Errorf("%s: unknown key: want one of %s", path, strings.Join(sorted, ", "))
}

// FindClosestName returns the known name that is most similar to name, ignoring letter case. Of several equally similar
// names it returns the first. It returns "" if every name needs more than most changes.
func FindClosestName(name string, known []string, most int) string {
	best, least := "", most+1
	for _, k := range known {
		if d := computeEditDistance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// maxKeyLength is the maximum length of a key for which a similar key is searched. It limits the cost of the search.
const maxKeyLength = 64

// computeEditDistance returns the Levenshtein distance of two texts. If one is longer than maxKeyLength, it returns the
// length of the longer one.
func computeEditDistance(x, y string) int {
	if len(x) > maxKeyLength || len(y) > maxKeyLength {
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

// findUnknownKeys returns an error for each key in raw that the type of into does not have. It is case-sensitive, like
// Kubernetes and unlike encoding/json.
func findUnknownKeys(path string, raw json.RawMessage, into any) []error {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil // decoding returns a better error
	}
	return findUnknownIn(path, v, reflect.TypeOf(into))
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

func findUnknownIn(path string, v any, t reflect.Type) []error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshalerType) {
		return nil // the type validates itself
	}
	var errs []error
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				errs = append(errs, findUnknownIn(fmt.Sprintf("%s[%d]", path, i), e, t.Elem())...)
			}
		}
	case map[string]any:
		errs = findUnknownInObject(path, v, t)
	}
	return errs
}

func findUnknownInObject(path string, v map[string]any, t reflect.Type) []error {
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		fields = fieldsByJSONName(t)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(v)) {
		below := path + "." + key
		field, ok := fields[key]
		switch {
		case t.Kind() == reflect.Map:
			errs = append(errs, findUnknownIn(below, v[key], t.Elem())...)
		case ok:
			errs = append(errs, findUnknownIn(below, v[key], field)...)
		case fields != nil:
			errs = append(errs, newUnknownKeyError(below, key, slices.Collect(maps.Keys(fields))))
		}
	}
	return errs
}

// fieldsByJSONName returns the types of a struct's fields, including embedded fields, by their JSON names.
func fieldsByJSONName(t reflect.Type) map[string]reflect.Type {
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
