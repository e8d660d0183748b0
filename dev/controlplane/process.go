package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Process is one process of a control plane. Its methods may be called concurrently.
type Process struct {
	command  Command
	detached bool
	cluster  *Cluster

	mu   sync.Mutex // guards the following fields
	id   processIdentity
	done chan struct{} // closed when the process has ended
	exit error         // of an ended process that this program started
}

// processIdentity holds the PID and start time of a process. It distinguishes the process from a later one that has
// the same PID.
type processIdentity struct {
	PID int `json:"pid"`
	// Started is the operating system's notation of the start time. It is only compared.
	Started string `json:"started"`
}

// isAlive reports whether the process exists. A paused process is alive.
func (id processIdentity) isAlive() bool {
	started, running := readProcessStart(id.PID)
	return running && started == id.Started
}

// signal sends a signal to the process. If the process has ended, it returns os.ErrProcessDone.
func (id processIdentity) signal(s syscall.Signal) error {
	if !id.isAlive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(id.PID, s)
}

// Process returns the process with the given name, or nil. Names are Etcd, APIServer, ControllerManager, Scheduler,
// Kwok, and the names given to StartProcess.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// startedProcesses returns the processes in reverse order of their start.
func (c *Cluster) startedProcesses() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Process
	for _, recorded := range slices.Backward(c.state.Processes) {
		all = append(all, c.processes[recorded.Command.Name])
	}
	return all
}

// Command is a program that StartProcess runs as part of a control plane.
type Command struct {
	// Name is a name of the caller's choice.
	Name string `json:"name"`
	// Path and Args are the program and its arguments. The working directory is the control plane's.
	Path string   `json:"path"`
	Args []string `json:"args"`
	// Env is added to MinimalEnvironment.
	Env []string `json:"env,omitempty"`
	// ReadyURL answers 200 once the program is ready. Empty means no wait. An HTTPS server needs a certificate of the
	// control plane's authority.
	ReadyURL string `json:"readyURL,omitempty"`
}

// StartProcess starts a process that belongs to the control plane, such as an emulator, and waits until it is ready.
// Cluster.Process returns this process, and Stop ends it. If the control plane is detached, the process continues
// after the caller has ended. Its output goes to logs/NAME.log.
func (c *Cluster) StartProcess(ctx context.Context, command Command) (*Process, error) {
	p := &Process{command: command, detached: c.state.Detached, cluster: c}
	if err := c.registerProcess(p); err != nil {
		return nil, err
	}
	if err := p.startProcess(); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.processes, p.Name())
		return nil, err
	}
	if err := c.recordProcess(p); err != nil {
		return nil, err
	}
	return p, c.awaitProcessReady(ctx, p)
}

func (c *Cluster) registerProcess(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[p.Name()] != nil {
		return fmt.Errorf("starting %s: a process with this name exists already", p.Name())
	}
	c.processes[p.Name()] = p
	return nil
}

// startProcess starts the process and stores its PID and start time.
func (p *Process) startProcess() error {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.Name(), err)
	}
	defer func() { _ = log.Close() }() // the process has its own handle
	// No context: the process lives until it is stopped.
	cmd := exec.Command(p.command.Path, p.command.Args...) //nolint:gosec,noctx // this package starts programs
	cmd.Dir = p.cluster.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = MinimalEnvironment(p.cluster.dir)
	if often := os.Getenv(GCPercentVariable); often != "" && isComponent(p.Name()) {
		cmd.Env = append(cmd.Env, "GOGC="+often)
	}
	cmd.Env = append(cmd.Env, p.command.Env...)
	cmd.SysProcAttr = processAttributes(p.detached)
	if err := startOnLastingThread(cmd); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name(), err)
	}
	started, _ := readProcessStart(cmd.Process.Pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id = processIdentity{PID: cmd.Process.Pid, Started: started}
	p.done = make(chan struct{})
	go func(done chan struct{}) {
		exit := cmd.Wait()
		p.mu.Lock()
		p.exit = exit
		p.mu.Unlock()
		close(done)
	}(p.done)
	return nil
}

// MinimalEnvironment returns the few environment variables that a program needs. Other variables of this process,
// such as proxies and kubeconfigs, could change how the program behaves.
func MinimalEnvironment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir()}
}

// startOnLastingThread starts a command on a thread that lives as long as this process. On Linux, a child gets its
// death signal when the thread that started it ends. Go can end other threads at any time.
func startOnLastingThread(cmd *exec.Cmd) error {
	result := make(chan error)
	lastingThread() <- func() { result <- cmd.Start() }
	return <-result
}

var lastingThread = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// Name returns the process's name, such as "kube-apiserver".
func (p *Process) Name() string { return p.command.Name }

// PID returns the process ID of the latest start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id.PID
}

// IsAlive reports whether the process exists. A paused process is alive.
func (p *Process) IsAlive() bool { return p.identity().isAlive() }

// LogFile returns the path of the process's log.
func (p *Process) LogFile() string { return filepath.Join(p.cluster.dir, logDir, p.Name()+".log") }

func (p *Process) identity() processIdentity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Pause stops the process with SIGSTOP. The process keeps its connections open but does not respond. Pause returns
// when every thread has stopped, shortly after the signal.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP, "pausing"); err != nil {
		return err
	}
	ticker := time.NewTicker(pausePollInterval)
	defer ticker.Stop()
	for !isProcessStopped(p.PID()) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("pausing %s (process %d): %w", p.Name(), p.PID(), ctx.Err())
		case <-p.Exited():
			return fmt.Errorf("pausing %s (process %d): %w", p.Name(), p.PID(), os.ErrProcessDone)
		case <-ticker.C:
		}
	}
	return nil
}

// pausePollInterval is the time between two checks of Pause whether a process has stopped.
const pausePollInterval = time.Millisecond

// Resume continues a paused process.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT, "resuming") }

// Kill kills the process with SIGKILL, and returns when the process has ended.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL, "killing"); err != nil {
		return err
	}
	<-p.Exited()
	return nil
}

// killIfAlive kills the process. If the process has ended already, killIfAlive succeeds.
func (p *Process) killIfAlive() error {
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *Process) signal(s syscall.Signal, action string) error {
	if err := p.identity().signal(s); err != nil {
		return fmt.Errorf("%s %s (process %d): %w", action, p.Name(), p.PID(), err)
	}
	return nil
}

// Restart starts the process again with the same command line and data, and waits until it is ready. It first kills
// the process if it is running.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.killIfAlive(); err != nil {
		return err
	}
	if err := p.startProcess(); err != nil {
		return err
	}
	if err := p.cluster.recordProcess(p); err != nil {
		return err
	}
	return p.cluster.awaitProcessReady(ctx, p)
}

// Exited returns a channel that is closed when the process ends. After a restart, Exited returns a new channel.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil { // Open found the process, so it is not a child and cannot be waited for.
		p.done = make(chan struct{})
		go func(id processIdentity, done chan struct{}) {
			defer close(done)
			ticker := time.NewTicker(readyPollInterval)
			defer ticker.Stop()
			for id.isAlive() {
				<-ticker.C
			}
		}(p.id, p.done)
	}
	return p.done
}

// ExitError returns how a process that this program started has ended. It is nil if the process is running, or has ended with
// status 0.
func (p *Process) ExitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// readLogTail returns the last lines of the process's log.
func (p *Process) readLogTail() string {
	const maxBytes = 4096
	f, err := os.Open(p.LogFile())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // read only
	if info, err := f.Stat(); err == nil && info.Size() > maxBytes {
		if _, err := f.Seek(-maxBytes, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	words, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(words))
}
