package external

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newProgram returns a program with this shell script.
func newProgram(t *testing.T, script string, timeout time.Duration) program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notices; touch oops")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	return program{path: path, service: "plugin", timeout: timeout, children: &orphans{}}
}

func TestProgramGetsItsArgumentsWithoutAShell(t *testing.T) {
	p := newProgram(t, `cd "$(dirname "$0")"; echo "$#:$1:$2" >>calls; echo '{"notices": []}'`, time.Minute)
	output, err := p.read(t.Context())
	must.NoError(t, err)
	check.Is(t, "{\"notices\": []}\n", string(output))
	must.NoError(t, p.acknowledge(t.Context(), "a b; $(touch oops) \n'"))
	calls := string(must.Get(os.ReadFile(filepath.Join(filepath.Dir(p.path), "calls")))(t))
	check.Is(t, "1:read:\n2:acknowledge:a b; $(touch oops) \n'\n", calls)
	must.Not(t, len(must.Get(filepath.Glob(filepath.Join(filepath.Dir(p.path), "oops")))(t)) > 0, "a shell ran a part of the path or of the ID")
}

// TestI7FailedProgramHasAClassAndNoDocument covers every end of a program that is not a document.
func TestI7FailedProgramHasAClassAndNoDocument(t *testing.T) {
	const short = 300 * time.Millisecond
	for _, tc := range []struct {
		name, script string
		timeout      time.Duration
		class        poll.Class
		says         string
	}{
		{"exit status", `echo '{"notices": []}'; echo "no token" >&2; exit 3`, time.Minute, poll.Unreachable, `exit status 3: "no token\n"`},
		{"hangs", `echo '{"notices": []}'; exec sleep 600`, short, poll.Timeout, "has not ended within 300ms"},
		{"its child hangs", `sleep 600 & echo '{"notices": []}'; wait`, short, poll.Timeout, "has not ended within 300ms"},
		{"endless output", `while :; do echo '{"notices": []}{"notices": []}{"notices": []}'; done`, time.Minute, poll.TooLarge, "more than 1048576 bytes"},
		{"endless errors", `yes oops | head -c 5000000 >&2; exit 1`, time.Minute, poll.Unreachable, "oops"},
		{"signal", `kill -9 $$`, time.Minute, poll.Unreachable, "signal: killed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			began := time.Now()
			output, err := newProgram(t, tc.script, tc.timeout).read(t.Context())
			var failed *poll.Error
			if !errors.As(err, &failed) || failed.Class != tc.class || !strings.Contains(err.Error(), tc.says) || output != nil || len(err.Error()) > 400 {
				t.Errorf("%q, %v; want class %s and %q", output, err, tc.class, tc.says)
			}
			if took := time.Since(began); took > 45*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	missing := program{path: "/nowhere/notices", service: "plugin", timeout: time.Minute, children: &orphans{}}
	check.ErrorContains(t, check.Err(missing.read(t.Context())), "plugin: /nowhere/notices read: fork/exec /nowhere/notices: no such file")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var failed *poll.Error
	if err := check.Err(missing.read(ended)); !errors.As(err, &failed) || failed.Class != poll.Canceled {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestProgramThatLeavesAChildIsRead covers a program that starts a daemon, which keeps its output open.
func TestProgramThatLeavesAChildIsRead(t *testing.T) {
	p := newProgram(t, `sleep 30 & echo '{"notices": []}'`, 20*time.Second)
	began := time.Now()
	output, err := p.read(t.Context())
	if took := time.Since(began); took > 15*time.Second || err != nil || string(output) != "{\"notices\": []}\n" {
		t.Errorf("%q, %v after %v", output, err, took)
	}
}

func TestI10BadLocationIsNamedWithItsValue(t *testing.T) {
	for says, o := range map[string][2]string{
		`name ""`:                      {"", "exec:/x"},
		`name "A"`:                     {"A", "exec:/x"},
		`name "-"`:                     {"-", "exec:/x"},
		`name "abcdefghijklmnopqrstu"`: {"abcdefghijklmnopqrstu", "exec:/x"},
		`name "gke"`:                   {"gke", "exec:/x"},
		`name "aws-queue"`:             {"aws-queue", "exec:/x"},
		`"exec:x"`:                     {"x", "exec:x"},
		`"/x"`:                         {"x", "/x"},
		`"http://"`:                    {"x", "http://"},
		`"ftp://x"`:                    {"x", "ftp://x"},
	} {
		check.ErrorContains(t, ValidateLocation(o[0], o[1]), says)
	}
	must.NoError(t, ValidateLocation("my-cloud-2", "exec:/opt/a b"))
	must.NoError(t, ValidateLocation("x", "https://plugin.example.com/notices?v=1"))
}
