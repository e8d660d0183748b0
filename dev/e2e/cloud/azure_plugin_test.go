package cloud_test

import (
	"encoding/json"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/conformance"
	"github.com/slipway-dev/slipway/internal/cloud/plugin"
	"github.com/slipway-dev/slipway/internal/cloud/plugin/faultyplugintest"
	author "github.com/slipway-dev/slipway/plugin"
)

// pluginConfig configures Azure as a plugin.
type pluginConfig struct {
	Azure azure.Config `json:"azure"`
	Token string       `json:"token"`
}

func init() {
	faultyplugintest.RunAsPluginIfRequested(func() {
		author.Serve(func(c author.Config) (author.Provider, error) {
			var relay pluginConfig
			if err := c.Decode(&relay); err != nil {
				return nil, err
			}
			return azure.New(relay.Azure, azure.Options{Credential: token(relay.Token)})
		})
	})
}

// azurePlugin is Azure with a plugin protocol between Slipway and its provider.
type azurePlugin struct{ *azureCloud }

var unlimited = resource.MustParse("0") // the race detector uses the whole address space

func (r azurePlugin) Provider(t *testing.T) cloud.Provider {
	t.Helper()
	config, err := json.Marshal(pluginConfig{Azure: r.config(), Token: r.IssueToken()})
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	if err := faultyplugintest.WritePluginScript(directory, "relay", faultyplugintest.Good); err != nil {
		t.Fatal(err)
	}
	p, err := plugin.Open(t.Context(), directory, plugin.Entry{Type: "relay", Config: config, MemoryLimit: &unlimited},
		plugin.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// BatchingProvider implements conformance.Batching.
func (r azurePlugin) BatchingProvider(t *testing.T) cloud.Provider {
	t.Helper()
	return azurePlugin{r.withLongBatchWindow()}.Provider(t)
}

// TestAzureAsPluginPassesConformance runs the complete conformance suite. A provider's answers and
// all kinds of its errors must pass through the plugin protocol unchanged.
func TestAzureAsPluginPassesConformance(t *testing.T) {
	t.Parallel()
	conformance.RunParallel(t, func(t *testing.T) conformance.Cloud { return azurePlugin{newAzure(t, agentPool)} })
}
