package cloudpool

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud"
)

func TestI10BadConfigurationIsRefusedByFieldAndRange(t *testing.T) {
	long := cloud.Duration(time.Hour)
	good := func() Config {
		return Config{Pools: []PoolConfig{{Name: "workers", URL: "https://h:1/cloudpools/workers/"}}}
	}
	for want, change := range map[string]func(*Config){
		"":                             func(*Config) {},
		"pools: is empty":              func(c *Config) { c.Pools = nil },
		"pools[0].url":                 func(c *Config) { c.Pools[0].URL = "ftp://h" },
		"want them in auth":            func(c *Config) { c.Pools[0].URL = "https://u:secret@h" },
		"without query":                func(c *Config) { c.Pools[0].URL = "https://h?x" },
		"pools[0].name: \"a/b\"":       func(c *Config) { c.Pools[0].Name = "a/b" },
		"pools[1].name: \"workers\"":   func(c *Config) { c.Pools = append(c.Pools, c.Pools[0]) },
		"want none":                    func(c *Config) { c.Pools[0].Multi = true },
		"nodes.cost":                   func(c *Config) { c.Pools[0].Nodes.Cost = -1 },
		"requestTimeout: 1h0m0s":       func(c *Config) { c.RequestTimeout = long },
		"settleTime: 1h0m0s":           func(c *Config) { c.SettleTime = &long },
		"observationWait: 1h0m0s":      func(c *Config) { c.ObservationWait = &long },
		"pollInterval: 1h0m0s":         func(c *Config) { c.PollInterval = long },
		"username and passwordFile":    func(c *Config) { c.Auth.Username = "u" },
		"username or tokenFile":        func(c *Config) { c.Auth = Auth{Username: "u", PasswordFile: "p", TokenFile: "t"} },
		"certFile and keyFile require": func(c *Config) { c.Auth.CertFile = "c" },
	} {
		c := good()
		change(&c)
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}

func TestTrailingSlashOfURLIsIgnored(t *testing.T) {
	for text, want := range map[string]string{
		"http://h": "http://h/pool", "http://h/": "http://h/pool", "https://h:1/a/cloudpools/x/": "https://h:1/a/cloudpools/x/pool",
	} {
		u, err := ParseURL(text)
		if err != nil || u.JoinPath("pool").String() != want {
			t.Errorf("%s: %v, %v; want %s", text, u, err, want)
		}
	}
}
