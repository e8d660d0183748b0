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

// mostFile is the size of the largest configuration file, in bytes.
const mostFile = 1 << 20

// Key is one key at the top of a configuration file.
type Key struct {
	Name string
	// Set takes in the key's value, as JSON. It returns what is wrong with it, and separately the names of keys below it
	// that mean nothing, which a lenient reader only warns of.
	Set func(raw json.RawMessage) (unknown []error, err error)
}

// Strictness says what becomes of keys that mean nothing.
type Strictness bool

const (
	// Strict takes them for errors.
	Strict Strictness = true
	// Lenient takes them for warnings, for files that were written for another program.
	Lenient Strictness = false
)

// Read takes the keys of a YAML document in, and returns everything that is wrong with it. A key that is given twice is an
// error in either case.
func Read(document []byte, keys []Key, s Strictness) (warnings []error, err error) {
	values, err := topLevel(document)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, v := range values {
		i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == v.name })
		if i < 0 {
			warnings = append(warnings, unknownKey(v.name, v.name, names(keys)))
			continue
		}
		unknown, err := keys[i].Set(v.raw)
		warnings = append(warnings, unknown...)
		if err != nil {
			errs = append(errs, below(v.name, err))
		}
	}
	if s == Strict {
		return nil, errors.Join(append(warnings, errs...)...)
	}
	return warnings, errors.Join(errs...)
}

// below puts a key before each of several errors.
func below(key string, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range all.Unwrap() {
			errs = append(errs, below(key, e))
		}
		return errors.Join(errs...)
	}
	if text := err.Error(); strings.HasPrefix(text, "[") {
		return fmt.Errorf("%s%w", key, err)
	}
	return fmt.Errorf("%s: %w", key, err)
}

func names(keys []Key) []string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.Name
	}
	return all
}

// value is a key at the top with its value.
type value struct {
	name string
	raw  json.RawMessage
}

// topLevel reads the keys of a document, in their order. An empty document has none.
func topLevel(document []byte) ([]value, error) {
	if len(document) > mostFile {
		return nil, fmt.Errorf("%d bytes: want %d at most", len(document), mostFile)
	}
	raw, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("not YAML that can be understood: %w", err)
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, errors.New("want keys and their values at the top, such as nodeName: aks-pool-1")
	}
	var values []value
	for name, raw := range m {
		values = append(values, value{name, raw})
	}
	slices.SortFunc(values, func(x, y value) int { return strings.Compare(x.name, y.name) })
	return values, nil
}

// FlagKey is a flag's name as a key: poll-interval is pollInterval.
func FlagKey(flag string) string {
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

// FlagKeys are the keys of all flags in fs. A flag that was given on the command line keeps its value; taken is called with
// the name of each other one that gets its value from a key.
func FlagKeys(fs *pflag.FlagSet, taken func(flag string)) []Key {
	var keys []Key
	fs.VisitAll(func(f *pflag.Flag) {
		keys = append(keys, Key{Name: FlagKey(f.Name), Set: func(raw json.RawMessage) ([]error, error) {
			text, err := scalar(raw)
			if err != nil || f.Changed {
				return nil, err
			}
			if err := f.Value.Set(text); err != nil {
				return nil, fmt.Errorf("%s: want a %s: %w", raw, f.Value.Type(), err)
			}
			taken(f.Name)
			return nil, nil
		}})
	})
	return keys
}

// scalar is a value as a flag is given it.
func scalar(raw json.RawMessage) (string, error) {
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
		return "", errors.New("no value: want one, or the key left out")
	}
	return "", fmt.Errorf("%s: want a single value", abbreviated(raw))
}

// abbreviated is the beginning of a value.
func abbreviated(raw []byte) string {
	if len(raw) > 40 {
		return strings.ToValidUTF8(string(raw[:40]), "") + "…"
	}
	return string(raw)
}

// Section is the key of a list whose elements are decoded into into.
func Section[T any](name string, into *[]T) Key {
	return Key{Name: name, Set: func(raw json.RawMessage) ([]error, error) {
		var elements []json.RawMessage
		if err := json.Unmarshal(raw, &elements); err != nil {
			return nil, fmt.Errorf("%s: want a list", abbreviated(raw))
		}
		var unknown, errs []error
		list := make([]T, len(elements))
		for i, e := range elements {
			unknown = append(unknown, unknownBelow(fmt.Sprintf("%s[%d]", name, i), e, &list[i])...)
			if err := decode(e, &list[i]); err != nil {
				errs = append(errs, fmt.Errorf("[%d]: %w", i, err))
			}
		}
		*into = list
		return unknown, errors.Join(errs...)
	}}
}

// decode is json.Unmarshal with errors in the words of a configuration file.
func decode(raw json.RawMessage, into any) error {
	err := json.Unmarshal(raw, into)
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return err
	}
	if mismatch.Field == "" {
		return fmt.Errorf("%s: want a %s", mismatch.Value, wanted(mismatch.Type))
	}
	var path []string
	for _, segment := range strings.Split(mismatch.Field, ".") {
		if segment != "" && !unicode.IsUpper(rune(segment[0])) { // the name of an embedded struct is no key
			path = append(path, segment)
		}
	}
	return fmt.Errorf("%s: %s: want a %s", strings.Join(path, "."), mismatch.Value, wanted(mismatch.Type))
}

// wanted says what a type is written as.
func wanted(t reflect.Type) string {
	if w, ok := reflect.Zero(t).Interface().(interface{ Want() string }); ok {
		return w.Want()
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

// readConfig reads a configuration file whole.
func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // It was only read.
	raw, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return raw, nil
}

// conditionsKey lists in a file what conditionFlag gives one by one.
const conditionsKey = "conditions"

// keys are those of a file: flags' own, and sections that no flag has.
func (a *Agent) keys(fs *pflag.FlagSet) []Key {
	a.inFile = map[string]string{}
	flags := FlagKeys(a.own(fs), func(flag string) { a.inFile[flag] = FlagKey(flag) })
	conditions := Section(conditionsKey, &a.Conditions)
	set := conditions.Set
	conditions.Set = func(raw json.RawMessage) ([]error, error) {
		a.inFile[conditionFlag] = conditionsKey
		return set(raw)
	}
	return append(flags, conditions, Section("notifications", &a.Notifications))
}

// source is what an option's value was given by: a key of the file, which may have no name, or the flag.
func (a *Agent) source(flag string) string {
	key, ok := a.inFile[flag]
	switch {
	case !ok:
		return "--" + flag
	case a.ConfigFile == "":
		return key
	}
	return fmt.Sprintf("--%s: %s: %s", configFlag, a.ConfigFile, key)
}

// configFlag is no key of a file.
const configFlag = "config"

// conditionFlag is given once for each rule.
const conditionFlag = "condition"

// LoadFile reads the file that --config names, if any. Flags that were given win over the file, and the file over
// defaults. fs are the flags that AddFlags has added to, parsed.
func (a *Agent) LoadFile(fs *pflag.FlagSet) error {
	if a.ConfigFile == "" {
		return nil
	}
	raw, err := readConfig(a.ConfigFile)
	if err != nil {
		return fmt.Errorf("--%s: %w", configFlag, err)
	}
	if _, err := Read(raw, a.keys(fs), Strict); err != nil {
		return fmt.Errorf("--%s: %s: %w", configFlag, a.ConfigFile, err)
	}
	return nil
}

// Receivers reads who is told from an agent's file, and refuses the file as the agent would.
func Receivers(path string) ([]notify.Receiver, error) {
	var a Agent
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	a.AddFlags(fs)
	a.ConfigFile = path
	if err := a.LoadFile(fs); err != nil {
		return nil, err
	}
	return a.Notifications, notify.Validate(a.Notifications)
}

// ReadAgent is the agent that a file describes, read strictly, without any flag.
func ReadAgent(raw []byte) (Agent, error) {
	var a Agent
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.AddFlags(fs)
	_, err := Read(raw, a.keys(fs), Strict)
	return a, err
}

// own are the flags in fs that the agent has added and a file can set; a command has others, such as --help.
func (a *Agent) own(fs *pflag.FlagSet) *pflag.FlagSet {
	added := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(Agent).AddFlags(added)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != configFlag && f.Name != conditionFlag && added.Lookup(f.Name) != nil {
			own.AddFlag(f)
		}
	})
	return own
}
