package storm

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// profiled is how much of a storm is profiled.
const profiled = 20 * time.Second

// profilingFlags let the API server be profiled. It is not while it is measured in earnest.
func profilingFlags() map[string][]string {
	return map[string][]string{controlplane.APIServer: {"--profiling=true"}}
}

// profile profiles the API server for a while, if that is asked for, and returns what waits for its end.
func (s *scene) profile(ctx context.Context, name string) (wait func() error) {
	if s.o.Profile == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.fetchProfile(ctx, filepath.Join(s.o.Profile, name+".pprof")) }()
	return func() error { return <-done }
}

func (s *scene) fetchProfile(ctx context.Context, path string) error {
	client := s.Client().CoreV1().RESTClient()
	raw, err := client.Get().AbsPath("/debug/pprof/profile").
		Param("seconds", strconv.Itoa(int(profiled/time.Second))).Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("profile of the API server: %w", err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// keepAudit keeps the audit log for those who want to know more than the table says.
func (s *scene) keepAudit(name string) error {
	if s.o.Profile == "" {
		return nil
	}
	from, err := os.Open(s.AuditLog())
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // It was only read.
	to, err := os.OpenFile(filepath.Join(s.o.Profile, name+"-audit.jsonl"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close() // The copy's failure is told.
		return err
	}
	return to.Close()
}
