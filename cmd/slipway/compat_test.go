package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/compat/mechanic"
	"github.com/slipway-dev/slipway/internal/config"
)

func TestI10AChangeOfMechanicsFileThatIsRefusedEndsNoAgent(t *testing.T) {
	t.Setenv("MECHANIC_NODE_NAME", "n")
	path := filepath.Join(t.TempDir(), "mechanic.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, change string
		says         []string
	}{
		{"is no YAML", "optional: [", nil},
		{"holds a wrong value", "optional: {kubeletProblem: perhaps}", []string{"optional.kubeletProblem", "perhaps"}},
		{
			"asks for more than the agent takes", "optional: {kubeletProblem: true, pollingInterval: 300000}",
			[]string{"optionalConditions.pollingInterval", "300000", "1 to 86400"},
		},
		{"is gone", "", []string{"mechanic.yaml", "no such file"}},
		{"makes an agent that is refused", "optional: {pollingInterval: 15}", []string{"log-level", "loud"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asAgent := func(c *mechanic.Config) config.Agent {
				a := c.Config()
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
					done <- reloading(ctx, path, &stderr, asAgent,
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
				time.Sleep(reloadEvery + time.Second)
				if write(tt.change); tt.change == "" {
					_ = os.Remove(path)
				}
				time.Sleep(2 * reloadEvery)
				synctest.Wait()
				if !slices.Equal(began, []int{10}) || len(ended) > 0 {
					t.Errorf("agents %v began, %v ended", began, ended)
				}
				for _, want := range append(tt.says, "the last good one stands") {
					if !strings.Contains(stderr.String(), want) {
						t.Errorf("it does not say %q: %s", want, stderr.String())
					}
				}
				write("optional: {kubeletProblem: true, pollingInterval: 20}")
				time.Sleep(2 * reloadEvery)
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
