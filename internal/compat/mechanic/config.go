// Package mechanic is the personality of mechanic (github.com/amargherio/mechanic): its configuration file and
// environment in, Slipway's configuration out, and on top of what Slipway shows of itself that tool's label and
// Kubernetes Events.
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

// Tool is the name of what is stood in for.
const Tool = "mechanic"

// DefaultFile is where the tool looked for its configuration.
const DefaultFile = "/etc/mechanic/mechanic.yaml"

const (
	envPrefix = "MECHANIC_"
	nodeName  = envPrefix + "NODE_NAME"
)

// longestPolling is for how many seconds a node condition can be asked to hold before it is drained for.
const longestPolling = 24 * 60 * 60

// Config is the tool's configuration, as its users gave it.
type Config struct {
	NodeName string

	// What is drained for.
	Freeze, Reboot, Redeploy, Preempt, Terminate, LiveMigration bool

	// Node conditions that are drained for.
	KubeletProblem, KernelDeadlock, FrequentKubeletRestarts, FrequentContainerdRestarts, FSCorrupt bool

	PollingInterval           int // seconds
	RuntimeEnv                string
	EnableTracing             bool
	BypassNodeProblemDetector bool

	// Warnings are what was passed over or is done otherwise than it was asked for.
	Warnings []string
}

// Default is the tool's configuration without a file.
func Default() Config {
	return Config{
		Redeploy: true, Preempt: true, Terminate: true, LiveMigration: true,
		PollingInterval: 30, RuntimeEnv: "prod", EnableTracing: true,
	}
}

// setting is one of the tool's settings under all its keys, the one that the tool's code reads first. The code looks
// for scheduledEvents and optionalConditions; the ConfigMap that the tool ships has vmEvents and optional; releases
// before 2025.4 had flat keys.
type setting struct {
	keys  []string
	value func(*Config) any // a pointer to bool, int or string
}

var settings = []setting{
	event("freeze", "DRAIN_ON_FREEZE", func(c *Config) any { return &c.Freeze }),
	event("reboot", "DRAIN_ON_REBOOT", func(c *Config) any { return &c.Reboot }),
	event("redeploy", "DRAIN_ON_REDEPLOY", func(c *Config) any { return &c.Redeploy }),
	event("preempt", "DRAIN_ON_PREEMPT", func(c *Config) any { return &c.Preempt }),
	event("terminate", "DRAIN_ON_TERMINATE", func(c *Config) any { return &c.Terminate }),
	event("liveMigration", "", func(c *Config) any { return &c.LiveMigration }),
	optional("kubeletProblem", func(c *Config) any { return &c.KubeletProblem }),
	optional("kernelDeadlock", func(c *Config) any { return &c.KernelDeadlock }),
	optional("frequentKubeletRestarts", func(c *Config) any { return &c.FrequentKubeletRestarts }),
	optional("frequentContainerdRestarts", func(c *Config) any { return &c.FrequentContainerdRestarts }),
	optional("fsCorrupt", func(c *Config) any { return &c.FSCorrupt }),
	optional("pollingInterval", func(c *Config) any { return &c.PollingInterval }),
	{[]string{"runtimeEnv", "RUNTIME_ENV"}, func(c *Config) any { return &c.RuntimeEnv }},
	{[]string{"enableTracing", "ENABLE_TRACING"}, func(c *Config) any { return &c.EnableTracing }},
	{[]string{"bypassNodeProblemDetector"}, func(c *Config) any { return &c.BypassNodeProblemDetector }},
}

func event(name, flat string, value func(*Config) any) setting {
	keys := []string{"scheduledEvents." + name, "vmEvents." + name}
	if flat != "" {
		keys = append(keys, flat)
	}
	return setting{keys, value}
}

func optional(name string, value func(*Config) any) setting {
	return setting{[]string{"optionalConditions." + name, "optional." + name}, value}
}

func knownKeys() []string {
	var known []string
	for _, s := range settings {
		known = append(known, s.keys...)
	}
	return known
}

// sections are the keys of the file that have settings below them.
func sections() []string {
	return []string{"scheduledEvents", "vmEvents", "optionalConditions", "optional"}
}

// Load reads the file at path, which need not be there, and the environment, which is given as os.Environ gives it and
// wins. The error names everything that is wrong.
func Load(path string, environ []string) (Config, error) {
	return refused(load(path, environ))
}

// LoadAtStart reads as Load does, but only warns of what Load refuses, and passes it over as the tool did. A DaemonSet whose pods
// end at their start guards no node. Only a missing name of the node is an error.
func LoadAtStart(path string, environ []string) (Config, error) {
	c, faults := load(path, environ)
	for _, err := range faults {
		c.warn("%v; it is passed over", err)
	}
	return c, c.named()
}

func load(path string, environ []string) (Config, []error) {
	raw, err := os.ReadFile(path)
	missing := errors.Is(err, os.ErrNotExist)
	c, faults := read(raw, environ)
	if missing {
		c.warn("%s: is not there: the defaults hold", path)
	} else if err != nil {
		faults = append(faults, fmt.Errorf("mechanic's configuration: %w", err))
	}
	for i, err := range faults {
		faults[i] = fmt.Errorf("%s: %w", path, err)
	}
	return c, faults
}

// named reports a missing name of the node.
func (c *Config) named() error {
	if c.NodeName == "" {
		return fmt.Errorf("$%s: %q: want the name of this node (in a pod: from spec.nodeName)", nodeName, "")
	}
	return nil
}

// Parse reads what the file holds, and the environment. The error names everything that is wrong.
func Parse(raw []byte, environ []string) (Config, error) {
	return refused(read(raw, environ))
}

// refused returns a configuration with everything that is wrong with it as one error.
func refused(c Config, faults []error) (Config, error) {
	return c, errors.Join(append(faults, c.named())...)
}

// read leaves the default of what it reports.
func read(raw []byte, environ []string) (Config, []error) {
	c := Default()
	entries, err := compat.Entries(raw, sections()...)
	var faults []error
	if err != nil {
		faults = append(faults, err)
	} else {
		faults = c.readFile(entries)
	}
	faults = append(faults, c.readEnvironment(environ)...)
	if c.PollingInterval < 1 {
		c.warn("optionalConditions.pollingInterval: %d: want 1 or more seconds: 1 is taken", c.PollingInterval)
		c.PollingInterval = 1
	}
	if c.PollingInterval > longestPolling && len(c.rules()) > 0 {
		faults = append(faults, fmt.Errorf("optionalConditions.pollingInterval: %d: want 1 to %d seconds", c.PollingInterval, longestPolling))
		c.PollingInterval = Default().PollingInterval
	}
	return c, faults
}

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// readFile takes the settings in, under the key of each that comes first. Case does not matter, as in the tool.
func (c *Config) readFile(entries map[string]compat.Entry) []error {
	var errs []error
	byKey := map[string]string{} // as spelled, by its lower case
	for _, spelled := range slices.Sorted(maps.Keys(entries)) {
		lower := strings.ToLower(spelled)
		if other, twice := byKey[lower]; twice {
			errs = append(errs, fmt.Errorf("line %d: %s: is there already as %s, in line %d", entries[spelled].Line, spelled,
				other, entries[other].Line))
			continue
		}
		byKey[lower] = spelled
		if e := entries[spelled]; e.Again > 0 {
			errs = append(errs, fmt.Errorf("line %d: %s: is there already, in line %d", e.Again, spelled, e.Line))
		}
	}
	for _, s := range settings {
		if err := c.take(s, entries, byKey); err != nil {
			errs = append(errs, err)
		}
	}
	for _, lower := range slices.Sorted(maps.Keys(byKey)) {
		spelled := byKey[lower]
		e := entries[spelled]
		section := slices.ContainsFunc(knownKeys(), func(k string) bool { return strings.HasPrefix(strings.ToLower(k), lower+".") })
		switch {
		case section && e.Shape != "":
			errs = append(errs, fmt.Errorf("line %d: %s: is %s: want keys with values", e.Line, spelled, e.Shape))
		case !section || !e.Null:
			c.Warnings = append(c.Warnings, compat.Unknown(spelled, e.Line, append(knownKeys(), sections()...)))
		}
	}
	return errs
}

// take reads one setting, and takes its keys off byKey.
func (c *Config) take(s setting, entries map[string]compat.Entry, byKey map[string]string) error {
	taken := ""
	for i, key := range s.keys {
		spelled, there := byKey[strings.ToLower(key)]
		if !there {
			continue
		}
		delete(byKey, strings.ToLower(key))
		e := entries[spelled]
		switch {
		case e.Null:
			c.warn("line %d: %s: has no value, and is passed over", e.Line, spelled)
			continue
		case taken != "" && e.Value != entries[taken].Value:
			c.warn("line %d: %s: %s is passed over, since %s wins with %s", e.Line, spelled, e.Value, taken, entries[taken].Value)
			continue
		case taken != "":
			continue
		case i > 0:
			c.warn("line %d: %s: mechanic passed this spelling over; here it counts, as %s", e.Line, spelled, s.keys[0])
		}
		taken = spelled
		if e.Shape != "" {
			return fmt.Errorf("line %d: %s: is %s: want a value", e.Line, spelled, e.Shape)
		}
		if err := c.takeValue(s, spelled, e); err != nil {
			return err
		}
	}
	return nil
}

// takeValue writes a value of the file. Of a number the tool's library made a boolean: any but 0 is true.
func (c *Config) takeValue(s setting, spelled string, e compat.Entry) error {
	to, value := s.value(c), e.Value
	n, number := e.Int()
	_, old, boolean := compat.Bool(value)
	switch {
	case isBool(to) && old:
		c.warn("line %d: %s: %s is a boolean of YAML 1.1: want true or false", e.Line, spelled, value)
	case isBool(to) && number && !boolean:
		value = strconv.FormatBool(n != 0)
		c.warn("line %d: %s: %s is taken for %s: want true or false", e.Line, spelled, e.Value, value)
	case number:
		value = strconv.Itoa(n)
	}
	if _, text := to.(*string); text {
		value = e.Value
	}
	if want := assign(to, value); want != "" {
		return fmt.Errorf("line %d: %s: %q: want %s", e.Line, spelled, e.Value, want)
	}
	return nil
}

func isBool(to any) bool {
	_, is := to.(*bool)
	return is
}

// assign writes a value, or says what it must be.
func assign(to any, value string) (want string) {
	switch to := to.(type) {
	case *bool:
		b, _, ok := compat.Bool(value)
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

// readEnvironment takes in MECHANIC_ and a key in capitals, whose dot may be an underscore. mechanic took a variable
// only where the file had the key too.
func (c *Config) readEnvironment(environ []string) []error {
	var errs []error
	names := map[string]setting{}
	for _, s := range settings {
		for _, key := range s.keys {
			upper := envPrefix + strings.ToUpper(key)
			names[upper], names[strings.ReplaceAll(upper, ".", "_")] = s, s
		}
	}
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		s, known := names[name]
		switch {
		case !strings.HasPrefix(name, envPrefix) || value == "":
		case name == nodeName:
			c.NodeName = value
		case known:
			if want := assign(s.value(c), value); want != "" {
				errs = append(errs, fmt.Errorf("$%s: %q: want %s", name, value, want))
			}
		case !isServiceLink(name):
			text := fmt.Sprintf("$%s: is no variable that is known, and is passed over", name)
			if like := compat.Closest(name, slices.Collect(maps.Keys(names))); like != "" {
				text += "; meant $" + like + "?"
			}
			c.Warnings = append(c.Warnings, text)
		}
	}
	return errs
}

// isServiceLink reports whether the kubelet made the variable for a Service by the name of mechanic.
func isServiceLink(name string) bool {
	return strings.HasPrefix(name, envPrefix+"SERVICE_") || strings.HasPrefix(name, envPrefix+"PORT")
}
