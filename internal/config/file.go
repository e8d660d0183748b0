package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/notify"
)

// maxFileBytes is the largest size of a configuration file.
const maxFileBytes = 1 << 20

// FileKey is one top-level key of a configuration file.
type FileKey struct {
	Name string
	// Set decodes the JSON value of the key. unknown lists unknown keys below it, which a lenient reader only warns
	// about.
	Set func(raw json.RawMessage) (unknown []error, err error)
}

// Strictness says how to treat unknown keys.
type Strictness bool

const (
	// Strict makes unknown keys errors.
	Strict Strictness = true
	// Lenient makes unknown keys warnings, for files of another program.
	Lenient Strictness = false
)

// DecodeKeys decodes the keys of a YAML document and returns all errors. A duplicate key is always an error.
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

// prefixErrors adds a key before each of several errors.
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

// topLevelKey is a top-level key with its value.
type topLevelKey struct {
	name string
	raw  json.RawMessage
}

// parseTopLevel returns the keys of a document, sorted by name. An empty document has none.
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

// ToFileKey converts a flag name to a key: poll-interval becomes pollInterval.
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

// ListFlagKeys returns the keys of all flags in fs. A flag from the command line keeps its value. onSetFromFile is called with
// the name of each flag that gets its value from a key.
func ListFlagKeys(fs *pflag.FlagSet, onSetFromFile func(flag string)) []FileKey {
	var keys []FileKey
	fs.VisitAll(func(f *pflag.Flag) {
		keys = append(keys, FileKey{Name: ToFileKey(f.Name), Set: func(raw json.RawMessage) ([]error, error) {
			text, err := parseScalar(raw)
			if err != nil || f.Changed {
				return nil, err
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

// parseScalar converts a JSON value to the text of a flag.
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

// abbreviateValue returns at most the first 40 bytes of a value.
func abbreviateValue(raw []byte) string {
	if len(raw) > 40 {
		return strings.ToValidUTF8(string(raw[:40]), "") + "…"
	}
	return string(raw)
}

// NewListKey returns the key of a list that is decoded into the given slice.
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

// decodeValue decodes JSON, with errors in the terms of a configuration file.
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

// formatWantedType names a type for error messages.
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

// conditionsKey is the file key for all rules of conditionFlag.
const conditionsKey = "conditions"

// listFileKeys returns the keys of a file: the flags, and the sections without a flag.
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

// describeOptionSource names the source of an option's value: a key of the file, or the flag. The file can have no name.
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

// configFlag cannot be set in a file.
const configFlag = "config"

// conditionFlag is repeated, with one rule each.
const conditionFlag = "condition"

// LoadFile reads the file of --config, if any. Flags override the file, and the file overrides defaults. fs must have
// the flags of RegisterFlags, and must be parsed.
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

// ReadReceivers returns the notification receivers of an agent's file. It returns the same errors as the agent.
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

// DecodeAgentFile decodes a file strictly, without any flag.
func DecodeAgentFile(raw []byte) (Agent, error) {
	var a Agent
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.RegisterFlags(fs)
	_, err := DecodeKeys(raw, a.listFileKeys(fs), Strict)
	return a, err
}

// filterFileFlags returns the flags of the agent that a file can set. A command also has others, such as --help.
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
