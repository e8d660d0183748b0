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

const profileTime = 20 * time.Second

// profilingFlags returns flags that enable profiling of the API server. A normal measurement runs without these
// flags.
func profilingFlags() map[string][]string {
	return map[string][]string{controlplane.APIServer: {"--profiling=true"}}
}

// startProfile starts a CPU profile of the API server if Options.Profile is set. It returns a function that waits
// for the end of the profile.
func (s *stormBench) startProfile(ctx context.Context, name string) (wait func() error) {
	if s.o.Profile == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.fetchProfile(ctx, filepath.Join(s.o.Profile, name+".pprof")) }()
	return func() error { return <-done }
}

func (s *stormBench) fetchProfile(ctx context.Context, path string) error {
	client := s.Client().CoreV1().RESTClient()
	raw, err := client.Get().AbsPath("/debug/pprof/profile").
		Param("seconds", strconv.Itoa(int(profileTime/time.Second))).Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("profile of the API server: %w", err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// copyAuditLog copies the audit log into the folder Options.Profile.
func (s *stormBench) copyAuditLog(name string) error {
	if s.o.Profile == "" {
		return nil
	}
	from, err := os.Open(s.AuditLogFile())
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // read only
	to, err := os.OpenFile(filepath.Join(s.o.Profile, name+"-audit.jsonl"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close() // the error of the copy is returned
		return err
	}
	return to.Close()
}
