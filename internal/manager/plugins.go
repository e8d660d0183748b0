package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/externalgrpc"
)

// PluginClouds are the clouds of --cloud-config that run as separate programs.
type PluginClouds struct {
	Plugins      *plugin.Config        `json:"plugins,omitempty"`
	ExternalGRPC []externalgrpc.Config `json:"externalGRPC,omitempty"`
}

// startAndAddProviders starts the plugins and adds them and the external gRPC providers. After an error it stops what it has
// started.
func (c PluginClouds) startAndAddProviders(providers map[string]cloud.Provider, log *slog.Logger) (err error) {
	added := map[string]cloud.Provider{}
	defer func() {
		if err != nil {
			closeClouds(added)
		}
	}()
	add := func(field string, p cloud.Provider) error {
		if providers[p.Name()] != nil || added[p.Name()] != nil {
			return errors.Join(fmt.Errorf("%s: name: %q is used twice", field, p.Name()), closeCloud(p))
		}
		added[p.Name()] = p
		return nil
	}
	for i, config := range c.ExternalGRPC {
		field := fmt.Sprintf("externalGRPC[%d]", i)
		p, err := externalgrpc.New(config)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		if err := add(field, p); err != nil {
			return err
		}
	}
	if c.Plugins != nil {
		opened, err := plugin.OpenAll(context.Background(), *c.Plugins, plugin.Options{Log: log})
		if err != nil {
			return fmt.Errorf("plugins: %w", err)
		}
		var errs []error
		for i, p := range opened {
			errs = append(errs, add(fmt.Sprintf("plugins.use[%d]", i), p))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	for name, p := range added {
		providers[name] = p
	}
	return nil
}

// closeClouds closes the closable providers concurrently. It takes a few seconds at most.
func closeClouds(providers map[string]cloud.Provider) {
	var all sync.WaitGroup
	for _, p := range providers {
		all.Go(func() {
			if err := closeCloud(p); err != nil {
				slog.Error("closing a cloud", "cloud", p.Name(), "err", err)
			}
		})
	}
	all.Wait()
}

func closeCloud(p cloud.Provider) error {
	if c, ok := p.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
