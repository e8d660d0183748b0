//go:build unix

// Command directory is a sample plugin of Slipway: a cloud whose machines are files in a directory, made much as one for
// libvirt would be. docs/writing-a-plugin.md leads through it.
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

// config is what Slipway's configuration has under `config:` for this plugin.
type config struct {
	// Path is the directory of the machines.
	Path string `json:"path"`
	// Host is the host's name, the first part of its machines' provider IDs.
	Host string `json:"host"`
	// BootSeconds and ShutdownSeconds are how long a new machine takes for either.
	BootSeconds     float64 `json:"bootSeconds"`
	ShutdownSeconds float64 `json:"shutdownSeconds"`
}

// open makes the provider. It checks what can be checked without the cloud.
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
			return nil, fmt.Errorf("config.host: is empty, and the host does not know its name: %w", err)
		}
		mine.Host = name
	case mine.BootSeconds < 0 || mine.ShutdownSeconds < 0:
		return nil, errors.New("config.bootSeconds, config.shutdownSeconds: want 0 or more")
	}
	return &provider{config: mine, hypervisor: machines.Hypervisor{Root: mine.Path}, now: time.Now}, nil
}
