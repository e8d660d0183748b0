package cloudpool

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
)

func TestI10UnsafeConfigIsRefused(t *testing.T) {
	good := func() Config {
		return Config{
			ListenOptions: httpserver.ListenOptions{Address: "127.0.0.1:1", ReadTimeout: time.Minute},
			ServerOptions: httpserver.ServerOptions{BackendTimeout: time.Minute, MaxBody: 1024},
			UpdaterOptions: controller.UpdaterOptions{MaxConcurrentRemovals: 1, Namespace: "n", Holder: "h", Timeouts: controller.Timeouts{
				NodeRegistration: time.Minute, PollInterval: time.Second, FailureTolerance: time.Second, RetirementStart: time.Second, PodSettle: time.Second,
			}},
		}
	}
	for want, change := range map[string]func(*Config){
		"":                                 func(*Config) {},
		"want --tls-cert-file":             func(c *Config) { c.Address = ":8080" },
		"clients are not authenticated":    func(c *Config) { c.Address, c.TLSCertFile, c.TLSKeyFile = "10.0.0.1:1", "a", "b" },
		"--tls-private-key-file: only one": func(c *Config) { c.TLSCertFile = "a" },
		"client certificates require TLS":  func(c *Config) { c.ClientCAFile = "a" },
		"--refuse: \"size\"":               func(c *Config) { c.RefusedActions = []string{"size"} },
		"--max-concurrent-removals: 0":     func(c *Config) { c.MaxConcurrentRemovals = 0 },
		"--policy":                         func(c *Config) { c.Policy = "Random" },
		"--namespace":                      func(c *Config) { c.Namespace = "" },
		"--identity":                       func(c *Config) { c.Holder = "" },
		"--max-body: 1:":                   func(c *Config) { c.MaxBody = 1 },
		"--poll-interval: 0s":              func(c *Config) { c.Timeouts.PollInterval = 0 },
		"--listen: \"nowhere\"":            func(c *Config) { c.Address = "nowhere" },
		"--native-refresh: 1h0m0s: want 0": func(c *Config) { c.NativeRefresh = time.Hour },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	open := good()
	open.Address, open.Insecure = ":8080", true
	if err := open.Validate(); err != nil {
		t.Errorf("with --insecure: %v", err)
	}
}

func TestI10TooLongPoolNameIsRefused(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("p", maxPoolName):   "",
		strings.Repeat("p", maxPoolName+1): "the name has 54 characters: want at most 53",
	} {
		if err := checkPoolNames([]*httpserver.ServedPool{{Name: name}}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if problems := validation.IsValidLabelValue(controller.PoolObjectName(name)[len("slipway-"):]); (len(problems) > 0) != (want != "") {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
