package cloudpool

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
)

func TestI10WhatWouldBeOpenToStrangersIsNotServed(t *testing.T) {
	good := func() Config {
		return Config{
			ListenOptions: httpserver.ListenOptions{Address: "127.0.0.1:1", ReadTimeout: time.Minute},
			ServerOptions: httpserver.ServerOptions{BackendTimeout: time.Minute, MaxBody: 1024},
			UpdaterOptions: controller.UpdaterOptions{AtOnce: 1, Namespace: "n", Holder: "h", Pace: controller.Pace{
				Registration: time.Minute, Poll: time.Second, Trouble: time.Second, Admission: time.Second, Settle: time.Second,
			}},
		}
	}
	for want, change := range map[string]func(*Config){
		"":                                 func(*Config) {},
		"want --tls-cert-file":             func(c *Config) { c.Address = ":8080" },
		"nobody is asked who he is":        func(c *Config) { c.Address, c.TLSCertFile, c.TLSKeyFile = "10.0.0.1:1", "a", "b" },
		"--tls-private-key-file belong":    func(c *Config) { c.TLSCertFile = "a" },
		"over TLS alone":                   func(c *Config) { c.ClientCAFile = "a" },
		"--refuse: \"size\"":               func(c *Config) { c.Refuse = []string{"size"} },
		"--max-concurrent-removals: 0":     func(c *Config) { c.AtOnce = 0 },
		"--policy":                         func(c *Config) { c.Policy = "Random" },
		"--namespace":                      func(c *Config) { c.Namespace = "" },
		"--identity":                       func(c *Config) { c.Holder = "" },
		"--max-body: 1:":                   func(c *Config) { c.MaxBody = 1 },
		"--poll-interval: 0s":              func(c *Config) { c.Pace.Poll = 0 },
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
		t.Errorf("asked for: %v", err)
	}
}

func TestI10APoolWhoseNameNoLeaseCanHaveIsNotServed(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("p", maxPoolName):   "",
		strings.Repeat("p", maxPoolName+1): "has a name of 54 characters: want at most 53",
	} {
		if err := distinct([]*httpserver.Front{{Name: name}}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if problems := validation.IsValidLabelValue(controller.RecordName(name)[len("slipway-"):]); (len(problems) > 0) != (want != "") {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
