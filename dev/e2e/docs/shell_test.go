//go:build unix

package docs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// shell is a bash that a page's commands are typed into, one after another, so that what one exports or leaves running is
// there for the next.
type shell struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	codes *bufio.Reader
	dir   string // of what the commands print
	typed int
}

// startShell starts one in a directory.
func startShell(ctx context.Context, dir, logs string, env ...string) (*shell, error) {
	codes, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }() // the shell has its own
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, append(os.Environ(), env...), []*os.File{write}
	// A group of its own, so that what is left running in the background ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &shell{cmd: cmd, in: in, codes: bufio.NewReader(codes), dir: logs}, nil
}

// run types a command, and returns what it printed and the code that it ended with.
func (s *shell) run(command string) (output string, code int, err error) {
	s.typed++
	file := filepath.Join(s.dir, strconv.Itoa(s.typed))
	// The third descriptor is the shell's own: a program in the background must not keep it.
	_, err = fmt.Fprintf(s.in, "{ %s\n} </dev/null >'%s' 2>&1 3>&-\necho $? >&3\n", command, file)
	if err != nil {
		return "", 0, err
	}
	line, err := s.codes.ReadString('\n')
	raw, read := os.ReadFile(file)
	if err = errors.Join(err, read); err != nil {
		return string(raw), 0, fmt.Errorf("the shell has ended: %w", err)
	}
	code, err = strconv.Atoi(strings.TrimSpace(line))
	return string(raw), code, err
}

// end ends the shell, with all that it has left running.
func (s *shell) end() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = s.cmd.Wait()
}
