package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slipway-dev/slipway/internal/compat/mechanic"
	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestI10RefusedChangeOfMechanicsFileEndsNoAgent(t *testing.T) {
	t.Setenv("MECHANIC_NODE_NAME", "n")
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	write := func(text string) {
		t.Helper()
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, tt := range []struct {
		name, change string
		words        []string
	}{
		{"invalid YAML", "optional: [", nil},
		{"invalid value", "optional: {kubeletProblem: perhaps}", []string{"optional.kubeletProblem", "perhaps"}},
		{
			"value too large for agent", "optional: {kubeletProblem: true, pollingInterval: 300000}",
			[]string{"optionalConditions.pollingInterval", "300000", "1 to 86400"},
		},
		{"deleted", "", []string{"mechanic.yaml", "no such file"}},
		{"agent refuses the configuration", "optional: {pollingInterval: 15}", []string{"log-level", "loud"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asAgent := func(c *mechanic.Config) config.Agent {
				a := c.ToAgentConfig()
				if c.PollingInterval == 15 {
					a.LogLevel = "loud"
				}
				return a
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				write("optional: {pollingInterval: 10}")
				var began, ended []int
				var stderr bytes.Buffer
				done := make(chan error)
				go func() {
					done <- runWithReload(ctx, path, &stderr, asAgent,
						func(ctx context.Context, c mechanic.Config, a config.Agent) error {
							if err := a.Validate(); err != nil {
								return err
							}
							began = append(began, c.PollingInterval)
							<-ctx.Done()
							ended = append(ended, c.PollingInterval)
							return nil
						})
				}()
				time.Sleep(reloadInterval + time.Second)
				if write(tt.change); tt.change == "" {
					_ = os.Remove(path)
				}
				time.Sleep(2 * reloadInterval)
				synctest.Wait()
				if !slices.Equal(began, []int{10}) || len(ended) > 0 {
					t.Errorf("agents %v began, %v ended", began, ended)
				}
				for _, want := range append(tt.words, "keeping the previous one") {
					check.Contains(t, stderr.String(), want)
				}
				write("optional: {kubeletProblem: true, pollingInterval: 20}")
				time.Sleep(2 * reloadInterval)
				synctest.Wait()
				if !slices.Equal(began, []int{10, 20}) || !slices.Equal(ended, []int{10}) {
					t.Errorf("after a good change: agents %v began, %v ended", began, ended)
				}
				stop()
				if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
	}
}

// TestUnreadableMechanicFileStillStartsAnAgent: mechanic started too.
func TestUnreadableMechanicFileStillStartsAnAgent(t *testing.T) {
	t.Setenv("MECHANIC_NODE_NAME", "n")
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	for _, text := range []string{"optional: [", "scheduledEvents: {freeze: perhaps}"} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		var warnings []string
		err := runWithReload(t.Context(), path, io.Discard, func(c *mechanic.Config) config.Agent { return c.ToAgentConfig() },
			func(_ context.Context, c mechanic.Config, a config.Agent) error {
				warnings = c.Warnings
				return a.Validate()
			})
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], path) {
			t.Errorf("%q: %v, warnings %q", text, err, warnings)
		}
	}
}

func TestKubeconfigWithExecPluginWorks(t *testing.T) {
	var requests []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Header.Get("Authorization")+" "+r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	credential := `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t0ken"}}`
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+credential+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], users: [{name: u, user: {exec: {
apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}}]}`, server.URL, plugin)
	must.NoError(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	if _, err := kubeapi.LoadConfig(kubeconfig); !errors.Is(err, kubeapi.ErrUnsupportedCredentials) {
		t.Fatalf("error %v, want an error about unsupported credentials", err)
	}
	wrapped := 0
	api, err := connectWithClientGo(kubeconfig, "test", func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			wrapped++
			return next.RoundTrip(r)
		})
	})
	must.NoError(t, err)
	if n, err := api.GetNode(t.Context(), "n"); err != nil || n.Name != "n" {
		t.Fatalf("%+v, %v", n, err)
	}
	if len(requests) != 1 || requests[0] != "Bearer t0ken /api/v1/nodes/n" || wrapped != 1 {
		t.Errorf("requests %q, measured %d", requests, wrapped)
	}
}
