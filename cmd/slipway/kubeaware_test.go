package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/testing/check"
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

// TestProxyNeedsPermissionForCRDsOnlyIfAsked: the manager would not start otherwise, although the cluster has the CRDs.
func TestProxyNeedsPermissionForCRDsOnlyIfAsked(t *testing.T) {
	for arg, want := range map[string]struct{ installs, byDefault bool }{
		"":                    {true, true},
		"-install-crds":       {true, false},
		"-install-crds=false": {false, false},
	} {
		f, err := kubeaware.ParseFlags(strings.Fields(arg), func(string) string { return "" }, io.Discard)
		must.NoError(t, err)
		c := &kubeaware.Config{}
		front := c.ToCloudpoolConfig(f)
		m := newManagerConfig(&front, f, c.BackendHash())
		check.Is(t, want.installs, m.InstallCRDs, arg)
		check.Is(t, want.byDefault, m.InstallCRDsByDefault, arg)
	}
}

// TestOnlyNotFoundMeansSinglePool: a backend with several pools that counts as a single one answers 404 to all paths of
// its pools until a restart.
func TestOnlyNotFoundMeansSinglePool(t *testing.T) {
	status := func(code int) error { return fmt.Errorf("pools: %w", &wire.StatusError{Code: code}) }
	for name, tt := range map[string]struct {
		answers []error // nil is the list; the last one repeats
		pools   int
		warns   bool
	}{
		"several pools":         {[]error{nil}, 2, false},
		"single pool":           {[]error{status(404)}, 0, false},
		"unavailable at first":  {[]error{status(503), status(429), status(500), status(401), errors.New("refused"), nil}, 2, false},
		"single after an error": {[]error{status(502), status(404)}, 0, false},
		"stays unavailable":     {[]error{status(503)}, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			var log bytes.Buffer
			names := listBackendPools(t.Context(), func(context.Context) ([]string, error) {
				err := tt.answers[min(asked, len(tt.answers)-1)]
				asked++
				if err != nil {
					return nil, err
				}
				return []string{"a", "b"}, nil
			}, slog.New(slog.NewTextHandler(&log, nil)))
			if warns := strings.Contains(log.String(), "restart this process"); len(names) != tt.pools || warns != tt.warns {
				t.Errorf("%s: pools %q, logged %q; want %d pools, and a warning: %t", name, names, &log, tt.pools, tt.warns)
			}
		})
	}
}

func TestPoolsWithUnusableNamesAreSkipped(t *testing.T) {
	long := strings.Repeat("p", 54)
	for name, tt := range map[string]struct {
		listed string
		served []string
		logged []string
		fails  string
	}{
		"all usable":     {`["http://b/cloudpools/a", "http://b/cloudpools/b"]`, []string{"a", "b"}, nil, ""},
		"long name":      {`["http://b/cloudpools/a", "http://b/cloudpools/` + long + `"]`, []string{"a"}, []string{long, "want at most 53"}, ""},
		"same object":    {`["http://b/cloudpools/a.b", "http://b/cloudpools/a-b", "http://b/cloudpools/c"]`, []string{"a-b", "c"}, []string{"a.b", "a-b"}, ""},
		"none is usable": {`["http://b/cloudpools/` + long + `"]`, nil, nil, "lists no pool that can be served"},
		"only one pool":  {`[]`, nil, nil, ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.listed) }))
		c, err := kubeaware.Parse([]byte(`{"apiServer": {"url": "https://k", "auth": {"kubeConfigPath": "/k"}}, "backend": {"url": "` + server.URL + `"}}`))
		must.NoError(t, err)
		var log bytes.Buffer
		pools, served, err := detectPools(t.Context(), &c, slog.New(slog.NewTextHandler(&log, nil)))
		server.Close()
		if tt.fails != "" {
			check.ErrorContains(t, err, tt.fails)
			continue
		}
		check.NoError(t, err)
		check.Not(t, !slices.Equal(tt.served, served), "%s: serves %q, want %q", name, served, tt.served)
		check.Is(t, len(tt.served) > 0, pools.Pools[0].Multi, name)
		check.Contains(t, log.String(), tt.logged...)
		check.Not(t, len(tt.logged) == 0 && log.Len() > 0, "%s: logged %s", name, &log)
	}
}
