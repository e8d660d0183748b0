// Package mechanic is the compatibility mode of mechanic (github.com/amargherio/mechanic). It converts the tool's
// configuration file and environment to Slipway's configuration. In addition to Slipway's outputs it provides the tool's
// label and Kubernetes Events.
package mechanic

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-dev/slipway/internal/compat"
)

// Tool is the name of the replaced tool.
const Tool = "mechanic"

// DefaultFile is the tool's default configuration file.
const DefaultFile = "/etc/mechanic/mechanic.yaml"

const (
	envPrefix        = "MECHANIC_"
	nodeNameVariable = envPrefix + "NODE_NAME"
)

// maxPollingSeconds is the maximum polling interval in seconds. A node condition must be true for this interval before
// the node is drained.
const maxPollingSeconds = 24 * 60 * 60

// Config holds the tool's configuration as the user wrote it.
type Config struct {
	NodeName string

	// Event types that cause a drain.
	Freeze, Reboot, Redeploy, Preempt, Terminate, LiveMigration bool

	// Node conditions that cause a drain.
	KubeletProblem, KernelDeadlock, FrequentKubeletRestarts, FrequentContainerdRestarts, FSCorrupt bool

	PollingInterval           int // seconds
	RuntimeEnv                string
	EnableTracing             bool
	BypassNodeProblemDetector bool

	// Warnings report ignored and changed settings.
	Warnings []string
}

// Default returns the tool's configuration without a file and without variables.
func Default() Config {
	return Config{
		Redeploy: true, Preempt: true, Terminate: true, LiveMigration: true,
		PollingInterval: 30, RuntimeEnv: "prod", EnableTracing: true,
	}
}

// setting describes one of the tool's settings by all its keys. The first key is the one in the tool's code
// (scheduledEvents, optionalConditions). The ConfigMap that the tool ships has vmEvents and optional. Releases before
// 2025.4 had keys without a section.
type setting struct {
	keys  []string
	value func(*Config) any // a pointer to bool, int or string
}

var settings = []setting{
	newEventSetting("freeze", "DRAIN_ON_FREEZE", func(c *Config) any { return &c.Freeze }),
	newEventSetting("reboot", "DRAIN_ON_REBOOT", func(c *Config) any { return &c.Reboot }),
	newEventSetting("redeploy", "DRAIN_ON_REDEPLOY", func(c *Config) any { return &c.Redeploy }),
	newEventSetting("preempt", "DRAIN_ON_PREEMPT", func(c *Config) any { return &c.Preempt }),
	newEventSetting("terminate", "DRAIN_ON_TERMINATE", func(c *Config) any { return &c.Terminate }),
	newEventSetting("liveMigration", "", func(c *Config) any { return &c.LiveMigration }),
	newConditionSetting("kubeletProblem", func(c *Config) any { return &c.KubeletProblem }),
	newConditionSetting("kernelDeadlock", func(c *Config) any { return &c.KernelDeadlock }),
	newConditionSetting("frequentKubeletRestarts", func(c *Config) any { return &c.FrequentKubeletRestarts }),
	newConditionSetting("frequentContainerdRestarts", func(c *Config) any { return &c.FrequentContainerdRestarts }),
	newConditionSetting("fsCorrupt", func(c *Config) any { return &c.FSCorrupt }),
	newConditionSetting("pollingInterval", func(c *Config) any { return &c.PollingInterval }),
	{[]string{"runtimeEnv", "RUNTIME_ENV"}, func(c *Config) any { return &c.RuntimeEnv }},
	{[]string{"enableTracing", "ENABLE_TRACING"}, func(c *Config) any { return &c.EnableTracing }},
	{[]string{"bypassNodeProblemDetector"}, func(c *Config) any { return &c.BypassNodeProblemDetector }},
}

func newEventSetting(name, flat string, value func(*Config) any) setting {
	keys := []string{"scheduledEvents." + name, "vmEvents." + name}
	if flat != "" {
		keys = append(keys, flat)
	}
	return setting{keys, value}
}

func newConditionSetting(name string, value func(*Config) any) setting {
	return setting{[]string{"optionalConditions." + name, "optional." + name}, value}
}

func listKnownKeys() []string {
	var known []string
	for _, s := range settings {
		known = append(known, s.keys...)
	}
	return known
}

// listSections returns the keys of the file that contain other settings.
func listSections() []string {
	return []string{"scheduledEvents", "vmEvents", "optionalConditions", "optional"}
}

// Load reads the file at path and the environment. The file may be missing. environ has the form of os.Environ and
// overrides the file. The error contains all faults.
func Load(path string, environ []string) (Config, error) {
	return joinFaults(loadFile(path, environ))
}

// LoadWithWarnings reads the same inputs as Load. It turns each fault into a warning and keeps the default, as the tool
// did. If the pods of a DaemonSet exited at their start, no node would be protected. Only a missing node name is an
// error.
func LoadWithWarnings(path string, environ []string) (Config, error) {
	c, faults := loadFile(path, environ)
	for _, err := range faults {
		c.addWarning("%v; ignored", err)
	}
	return c, c.requireNodeName()
}

func loadFile(path string, environ []string) (Config, []error) {
	raw, err := os.ReadFile(path)
	missing := errors.Is(err, os.ErrNotExist)
	c, faults := parseFileAndEnvironment(raw, environ)
	if missing {
		c.addWarning("%s: not found, using the defaults", path)
	} else if err != nil {
		faults = append(faults, fmt.Errorf("mechanic's configuration: %w", err))
	}
	for i, err := range faults {
		faults[i] = fmt.Errorf("%s: %w", path, err)
	}
	return c, faults
}

// requireNodeName returns an error if the node name is missing.
func (c *Config) requireNodeName() error {
	if c.NodeName == "" {
		return fmt.Errorf("$%s: %q: want the name of this node (in a pod: from spec.nodeName)", nodeNameVariable, "")
	}
	return nil
}

// Parse parses the content of the file and the environment. The error contains all faults.
func Parse(raw []byte, environ []string) (Config, error) {
	return joinFaults(parseFileAndEnvironment(raw, environ))
}

// joinFaults returns the configuration, and all faults joined to one error.
func joinFaults(c Config, faults []error) (Config, error) {
	return c, errors.Join(append(faults, c.requireNodeName())...)
}

// parseFileAndEnvironment returns the configuration and its faults. A setting with a fault keeps its default.
func parseFileAndEnvironment(raw []byte, environ []string) (Config, []error) {
	c := Default()
	entries, err := compat.ReadYAMLEntries(raw, listSections()...)
	var faults []error
	if err != nil {
		faults = append(faults, err)
	} else {
		faults = c.applyEntries(entries)
	}
	faults = append(faults, c.applyEnvironment(environ)...)
	if c.PollingInterval < 1 {
		c.addWarning("optionalConditions.pollingInterval: %d: want 1 or more seconds; using 1", c.PollingInterval)
		c.PollingInterval = 1
	}
	if c.PollingInterval > maxPollingSeconds && len(c.conditionRules()) > 0 {
		faults = append(faults, fmt.Errorf("optionalConditions.pollingInterval: %d: want 1 to %d seconds", c.PollingInterval, maxPollingSeconds))
		c.PollingInterval = Default().PollingInterval
	}
	return c, faults
}

func (c *Config) addWarning(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// applyEntries sets the configuration from the entries of the file. If a setting has several keys, the first of its
// keys counts. As in the tool, letter case does not matter.
func (c *Config) applyEntries(entries map[string]compat.Entry) []error {
	var errs []error
	byKey := map[string]string{} // as spelled, by its lower case
	for _, spelled := range slices.Sorted(maps.Keys(entries)) {
		lower := strings.ToLower(spelled)
		if other, twice := byKey[lower]; twice {
			errs = append(errs, fmt.Errorf("line %d: %s: already set as %s in line %d", entries[spelled].Line, spelled,
				other, entries[other].Line))
			continue
		}
		byKey[lower] = spelled
		if e := entries[spelled]; e.DuplicateLine > 0 {
			errs = append(errs, fmt.Errorf("line %d: %s: already set in line %d", e.DuplicateLine, spelled, e.Line))
		}
	}
	for _, s := range settings {
		if err := c.applySetting(s, entries, byKey); err != nil {
			errs = append(errs, err)
		}
	}
	for _, lower := range slices.Sorted(maps.Keys(byKey)) {
		spelled := byKey[lower]
		e := entries[spelled]
		section := slices.ContainsFunc(listKnownKeys(), func(k string) bool { return strings.HasPrefix(strings.ToLower(k), lower+".") })
		switch {
		case section && e.NonScalarKind != "":
			errs = append(errs, fmt.Errorf("line %d: %s: is %s: want keys with values", e.Line, spelled, e.NonScalarKind))
		case !section || !e.Null:
			c.Warnings = append(c.Warnings, compat.FormatUnknownKeyWarning(spelled, e.Line, append(listKnownKeys(), listSections()...)))
		}
	}
	return errs
}

// applySetting sets one setting from the entries of the file. It removes the setting's keys from byKey.
func (c *Config) applySetting(s setting, entries map[string]compat.Entry, byKey map[string]string) error {
	used := ""
	for i, key := range s.keys {
		spelled, there := byKey[strings.ToLower(key)]
		if !there {
			continue
		}
		delete(byKey, strings.ToLower(key))
		e := entries[spelled]
		switch {
		case e.Null:
			c.addWarning("line %d: %s: has no value, ignored", e.Line, spelled)
			continue
		case used != "" && e.Value != entries[used].Value:
			c.addWarning("line %d: %s: %s is ignored, because %s overrides it with %s", e.Line, spelled, e.Value, used, entries[used].Value)
			continue
		case used != "":
			continue
		case i > 0:
			c.addWarning("line %d: %s: mechanic ignored this spelling; Slipway applies it as %s", e.Line, spelled, s.keys[0])
		}
		used = spelled
		if e.NonScalarKind != "" {
			return fmt.Errorf("line %d: %s: is %s: want a value", e.Line, spelled, e.NonScalarKind)
		}
		if err := c.applyValue(s, spelled, e); err != nil {
			return err
		}
	}
	return nil
}

// applyValue sets one setting to a value of the file. As in the tool's library, a number is a boolean too: any number
// except 0 is true.
func (c *Config) applyValue(s setting, spelled string, e compat.Entry) error {
	to, value := s.value(c), e.Value
	n, number := e.Int()
	_, old, boolean := compat.ParseBool(value)
	switch {
	case isBoolPointer(to) && old:
		c.addWarning("line %d: %s: %s is a YAML 1.1 boolean: want true or false", e.Line, spelled, value)
	case isBoolPointer(to) && number && !boolean:
		value = strconv.FormatBool(n != 0)
		c.addWarning("line %d: %s: %s is converted to %s: want true or false", e.Line, spelled, e.Value, value)
	case number:
		value = strconv.Itoa(n)
	}
	if _, text := to.(*string); text {
		value = e.Value
	}
	if want := assignValue(to, value); want != "" {
		return fmt.Errorf("line %d: %s: %q: want %s", e.Line, spelled, e.Value, want)
	}
	return nil
}

func isBoolPointer(to any) bool {
	_, is := to.(*bool)
	return is
}

// assignValue parses a value and stores it in to. If it cannot parse the value, it returns a description of the
// accepted values.
func assignValue(to any, value string) (want string) {
	switch to := to.(type) {
	case *bool:
		b, _, ok := compat.ParseBool(value)
		if !ok {
			return "true or false"
		}
		*to = b
	case *int:
		n, err := strconv.Atoi(value)
		if err != nil {
			return "a whole number"
		}
		*to = n
	case *string:
		*to = value
	}
	return ""
}

// applyEnvironment sets the configuration from environment variables. mechanic itself applied a variable only if the file
// had the key too.
func (c *Config) applyEnvironment(environ []string) []error {
	values := map[string]string{}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, envPrefix) && value != "" {
			values[name] = value
		}
	}
	var errs []error
	var known []string
	for _, s := range settings {
		names := s.variables()
		known = append(known, names...)
		if err := c.applyVariables(s, names, values); err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case name == nodeNameVariable:
			c.NodeName = values[name]
		case !slices.Contains(known, name) && !isServiceLink(name):
			text := fmt.Sprintf("$%s: unknown variable, ignored", name)
			if like := compat.FindClosestName(name, known); like != "" {
				text += "; did you mean $" + like + "?"
			}
			c.Warnings = append(c.Warnings, text)
		}
	}
	return errs
}

// variables returns the names of the environment variables of a setting, in the order of its keys. A variable is named
// MECHANIC_ and a key in capitals, which may contain "." or "_".
func (s setting) variables() []string {
	var names []string
	for _, key := range s.keys {
		name := envPrefix + strings.ToUpper(key)
		names = append(names, name, strings.ReplaceAll(name, ".", "_"))
	}
	return slices.Compact(names)
}

// applyVariables sets one setting from the values of its variables. As in the file, the first one counts.
func (c *Config) applyVariables(s setting, names []string, values map[string]string) error {
	used := ""
	for _, name := range names {
		value, set := values[name]
		switch {
		case !set:
		case used == "":
			used = name
			if want := assignValue(s.value(c), value); want != "" {
				return fmt.Errorf("$%s: %q: want %s", name, value, want)
			}
		case value != values[used]:
			c.addWarning("$%s: %s is ignored, because $%s overrides it with %s", name, value, used, values[used])
		}
	}
	return nil
}

// isServiceLink reports whether the kubelet set an environment variable because of a Service named mechanic.
func isServiceLink(name string) bool {
	return strings.HasPrefix(name, envPrefix+"SERVICE_") || strings.HasPrefix(name, envPrefix+"PORT")
}
