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

func TestAPartThatEndsIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var at []time.Duration
		began := time.Now()
		supervise(ctx, slog.New(slog.DiscardHandler), func(context.Context) error {
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

// TestProxyAndManagerAgreeOnSystemLocalStorage: a node that the proxy chooses and the manager refuses is chosen again and again.
func TestProxyAndManagerAgreeOnSystemLocalStorage(t *testing.T) {
	f, err := kubeaware.ParseFlags(nil, func(string) string { return "" }, io.Discard)
	must.NoError(t, err)
	c := &kubeaware.Config{}
	front := c.Front(f)
	if managed := managing(&front, f, c.Mark()); !front.SystemLocalStorage || !managed.SystemLocalStorage {
		t.Errorf("the proxy lets it be lost: %t, the manager: %t; want both", front.SystemLocalStorage, managed.SystemLocalStorage)
	}
}
