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

// Load reads the file at path, which need not be there, and the environment, which is given as os.Environ gives it and
// wins.
func Load(path string, environ []string) (Config, error) {
	raw, err := os.ReadFile(path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return Config{}, fmt.Errorf("mechanic's configuration: %w", err)
	}
	c, err := Parse(raw, environ)
	if missing {
		c.warn("%s: is not there: the defaults hold", path)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads what the file holds, and the environment.
func Parse(raw []byte, environ []string) (Config, error) {
	c := Default()
	entries, err := compat.Entries(raw)
	if err != nil {
		return c, err
	}
	errs := c.readFile(entries)
	errs = append(errs, c.readEnvironment(environ)...)
	if c.PollingInterval < 1 {
		c.warn("optionalConditions.pollingInterval: %d: want 1 or more seconds: 1 is taken", c.PollingInterval)
		c.PollingInterval = 1
	}
	if c.PollingInterval > longestPolling && len(c.rules()) > 0 {
		errs = append(errs, fmt.Errorf("optionalConditions.pollingInterval: %d: want 1 to %d seconds", c.PollingInterval,
			longestPolling))
	}
	if c.NodeName == "" {
		errs = append(errs, fmt.Errorf("$%s: %q: want the name of this node (in a pod: from spec.nodeName)", nodeName, ""))
	}
	return c, errors.Join(errs...)
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
	}
	for _, s := range settings {
		if err := c.take(s, entries, byKey); err != nil {
			errs = append(errs, err)
		}
	}
	for _, lower := range slices.Sorted(maps.Keys(byKey)) {
		spelled := byKey[lower]
		empty := entries[spelled].Null && slices.ContainsFunc(knownKeys(), func(k string) bool {
			return strings.HasPrefix(strings.ToLower(k), lower+".")
		})
		if !empty {
			c.Warnings = append(c.Warnings, compat.Unknown(spelled, entries[spelled].Line, knownKeys()))
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
		if want := assign(s.value(c), e.Value); want != "" {
			return fmt.Errorf("line %d: %s: %q: want %s", e.Line, spelled, e.Value, want)
		}
	}
	return nil
}

// assign writes a value, or says what it must be.
func assign(to any, value string) (want string) {
	switch to := to.(type) {
	case *bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
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
