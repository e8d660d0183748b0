// Package plugin runs cloud plugins. A plugin is an executable in a directory, which hashicorp/go-plugin starts.
// Slipway and the plugin use the protocol of api/plugin/v1 over mutual TLS. Plugin authors use the package plugin at the
// module's root.
//
// A plugin that crashes or hangs affects only its own calls. Each call has a timeout, and each response is validated.
// After an exit the plugin is restarted, with growing delays. A plugin cannot delay the shutdown of Slipway.
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

// Config configures the plugins of a directory.
type Config struct {
	// Directory holds the plugins, each an executable with the name in Type. The directory and the files must not be
	// writable for others.
	Directory string `json:"directory"`
	// Use lists the plugins to run. A type can be listed several times, with different names.
	Use []Entry `json:"use"`
}

// Entry configures one plugin.
type Entry struct {
	// Type is the plugin's file name in the directory, the CloudType.
	Type string `json:"type"`
	// Name is the value of NodeGroup spec.cloud.provider. It defaults to the type in lower case.
	Name string `json:"name,omitempty"`
	// Config is the plugin's own configuration, a JSON object.
	Config json.RawMessage `json:"config,omitempty"`
	// Environment lists variables that the plugin inherits, in addition to the usual ones such as PATH, HOME and the
	// proxies. It sees no others.
	Environment []string `json:"environment,omitempty"`
	// CallTimeout limits each call, 1s to 10m. 0 is 30s. The caller's deadline applies too.
	CallTimeout metav1.Duration `json:"callTimeout,omitzero"`
	// StartTimeout limits the start, including the check of the configuration, 1s to 10m. 0 is 30s.
	StartTimeout metav1.Duration `json:"startTimeout,omitzero"`
	// MemoryLimit limits the plugin's data on Linux, 64Mi or more. The default is 1Gi. 0 means no limit.
	MemoryLimit *resource.Quantity `json:"memoryLimit,omitempty"`
}

// The defaults and limits of the fields of an [Entry].
const (
	defaultTimeout = 30 * time.Second
	defaultMemory  = 1 << 30
	minMemory      = 64 << 20
)

var (
	typePattern     = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*$`)
	namePattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Validate returns all errors in the configuration. It does not read the plugin files.
func (c Config) Validate() error {
	var errs []error
	if c.Directory == "" {
		errs = append(errs, errors.New("directory: is empty: want the directory of the plugins"))
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
			errs = append(errs, fmt.Errorf("use[%d]: name: %q: duplicate name", i, e.ProviderName()))
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
	if m := e.MemoryLimit; m != nil && (m.Sign() < 0 || m.Sign() > 0 && m.Value() < minMemory) {
		fail("memoryLimit: %s: want 64Mi or more, or 0 for no limit", m)
	}
	return errors.Join(errs...)
}

// ProviderName returns the name that NodeGroups use for the plugin.
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

func timeoutOrDefault(d metav1.Duration) time.Duration {
	if d.Duration == 0 {
		return defaultTimeout
	}
	return d.Duration
}

// configJSON returns the plugin's configuration as JSON. It returns {} for a plugin without configuration.
func (e Entry) configJSON() []byte {
	if c := strings.TrimSpace(string(e.Config)); c == "" || c == "null" {
		return []byte("{}")
	}
	return e.Config
}
