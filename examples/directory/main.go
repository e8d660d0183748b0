//go:build unix

// Command directory is a sample plugin of Slipway. Its cloud is a directory, and each machine is a file. A plugin for
// libvirt would be similar. docs/writing-a-plugin.md explains the code.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/slipway-dev/slipway/examples/directory/machines"
	"github.com/slipway-dev/slipway/plugin"
)

func main() { plugin.Serve(open) }

// config is the content of `config:` for this plugin in Slipway's configuration.
type config struct {
	// Path is the directory of the machines.
	Path string `json:"path"`
	// Host is the host's name, the first part of provider IDs.
	Host string `json:"host"`
	// BootSeconds and ShutdownSeconds are the durations for new machines.
	BootSeconds     float64 `json:"bootSeconds"`
	ShutdownSeconds float64 `json:"shutdownSeconds"`
}

// open creates the provider. It validates the configuration without access to the cloud.
func open(c plugin.Config) (plugin.Provider, error) {
	var mine config
	if err := c.Decode(&mine); err != nil {
		return nil, err
	}
	switch {
	case mine.Path == "":
		return nil, errors.New("config.path: is empty: want the directory of the machines")
	case mine.Host == "":
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("config.host: is empty, and reading the host name failed: %w", err)
		}
		mine.Host = name
	case mine.BootSeconds < 0 || mine.ShutdownSeconds < 0:
		return nil, errors.New("config.bootSeconds, config.shutdownSeconds: want 0 or more")
	}
	return &provider{config: mine, hypervisor: machines.Hypervisor{Root: mine.Path}, now: time.Now}, nil
}
