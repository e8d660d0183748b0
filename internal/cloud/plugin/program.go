package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slipway-dev/slipway/internal/cloud/plugin/protocol"
)

// outputGracePeriod is how long a plugin's output is read after its exit, if a child process keeps it open.
const outputGracePeriod = time.Second

// program is the process of a plugin. It implements go-plugin's runner.Runner. The default runner inherits environment
// and standard input, does not kill the plugin's children, and waits while one keeps the output open.
type program struct {
	cmd    *exec.Cmd
	memory uint64
	lines  *lineLog
	proc   atomic.Pointer[os.Process] // nil until it is started

	stdin          *os.File // standard input; it closes when Slipway exits for any reason
	stdout, stderr *os.File
	printed        outputPrefix

	read     chan struct{} // closed at the end of standard output
	exited   chan struct{} // closed when the process has exited
	err      error         // exit error; set before ended is closed
	finished chan struct{} // closed after ended, when the output was read or outputGracePeriod has passed
}

// newProgram prepares a program with the environment env.
func newProgram(path string, env []string, memory uint64, lines *lineLog) *program {
	cmd := exec.Command(path) //nolint:noctx // Kill ends it
	r := &program{cmd: cmd, memory: memory, lines: lines}
	r.read, r.exited, r.finished = make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.cmd.Env = env
	setProcessGroup(r.cmd)
	return r
}

// Start implements runner.Runner.
func (r *program) Start(context.Context) error {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	pipe := func(to, from **os.File) (err error) {
		*from, *to, err = os.Pipe()
		return err
	}
	var stdin, stdout, stderr *os.File
	if err := errors.Join(pipe(&r.stdin, &stdin), pipe(&stdout, &r.stdout), pipe(&stderr, &r.stderr)); err != nil {
		r.closePipes()
		return fmt.Errorf("pipes for plugin %s: %w", r.cmd.Path, err)
	}
	theirs = []*os.File{stdin, stdout, stderr}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = stdin, stdout, stderr
	if err := r.cmd.Start(); err != nil {
		r.closePipes()
		return err
	}
	r.proc.Store(r.cmd.Process)
	if err := limitMemory(r.cmd.Process.Pid, r.memory); err != nil {
		r.lines.log.Warn("limiting the plugin's memory failed", "err", err)
	}
	logged := make(chan struct{})
	go func() { //nolint:contextcheck // logs while the plugin runs
		defer close(logged)
		r.lines.logLines(r.stderr)
	}()
	go func() {
		r.err = r.cmd.Wait()
		close(r.exited)
		r.awaitOutput(logged)
		close(r.finished)
		r.closePipes()
	}()
	return nil
}

// awaitOutput waits until both outputs were read, for at most outputGracePeriod.
func (r *program) awaitOutput(logged <-chan struct{}) {
	timeout := time.After(outputGracePeriod)
	for _, output := range []<-chan struct{}{logged, r.read} {
		select {
		case <-output:
		case <-timeout:
			return
		}
	}
}

func (r *program) closePipes() {
	for _, f := range []*os.File{r.stdin, r.stdout, r.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Wait implements runner.Runner.
func (r *program) Wait(ctx context.Context) error {
	select {
	case <-r.exited:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill implements runner.Runner. It kills the plugin and its children.
func (r *program) Kill(context.Context) error {
	select {
	case <-r.exited:
		return nil
	default:
	}
	p := r.proc.Load()
	if p == nil {
		return nil
	}
	if err := killGroup(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing plugin %s: %w", r.cmd.Path, err)
	}
	return nil
}

// Stdout implements runner.Runner. The beginning of the output is kept for explain.
func (r *program) Stdout() io.ReadCloser {
	return &output{program: r}
}

// output reads the standard output of a program, in a single goroutine.
type output struct {
	program *program
	isRead  bool
}

// Read implements io.Reader.
func (o *output) Read(into []byte) (int, error) {
	n, err := o.program.stdout.Read(into)
	_, _ = o.program.printed.Write(into[:n])
	if err != nil && !o.isRead {
		o.isRead = true
		close(o.program.read)
	}
	return n, err
}

// Close implements io.Closer.
func (o *output) Close() error { return o.program.stdout.Close() }

// Stderr implements runner.Runner. The program itself reads standard error.
func (*program) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (r *program) Name() string { return r.cmd.Path }

// Diagnose implements runner.Runner. It is empty; see explain.
func (*program) Diagnose(context.Context) string { return "" }

// ID implements runner.Runner.
func (r *program) ID() string {
	p := r.proc.Load()
	if p == nil {
		return ""
	}
	return strconv.Itoa(p.Pid)
}

// PluginToHost implements runner.Runner.
func (*program) PluginToHost(network, address string) (hostNetwork, hostAddress string, err error) {
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (*program) HostToPlugin(network, address string) (pluginNetwork, pluginAddress string, err error) {
	return network, address, nil
}

// explainStartFailure returns an error that says why a program is not a working plugin and how to fix it.
func (r *program) explainStartFailure(err error) error {
	path := r.cmd.Path
	var refused *configError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("plugin %s: refused its configuration: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("plugin %s: no permission to run it (is its file system mounted noexec?): %w", path, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("plugin %s: not a program for this platform: want one for %s/%s: %w", path, runtime.GOOS, runtime.GOARCH, err)
	case r.proc.Load() == nil:
		return fmt.Errorf("plugin %s: %w", path, err)
	}
	line := r.awaitFirstLine()
	parts := strings.Split(line, "|")
	if version, failed := strconv.Atoi(parts[min(1, len(parts)-1)]); len(parts) >= 4 && failed == nil && version != protocol.Version {
		return fmt.Errorf("plugin %s: speaks version %d of the plugin protocol: want version %d: build the plugin "+
			"with the package plugin of this Slipway's version", path, version, protocol.Version)
	}
	if len(parts) >= 5 && parts[4] != "grpc" {
		return fmt.Errorf("plugin %s: speaks %q: want grpc: it is a plugin of another program", path, parts[4])
	}
	if len(parts) >= 4 {
		return fmt.Errorf("plugin %s: started, then failed: %w%s", path, err, r.lines.lastOutput())
	}
	what := "printed nothing"
	if line != "" {
		what = fmt.Sprintf("printed %q", line)
	}
	select {
	case <-r.exited:
		what += " and exited (" + r.exitStatus() + ")"
	default:
		what += " so far"
	}
	return fmt.Errorf("plugin %s: not a plugin of Slipway: it %s instead of its address: see "+
		"docs/writing-a-plugin.md%s", path, what, r.lines.lastOutput())
}

// awaitFirstLine returns the first line of output. If it is not a handshake, it waits up to outputGracePeriod for the exit, because
// the output may end slightly earlier.
func (r *program) awaitFirstLine() string {
	if line := r.printed.firstLine(); strings.Count(line, "|") >= 3 {
		return line
	}
	select {
	case <-r.exited:
		<-r.finished
	case <-time.After(outputGracePeriod):
	}
	return r.printed.firstLine()
}

// exitStatus describes how a process exited.
func (r *program) exitStatus() string {
	if r.err != nil {
		return r.err.Error()
	}
	return "exit status 0"
}

// outputPrefix keeps the beginning of a program's output.
type outputPrefix struct {
	mu   sync.Mutex
	text []byte
}

const maxOutputPrefix = 4096

// Write implements io.Writer.
func (o *outputPrefix) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p[:min(len(p), maxOutputPrefix-len(o.text))]...)
	return len(p), nil
}

func (o *outputPrefix) firstLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	line, _, _ := strings.Cut(string(o.text), "\n")
	return strings.TrimSpace(line)
}

// inheritedEnvironment lists the variables that every program needs to find its files and to reach the network.
var inheritedEnvironment = []string{
	"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"SystemRoot", "TEMP", "TMP", "USERPROFILE",
}

// pluginEnvironment returns the environment of a plugin.
func pluginEnvironment(more []string, memory uint64) []string {
	var env []string
	for _, name := range slices.Concat(inheritedEnvironment, more) {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	if memory > 0 && !slices.Contains(more, "GOMEMLIMIT") {
		env = append(env, fmt.Sprintf("GOMEMLIMIT=%d", memory/10*8)) // garbage collection starts before the limit
	}
	return env
}
