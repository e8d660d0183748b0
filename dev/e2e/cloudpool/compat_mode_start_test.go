package cloudpool_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
)

// ran holds the exit code and the output of a process.
type ran struct {
	code           int
	stdout, stderr string
}

// runCompatMode runs the compatibility mode until it exits on its own, which it must do.
func runCompatMode(t *testing.T, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := testbed.NewCommand(ctx, t, "slipway", append([]string{kubeaware.Tool}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Dir = t.TempDir()
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) || ctx.Err() != nil {
		t.Fatalf("%q: %v, %v\n%s", args, err, ctx.Err(), &stderr)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestI10CompatModeReportsStartErrorsInTheToolsWords checks that each failed start exits with 1. The last
// line of stderr begins with the original tool's message. The rest of that line is Slipway's.
func TestI10CompatModeReportsStartErrorsInTheToolsWords(t *testing.T) {
	t.Parallel()
	const (
		parsing  = "error: could not parse config: failed to parse proxy config: "
		invalid  = "error: could not parse config: invalid proxy configuration: proxy config: "
		client   = "error: failed to create kubernetes client: "
		backend  = `"backend": {"url": "http://127.0.0.1:1"}`
		withAuth = `{"apiServer": {"url": "https://127.0.0.1:1", "auth": `
	)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(kubeconfig, `{"apiVersion": "v1", "kind": "Config", "clusters": [
		{"name": "other", "cluster": {"server": "https://other:6443"}}, {"name": "bare", "cluster": {"server": "https://bare:6443"}},
		{"name": "unused", "cluster": {"server": "https://unused:6443"}}
	], "contexts": [{"name": "bare", "context": {"cluster": "bare", "user": "nobody"}}]}`)
	of := func(server string) string {
		return `{"apiServer": {"url": "` + server + `", "auth": {"kubeConfigPath": "` + kubeconfig + `"}}, ` + backend + `}`
	}
	for name, tt := range map[string]struct{ text, want string }{
		"no JSON":                 {`{"server": `, parsing + "unexpected end of JSON input"},
		"the README's commas":     {`{"server": {"timeout": "60s",},}`, parsing + "invalid character '}'"},
		"a number of one digit":   {`{"server": {"timeout": 5}}`, parsing + "server.timeout: 5: want a duration in quotes"},
		"a number":                {`{"backend": {"timeout": 60}}`, parsing + "backend.timeout: 60: want a duration in quotes"},
		"a bad duration":          {`{"apiServer": {"timeout": "soon"}}`, parsing + `apiServer.timeout: invalid duration "soon"`},
		"nothing":                 {`{}`, invalid + "apiServer: missing field: url"},
		"an unreadable address":   {`{"apiServer": {"url": "https://%zz"}}`, invalid + "apiServer: url: "},
		"no certificate":          {withAuth + `{}}}`, invalid + "apiServer: auth: missing value: clientCertPath"},
		"no key":                  {withAuth + `{"clientCertPath": "/c"}}}`, invalid + "apiServer: auth: missing value: clientKeyPath"},
		"no authority":            {withAuth + `{"clientCertPath": "/c", "clientKeyPath": "/k"}}}`, invalid + "apiServer: auth: missing value: caCertPath"},
		"no backend":              {withAuth + `{"kubeConfigPath": "/k"}}}`, invalid + "backend: missing field: url"},
		"an unreadable backend":   {withAuth + `{"kubeConfigPath": "/k"}}, "backend": {"url": "http://%zz"}}`, invalid + "backend: url: "},
		"a backend of no web":     {withAuth + `{"kubeConfigPath": "/k"}}, "backend": {"url": "ftp://b"}}`, invalid + `backend: url: "ftp://b"`},
		"no such kubeconfig":      {withAuth + `{"kubeConfigPath": "/none"}}, ` + backend + `}`, client + "failed to load kubeconfig /none: "},
		"no such certificate":     {withAuth + `{"clientCertPath": "/none", "clientKeyPath": "/k", "caCertPath": "/a"}}, ` + backend + `}`, client + "could not create kubernetes client: open /none: "},
		"another cluster's file":  {of("https://127.0.0.1:1"), client + "failed to load auth credentials from kubeconfig " + kubeconfig + ": kubeconfig does not contain a cluster with api server URL"},
		"a cluster of no context": {of("https://unused:6443"), client + "failed to load auth credentials from kubeconfig " + kubeconfig + ": kubeconfig does not contain a context for a cluster with api server URL"},
		"a context of no user":    {of("https://bare:6443"), client + "failed to load auth credentials from kubeconfig " + kubeconfig + ": kubeconfig does not contain a user named nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			write(file, tt.text)
			saysWhyNot(t, runCompatMode(t, "--config-file="+file), 1, tt.want)
		})
	}
	t.Run("no file", func(t *testing.T) {
		saysWhyNot(t, runCompatMode(t, "--config-file", "/none.json"), 1, "error: failed to open configuration file: open /none.json: ")
	})
}

// saysWhyNot checks the exit code of a process that could not start, and its last line.
func saysWhyNot(t *testing.T, got ran, code int, last string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
	if got.code != code || got.stdout != "" || !strings.HasPrefix(lines[len(lines)-1], last) || strings.Contains(got.stderr, "goroutine ") {
		t.Errorf("ended with %d, stdout %q, stderr:\n%s\nwant %d and %q", got.code, got.stdout, got.stderr, code, last)
	}
}

// TestCompatModeHasTheToolsFlags checks flags that end the process before it reads a configuration, with one dash and
// with two.
func TestCompatModeHasTheToolsFlags(t *testing.T) {
	t.Parallel()
	for _, dashes := range []string{"-", "--"} {
		got := runCompatMode(t, dashes+"config-file=/none.json", dashes+"version", dashes+"logtostderr", dashes+"v=8")
		version, says := strings.CutPrefix(got.stdout, "Version: ")
		if got.code != 0 || !says || len(strings.TrimSpace(version)) == 0 || strings.Count(got.stdout, "\n") != 1 || got.stderr != "" {
			t.Errorf("%sversion: %+v", dashes, got)
		}
		// Go's flag package exits in this way.
		got = runCompatMode(t, dashes+"prot=1")
		if !strings.HasPrefix(got.stderr, "flag provided but not defined: -prot\nUsage of "+kubeaware.Tool+":\n") || !strings.Contains(got.stderr, "-config-file") {
			t.Errorf("an unknown flag: %s; want what is wrong, and the usage", got.stderr)
		}
		saysWhyNot(t, got, 2, "error: flag provided but not defined: -prot")
		got = runCompatMode(t, dashes+"help")
		if got.code != 0 || got.stdout != "" || !strings.HasPrefix(got.stderr, "Usage of "+kubeaware.Tool+":\n") {
			t.Errorf("%shelp: %+v", dashes, got)
		}
	}
	saysWhyNot(t, runCompatMode(t, "--port=x"), 2, `error: invalid value "x" for flag -port: `)
	saysWhyNot(t, runCompatMode(t, "--port=65536"), 2, "error: -port: 65536: want 0 to 65535")
	saysWhyNot(t, runCompatMode(t), 1, "error: failed to open configuration file: open "+kubeaware.DefaultFile+": ")
}

// TestCompatModeEndsIfItsPortIsTaken occupies the port before the process starts.
func TestCompatModeEndsIfItsPortIsTaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "taken", 1, options{})
	taken, err := new(net.ListenConfig).Listen(f.ctx, "tcp", "127.0.0.1:0")
	f.check(err)
	t.Cleanup(func() { _ = taken.Close() })
	file := filepath.Join(t.TempDir(), "config.json")
	f.check(os.WriteFile(file, []byte(`{"apiServer": {"url": "`+f.RESTConfig().Host+`", "auth": {"kubeConfigPath": "`+f.Kubeconfig()+`"}},
		"backend": {"url": "`+f.server.URL+`"}}`), 0o600))
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	got := runCompatMode(t, "--config-file="+file, "--address=127.0.0.1", "--port="+port, "--metrics-listen=", "--namespace="+namespace)
	if got.code != 1 || !strings.Contains(got.stderr, "error: ") || !strings.Contains(got.stderr, "127.0.0.1:"+port) || !strings.Contains(got.stderr, "address already in use") {
		t.Errorf("ended with %d:\n%s", got.code, got.stderr)
	}
}
