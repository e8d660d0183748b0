package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestFailedPartIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var at []time.Duration
		began := time.Now()
		runWithRestarts(ctx, slog.New(slog.DiscardHandler), func(context.Context) error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 3: // works for long, and then its Lease is lost
				time.Sleep(time.Hour)
			case 5:
				stop()
			}
			return errors.New("leader election lost")
		})
		want := []time.Duration{0, time.Second, 3 * time.Second, time.Hour + 4*time.Second, time.Hour + 6*time.Second}
		for i := range want {
			if i >= len(at) || at[i] != want[i] {
				t.Fatalf("started at %v, want %v", at, want)
			}
		}
	})
}

// TestProxyAndManagerAgreeOnSystemLocalStorage: otherwise the proxy chooses a node again and again that the manager refuses.
func TestProxyAndManagerAgreeOnSystemLocalStorage(t *testing.T) {
	f, err := kubeaware.ParseFlags(nil, func(string) string { return "" }, io.Discard)
	must.NoError(t, err)
	c := &kubeaware.Config{}
	front := c.ToCloudpoolConfig(f)
	if managed := newManagerConfig(&front, f, c.BackendHash()); !front.SystemLocalStorage || !managed.SystemLocalStorage {
		t.Errorf("SystemLocalStorage: proxy %t, manager %t; want both", front.SystemLocalStorage, managed.SystemLocalStorage)
	}
}
