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

	mu   sync.Mutex // guards what follows
	id   identity
	done chan struct{} // closed when the process has ended
}

// identity tells a process from a later one that was given the same number.
type identity struct {
	PID int `json:"pid"`
	// Started is when the process started, in the terms of the operating system; only compared.
	Started string `json:"started"`
}

// alive reports whether the process still runs, be it paused.
func (id identity) alive() bool {
	started, running := processStart(id.PID)
	return running && started == id.Started
}

// signal sends a signal to the process, unless it has ended.
func (id identity) signal(s syscall.Signal) error {
	if !id.alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(id.PID, s)
}

// Process returns the process of that name (the constants Etcd, APIServer, ControllerManager, Scheduler and Kwok, or a
// name given to Run), or nil.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// started lists the processes, those that started last first.
func (c *Cluster) started() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Process
	for _, recorded := range slices.Backward(c.state.Processes) {
		all = append(all, c.processes[recorded.Command.Name])
	}
	return all
}

// Command is a program that Run keeps running next to a control plane.
type Command struct {
	// Name is the process's name, of the caller's choice.
	Name string `json:"name"`
	// Path and Args are the program and what follows its name; the working directory is the control plane's.
	Path string   `json:"path"`
	Args []string `json:"args"`
	// Env is added to Environment.
	Env []string `json:"env,omitempty"`
	// ReadyURL answers 200 once the program is ready; empty when nothing needs to wait for that. HTTPS needs a
	// certificate of the control plane's authority.
	ReadyURL string `json:"readyURL,omitempty"`
}

// Run starts one more process that belongs to the control plane, and waits until it is ready: it is in Process, ends
// with Stop, outlives this process if the control plane is detached, and writes to logs/NAME.log. It is how an emulator
// is kept running next to a control plane.
func (c *Cluster) Run(ctx context.Context, command Command) (*Process, error) {
	p := &Process{command: command, detached: c.state.Detached, cluster: c}
	if err := c.reserve(p); err != nil {
		return nil, err
	}
	if err := p.start(); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.processes, p.Name())
		return nil, err
	}
	if err := c.record(p); err != nil {
		return nil, err
	}
	return p, c.waitProcess(ctx, p)
}

// reserve takes the process's name.
func (c *Cluster) reserve(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[p.Name()] != nil {
		return fmt.Errorf("starting %s: a process of that name is there already", p.Name())
	}
	c.processes[p.Name()] = p
	return nil
}

// start starts the process and makes p stand for it.
func (p *Process) start() error {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", p.Name(), err)
	}
	defer func() { _ = log.Close() }() // The process has its own.
	// No context: the process lives until it is told to end.
	cmd := exec.Command(p.command.Path, p.command.Args...) //nolint:gosec,noctx // starting programs is what this is for
	cmd.Dir = p.cluster.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = Environment(p.cluster.dir)
	if often := os.Getenv(GCVariable); often != "" && isComponent(p.Name()) {
		cmd.Env = append(cmd.Env, "GOGC="+often)
	}
	cmd.Env = append(cmd.Env, p.command.Env...)
	cmd.SysProcAttr = processAttributes(p.detached)
	if err := startOnLastingThread(cmd); err != nil {
		return fmt.Errorf("starting %s: %w", p.Name(), err)
	}
	started, _ := processStart(cmd.Process.Pid)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id = identity{PID: cmd.Process.Pid, Started: started}
	p.done = make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait() // How it ended is in its log.
		close(done)
	}(p.done)
	return nil
}

// Environment returns the few variables that a program gets. The others of this process, such as proxies, kubeconfigs and
// settings of the program itself, must not change what it does.
func Environment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir()}
}

// startOnLastingThread starts a command from a thread that lives as long as this process. On Linux the death signal of
// a child is sent when the *thread* that started it ends, and the threads of a Go program come and go.
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

// Name is the process's name, such as "kube-apiserver".
func (p *Process) Name() string { return p.command.Name }

// PID is the process's number, of its latest start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id.PID
}

// Alive reports whether the process runs; a paused one does.
func (p *Process) Alive() bool { return p.identity().alive() }

// LogFile is where the process writes.
func (p *Process) LogFile() string { return filepath.Join(p.cluster.dir, logDir, p.Name()+".log") }

func (p *Process) identity() identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Pause stops the process in its tracks, as a machine that stalls would: connections stay open and nothing answers. It
// returns once every thread stands still, which is a little after the signal was sent.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP, "pausing"); err != nil {
		return err
	}
	ticker := time.NewTicker(pausePoll)
	defer ticker.Stop()
	for !processStopped(p.PID()) {
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

// pausePoll is the pause between two looks at whether a process has stopped.
const pausePoll = time.Millisecond

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT, "resuming") }

// Kill ends the process at once, without a chance to clean up, and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL, "killing"); err != nil {
		return err
	}
	<-p.Exited()
	return nil
}

// end is Kill that takes a process already gone as a success.
func (p *Process) end() error {
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *Process) signal(s syscall.Signal, doing string) error {
	if err := p.identity().signal(s); err != nil {
		return fmt.Errorf("%s %s (process %d): %w", doing, p.Name(), p.PID(), err)
	}
	return nil
}

// Restart ends the process, if it still runs, starts it again with the same command line on the same data, and waits
// until it is ready.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.end(); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	if err := p.cluster.record(p); err != nil {
		return err
	}
	return p.cluster.waitProcess(ctx, p)
}

// Exited is closed when the process has ended. One that is started again has another.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil { // Found by Open, so not a child whose end could be waited for.
		p.done = make(chan struct{})
		go func(id identity, done chan struct{}) {
			defer close(done)
			ticker := time.NewTicker(readyPoll)
			defer ticker.Stop()
			for id.alive() {
				<-ticker.C
			}
		}(p.id, p.done)
	}
	return p.done
}

// lastWords is the end of the process's log.
func (p *Process) lastWords() string {
	const most = 4096
	f, err := os.Open(p.LogFile())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // It was only read.
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	words, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(words))
}
