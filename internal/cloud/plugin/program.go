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

// pipeGrace is how long a plugin's output is still read after its end, when a child of its own keeps it open.
const pipeGrace = time.Second

// program is the process of a plugin. It implements go-plugin's runner.Runner, whose own one inherits the environment and
// standard input, does not end the plugin's children, and waits as long as one of them holds its output open.
type program struct {
	cmd    *exec.Cmd
	memory uint64
	lines  *lineLog
	proc   atomic.Pointer[os.Process] // nil until it is started

	alive          *os.File // standard input: closed when Slipway ends, however that happens
	stdout, stderr *os.File
	said           opening

	read     chan struct{} // closed when standard output was read to its end
	ended    chan struct{} // closed when the process has ended
	err      error         // how; set before ended is closed
	finished chan struct{} // closed after ended, when what the process printed was read too, or pipeGrace later
}

// newProgram makes ready a program whose environment is env.
func newProgram(path string, env []string, memory uint64, lines *lineLog) *program {
	cmd := exec.Command(path) //nolint:noctx // Kill ends it
	r := &program{cmd: cmd, memory: memory, lines: lines}
	r.read, r.ended, r.finished = make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.cmd.Env = env
	ownGroup(r.cmd)
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
	if err := errors.Join(pipe(&r.alive, &stdin), pipe(&stdout, &r.stdout), pipe(&stderr, &r.stderr)); err != nil {
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
		r.lines.log.Warn("the plugin's memory is not limited", "err", err)
	}
	logged := make(chan struct{})
	go func() { //nolint:contextcheck // it logs for as long as the plugin runs
		defer close(logged)
		r.lines.copy(r.stderr)
	}()
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
		r.awaitOutput(logged)
		close(r.finished)
		r.closePipes()
	}()
	return nil
}

// awaitOutput waits until both outputs were read, for at most pipeGrace.
func (r *program) awaitOutput(logged <-chan struct{}) {
	timeout := time.After(pipeGrace)
	for _, output := range []<-chan struct{}{logged, r.read} {
		select {
		case <-output:
		case <-timeout:
			return
		}
	}
}

func (r *program) closePipes() {
	for _, f := range []*os.File{r.alive, r.stdout, r.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Wait implements runner.Runner.
func (r *program) Wait(ctx context.Context) error {
	select {
	case <-r.ended:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill implements runner.Runner: it ends the plugin and its children at once.
func (r *program) Kill(context.Context) error {
	select {
	case <-r.ended:
		return nil
	default:
	}
	p := r.proc.Load()
	if p == nil {
		return nil
	}
	if err := killGroup(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending plugin %s: %w", r.cmd.Path, err)
	}
	return nil
}

// Stdout implements runner.Runner. What is read is remembered for explain.
func (r *program) Stdout() io.ReadCloser {
	return &output{program: r}
}

// output reads the standard output of a program. One goroutine reads it.
type output struct {
	program *program
	isRead  bool
}

// Read implements io.Reader.
func (o *output) Read(into []byte) (int, error) {
	n, err := o.program.stdout.Read(into)
	_, _ = o.program.said.Write(into[:n])
	if err != nil && !o.isRead {
		o.isRead = true
		close(o.program.read)
	}
	return n, err
}

// Close implements io.Closer.
func (o *output) Close() error { return o.program.stdout.Close() }

// Stderr implements runner.Runner: it is read here.
func (*program) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements runner.Runner.
func (r *program) Name() string { return r.cmd.Path }

// Diagnose implements runner.Runner: explain does it.
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

// explain says why a program did not become a plugin, and what to do.
func (r *program) explain(err error) error {
	path := r.cmd.Path
	var refused *configError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("plugin %s: refuses its configuration: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("plugin %s: may not be run by this user (is its file system mounted noexec?): %w", path, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("plugin %s: is no program for this machine: want one for %s/%s: %w", path, runtime.GOOS, runtime.GOARCH, err)
	case r.proc.Load() == nil:
		return fmt.Errorf("plugin %s: %w", path, err)
	}
	line := r.handshake()
	parts := strings.Split(line, "|")
	if version, failed := strconv.Atoi(parts[min(1, len(parts)-1)]); len(parts) >= 4 && failed == nil && version != protocol.Version {
		return fmt.Errorf("plugin %s: speaks version %d of the plugin protocol, and this Slipway speaks %d: build the plugin "+
			"with the package plugin of this Slipway's version", path, version, protocol.Version)
	}
	if len(parts) >= 5 && parts[4] != "grpc" {
		return fmt.Errorf("plugin %s: speaks %q where gRPC is wanted: it is a plugin of another program", path, parts[4])
	}
	if len(parts) >= 4 {
		return fmt.Errorf("plugin %s: started, and then: %w%s", path, err, r.lines.lastWords())
	}
	what := "printed nothing"
	if line != "" {
		what = fmt.Sprintf("printed %q", line)
	}
	select {
	case <-r.ended:
		what += " and ended (" + r.ending() + ")"
	default:
		what += " so far"
	}
	return fmt.Errorf("plugin %s: is no plugin of Slipway: it %s, where a plugin says where it listens: see "+
		"docs/writing-a-plugin.md%s", path, what, r.lines.lastWords())
}

// handshake returns the first line that the program has printed. If that is not a handshake, it waits up to pipeGrace for the program to end,
// since its output may end a little before it does.
func (r *program) handshake() string {
	if line := r.said.line(); strings.Count(line, "|") >= 3 {
		return line
	}
	select {
	case <-r.ended:
		<-r.finished
	case <-time.After(pipeGrace):
	}
	return r.said.line()
}

// ending says how a process that has ended did.
func (r *program) ending() string {
	if r.err != nil {
		return r.err.Error()
	}
	return "exit status 0"
}

// opening keeps the beginning of what a program prints.
type opening struct {
	mu   sync.Mutex
	text []byte
}

const maxOpening = 4096

// Write implements io.Writer.
func (o *opening) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p[:min(len(p), maxOpening-len(o.text))]...)
	return len(p), nil
}

func (o *opening) line() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	line, _, _ := strings.Cut(string(o.text), "\n")
	return strings.TrimSpace(line)
}

// everyday are the variables that a program needs to find its files and to reach the world.
var everyday = []string{
	"PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"SystemRoot", "TEMP", "TMP", "USERPROFILE",
}

// environment gives the variables that a plugin gets.
func environment(more []string, memory uint64) []string {
	var env []string
	for _, name := range slices.Concat(everyday, more) {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	if memory > 0 && !slices.Contains(more, "GOMEMLIMIT") {
		env = append(env, fmt.Sprintf("GOMEMLIMIT=%d", memory/10*8)) // a program in Go collects its garbage before the limit
	}
	return env
}
