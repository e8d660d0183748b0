// Package plugin runs clouds that are programs of their own: executables in a directory, started as hashicorp/go-plugin
// does, that speak the protocol of api/plugin/v1 over mutual TLS. Those who write one use the package plugin at the
// module's root.
//
// A plugin that crashes or hangs harms nothing but its own calls: each of them is bounded, what it answers is checked, it
// is started again with growing pauses, and it never delays the end of Slipway.
package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config says which plugins of a directory are in use.
type Config struct {
	// Directory holds the plugins, each an executable of the name that Type gives. Neither it nor they may be writable for
	// everybody.
	Directory string `json:"directory"`
	// Use lists those that are run. A type may be there several times, under different names.
	Use []Entry `json:"use"`
}

// Entry is one plugin in use.
type Entry struct {
	// Type is the file's name in the directory, the CloudType.
	Type string `json:"type"`
	// Name is what NodeGroups call it in spec.cloud.provider; the type in lower case if empty.
	Name string `json:"name,omitempty"`
	// Config is the plugin's own configuration, an object of its choice.
	Config json.RawMessage `json:"config,omitempty"`
	// Environment names the variables of Slipway's environment that the plugin gets, beside those that every program needs
	// (PATH, HOME, the proxies and so on). Others it does not see.
	Environment []string `json:"environment,omitempty"`
	// CallTimeout bounds each call, 1s to 10m; 30s if zero. The callers' own bounds hold too.
	CallTimeout metav1.Duration `json:"callTimeout,omitzero"`
	// StartTimeout bounds the start until the configuration is accepted, 1s to 10m; 30s if zero.
	StartTimeout metav1.Duration `json:"startTimeout,omitzero"`
	// MemoryLimit bounds the plugin's data on Linux, 64Mi or more; 1Gi if absent, and none if 0.
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`
}

// The values of an Entry that leaves them out.
const (
	defaultTimeout = 30 * time.Second
	defaultMemory  = 1 << 30
	leastMemory    = 64 << 20
)

var (
	typePattern     = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*$`)
	namePattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Validate reports everything that is wrong, without a look at the files.
func (c Config) Validate() error {
	var errs []error
	if c.Directory == "" {
		errs = append(errs, errors.New("directory: is empty: want the directory that the plugins are in"))
	}
	if len(c.Use) == 0 {
		errs = append(errs, errors.New("use: is empty: want the plugins to run, each with its type"))
	}
	seen := map[string]bool{}
	for i, e := range c.Use {
		if err := e.validate(); err != nil {
			errs = append(errs, fmt.Errorf("use[%d]: %w", i, err))
		}
		if seen[e.ProviderName()] {
			errs = append(errs, fmt.Errorf("use[%d]: name: %q is there twice", i, e.ProviderName()))
		}
		seen[e.ProviderName()] = true
	}
	return errors.Join(errs...)
}

func (e Entry) validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !typePattern.MatchString(e.Type) {
		fail("type: %q: want the name of a file in the directory, of letters, digits, -, _ and .", e.Type)
	} else if !namePattern.MatchString(e.ProviderName()) {
		fail("name: %q: want lower-case letters, digits and -, at most 63", e.ProviderName())
	}
	if config := strings.TrimSpace(string(e.Config)); config != "" && config != "null" && config[0] != '{' {
		fail("config: want an object, got %.40s", config)
	}
	for _, name := range e.Environment {
		if !variablePattern.MatchString(name) {
			fail("environment: %q: want names of variables", name)
		}
	}
	for field, d := range map[string]time.Duration{
		"callTimeout": e.CallTimeout.Duration, "startTimeout": e.StartTimeout.Duration,
	} {
		if d != 0 && (d < time.Second || d > 10*time.Minute) {
			fail("%s: %s: want 1s to 10m", field, d)
		}
	}
	if m := e.MemoryLimit; m != nil && (m.Sign() < 0 || m.Sign() > 0 && m.Value() < leastMemory) {
		fail("memoryLimit: %s: want 64Mi or more, or 0 for none", m)
	}
	return errors.Join(errs...)
}

// ProviderName is the name by which NodeGroups know the plugin.
func (e Entry) ProviderName() string {
	if e.Name != "" {
		return e.Name
	}
	return strings.ToLower(e.Type)
}

func (e Entry) memoryLimit() uint64 {
	if e.MemoryLimit == nil {
		return defaultMemory
	}
	return uint64(e.MemoryLimit.Value())
}

func orDefault(d metav1.Duration) time.Duration {
	if d.Duration == 0 {
		return defaultTimeout
	}
	return d.Duration
}

// configJSON is what the plugin is given.
func (e Entry) configJSON() []byte {
	if c := strings.TrimSpace(string(e.Config)); c == "" || c == "null" {
		return []byte("{}")
	}
	return e.Config
}
