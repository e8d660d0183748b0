package config

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/notify"
)

// maxFileBytes is the maximum size of a configuration file in bytes.
const maxFileBytes = 1 << 20

// FileKey is a top-level key of a configuration file, and the function that decodes its value.
type FileKey struct {
	Name string
	// Set decodes the JSON value of the key. unknown lists unknown keys below it, which a lenient reader only warns
	// about.
	Set func(raw json.RawMessage) (unknown []error, err error)
}

// Strictness selects whether an unknown key is an error or a warning.
type Strictness bool

const (
	// Strict makes unknown keys errors.
	Strict Strictness = true
	// Lenient makes unknown keys warnings, for files of another program.
	Lenient Strictness = false
)

// DecodeKeys decodes the given keys of a YAML document and returns all errors. Unknown keys are errors or warnings, as
// s says. A duplicate key is always an error.
func DecodeKeys(document []byte, keys []FileKey, s Strictness) (warnings []error, err error) {
	values, err := parseTopLevel(document)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, v := range values {
		i := slices.IndexFunc(keys, func(k FileKey) bool { return k.Name == v.name })
		if i < 0 {
			warnings = append(warnings, newUnknownKeyError(v.name, v.name, listKeyNames(keys)))
			continue
		}
		unknown, err := keys[i].Set(v.raw)
		warnings = append(warnings, unknown...)
		if err != nil {
			errs = append(errs, prefixErrors(v.name, err))
		}
	}
	if s == Strict {
		return nil, errors.Join(append(warnings, errs...)...)
	}
	return warnings, errors.Join(errs...)
}

// prefixErrors adds a key before the text of each joined error.
func prefixErrors(key string, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range all.Unwrap() {
			errs = append(errs, prefixErrors(key, e))
		}
		return errors.Join(errs...)
	}
	if text := err.Error(); strings.HasPrefix(text, "[") {
		return fmt.Errorf("%s%w", key, err)
	}
	return fmt.Errorf("%s: %w", key, err)
}

func listKeyNames(keys []FileKey) []string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.Name
	}
	return all
}

// topLevelKey is a top-level key of a document with its JSON value.
type topLevelKey struct {
	name string
	raw  json.RawMessage
}

// parseTopLevel returns the top-level keys of a document, sorted by name. It returns none for an empty document.
func parseTopLevel(document []byte) ([]topLevelKey, error) {
	if len(document) > maxFileBytes {
		return nil, fmt.Errorf("%d bytes: want %d at most", len(document), maxFileBytes)
	}
	raw, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("not valid YAML: %w", err)
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, errors.New("want keys and values at the top level, such as nodeName: aks-pool-1")
	}
	var values []topLevelKey
	for name, raw := range m {
		values = append(values, topLevelKey{name, raw})
	}
	slices.SortFunc(values, func(x, y topLevelKey) int { return strings.Compare(x.name, y.name) })
	return values, nil
}

// ToFileKey converts the name of a flag to a key of a configuration file, such as poll-interval to pollInterval.
func ToFileKey(flag string) string {
	var b strings.Builder
	up := false
	for _, r := range flag {
		switch {
		case r == '-':
			up = true
		case up:
			b.WriteRune(unicode.ToUpper(r))
			up = false
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// ListFlagKeys returns a key of a configuration file for each flag in fs. Such a key sets its flag, unless the command
// line has set the flag. After setting a flag, the key calls onSetFromFile with the flag's name.
func ListFlagKeys(fs *pflag.FlagSet, onSetFromFile func(flag string)) []FileKey {
	var keys []FileKey
	fs.VisitAll(func(f *pflag.Flag) {
		keys = append(keys, FileKey{Name: ToFileKey(f.Name), Set: func(raw json.RawMessage) ([]error, error) {
			text, err := parseFlagText(raw, f.Value.Type())
			if err != nil || f.Changed {
				return nil, err
			}
			if text == "" && f.Value.Type() == pairsType {
				return nil, nil // no pairs, which such a flag cannot parse
			}
			if err := f.Value.Set(text); err != nil {
				return nil, fmt.Errorf("%s: want a %s: %w", raw, f.Value.Type(), err)
			}
			onSetFromFile(f.Name)
			return nil, nil
		}})
	})
	return keys
}

// pairsType is the type of a flag that takes pairs such as KEY=VALUE. In a file, they are keys with values below the key of the flag.
const pairsType = "stringToString"

// parseFlagText returns a JSON value as the text of a flag.
func parseFlagText(raw json.RawMessage, flagType string) (string, error) {
	if flagType != pairsType || raw[0] != '{' && raw[0] != '[' {
		return parseScalar(raw)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return "", fmt.Errorf("%s: want keys with values", abbreviateValue(raw))
	}
	var pairs []string
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, err := parseScalar(values[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		pairs = append(pairs, key+"="+value)
	}
	if len(pairs) == 0 || errs != nil {
		return "", errors.Join(errs...)
	}
	return formatPairs(pairs)
}

// formatPairs returns pairs in the CSV format of pflag. Without a second "=" pflag does not parse the text as CSV, so the
// first pair is there twice.
func formatPairs(pairs []string) (string, error) {
	var b strings.Builder
	w := csv.NewWriter(&b)
	err := w.Write(append(pairs, pairs[0]))
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n"), err
}

// parseScalar returns a single JSON value as the text of a flag. It returns an error for null, a list or an object.
func parseScalar(raw json.RawMessage) (string, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return fmt.Sprint(v), nil
	case nil:
		return "", errors.New("no value: set one or remove the key")
	}
	return "", fmt.Errorf("%s: want a single value", abbreviateValue(raw))
}

// abbreviateValue returns the first 40 bytes of a value, for an error message.
func abbreviateValue(raw []byte) string {
	if len(raw) > 40 {
		return strings.ToValidUTF8(string(raw[:40]), "") + "…"
	}
	return string(raw)
}

// NewListKey returns a key for a list. The key decodes the list into the given slice.
func NewListKey[T any](name string, into *[]T) FileKey {
	return FileKey{Name: name, Set: func(raw json.RawMessage) ([]error, error) {
		var elements []json.RawMessage
		if err := json.Unmarshal(raw, &elements); err != nil {
			return nil, fmt.Errorf("%s: want a list", abbreviateValue(raw))
		}
		var unknown, errs []error
		list := make([]T, len(elements))
		for i, e := range elements {
			unknown = append(unknown, findUnknownKeys(fmt.Sprintf("%s[%d]", name, i), e, &list[i])...)
			if err := decodeValue(e, &list[i]); err != nil {
				errs = append(errs, fmt.Errorf("[%d]: %w", i, err))
			}
		}
		*into = list
		return unknown, errors.Join(errs...)
	}}
}

// decodeValue decodes a JSON value. Its errors use the words of a configuration file instead of Go's.
func decodeValue(raw json.RawMessage, into any) error {
	err := json.Unmarshal(raw, into)
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return err
	}
	if mismatch.Field == "" {
		return fmt.Errorf("%s: want a %s", mismatch.Value, formatWantedType(mismatch.Type))
	}
	var path []string
	for _, segment := range strings.Split(mismatch.Field, ".") {
		if segment != "" && !unicode.IsUpper(rune(segment[0])) { // embedded structs have upper-case names and are not keys
			path = append(path, segment)
		}
	}
	return fmt.Errorf("%s: %s: want a %s", strings.Join(path, "."), mismatch.Value, formatWantedType(mismatch.Type))
}

// formatWantedType returns the name of a type for error messages.
func formatWantedType(t reflect.Type) string {
	if w, ok := reflect.Zero(t).Interface().(interface{ WantedFormat() string }); ok {
		return w.WantedFormat()
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map:
		return "block of keys"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "whole number"
	}
	return t.Kind().String()
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // It was only read.
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return raw, nil
}

// conditionsKey is the key of a configuration file that holds all rules of conditionFlag.
const conditionsKey = "conditions"

// listFileKeys returns all keys that an agent's configuration file can have. These are the flags, and the sections that
// have no flag.
func (a *Agent) listFileKeys(fs *pflag.FlagSet) []FileKey {
	a.fileKeysByFlag = map[string]string{}
	flags := ListFlagKeys(a.filterFileFlags(fs), func(flag string) { a.fileKeysByFlag[flag] = ToFileKey(flag) })
	conditions := NewListKey(conditionsKey, &a.Conditions)
	set := conditions.Set
	conditions.Set = func(raw json.RawMessage) ([]error, error) {
		a.fileKeysByFlag[conditionFlag] = conditionsKey
		return set(raw)
	}
	return append(flags, conditions, NewListKey("notifications", &a.Notifications))
}

// describeOptionSource returns where an option's value comes from: a key of the configuration file, or the flag. The
// result omits the name of a file without name.
func (a *Agent) describeOptionSource(flag string) string {
	key, ok := a.fileKeysByFlag[flag]
	switch {
	case !ok:
		return "--" + flag
	case a.ConfigFile == "":
		return key
	}
	return fmt.Sprintf("--%s: %s: %s", configFlag, a.ConfigFile, key)
}

// configFlag is the flag that names the configuration file. The file itself cannot set it.
const configFlag = "config"

// conditionFlag is the flag for condition rules. Each use adds one rule.
const conditionFlag = "condition"

// LoadFile reads the configuration file that --config names, if any. Flags override the file, and the file overrides
// defaults. fs must have the flags of RegisterFlags, and must be parsed.
func (a *Agent) LoadFile(fs *pflag.FlagSet) error {
	if a.ConfigFile == "" {
		return nil
	}
	raw, err := readFile(a.ConfigFile)
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	if _, err := DecodeKeys(raw, a.listFileKeys(fs), Strict); err != nil {
		return fmt.Errorf("--%s: %s: %w", configFlag, a.ConfigFile, err)
	}
	return nil
}

// ReadReceivers returns the notification receivers in an agent's configuration file. It returns the same errors as the
// agent.
func ReadReceivers(path string) ([]notify.Receiver, error) {
	var a Agent
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	a.RegisterFlags(fs)
	a.ConfigFile = path
	if err := a.LoadFile(fs); err != nil {
		return nil, err
	}
	return a.Notifications, notify.ValidateReceivers(a.Notifications)
}

// DecodeAgentFile decodes an agent's configuration file without any flags. An unknown key is an error.
func DecodeAgentFile(raw []byte) (Agent, error) {
	var a Agent
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.RegisterFlags(fs)
	_, err := DecodeKeys(raw, a.listFileKeys(fs), Strict)
	return a, err
}

// filterFileFlags returns the flags in fs that a configuration file can set. It omits flags that do not belong to the
// agent's options, such as --help.
func (a *Agent) filterFileFlags(fs *pflag.FlagSet) *pflag.FlagSet {
	added := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(Agent).RegisterFlags(added)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != configFlag && f.Name != conditionFlag && added.Lookup(f.Name) != nil {
			own.AddFlag(f)
		}
	})
	return own
}
