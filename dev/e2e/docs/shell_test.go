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

// shell is a bash for the commands of a page. The commands run in sequence, so later ones see exports and background
// processes.
type shell struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	codes *bufio.Reader
	dir   string // for the output of the commands
	typed int
}

// startShell starts a shell in a directory.
func startShell(ctx context.Context, dir, logs string, env ...string) (*shell, error) {
	codes, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }() // the shell has its own
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, append(os.Environ(), env...), []*os.File{write}
	// The shell has its own process group. Its background processes then end with it.
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

// run types a command. It returns the output and the exit code.
func (s *shell) run(command string) (output string, code int, err error) {
	s.typed++
	file := filepath.Join(s.dir, strconv.Itoa(s.typed))
	// Descriptor 3 belongs to the shell. A background program must not keep it open.
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

// end kills the shell and all its background processes.
func (s *shell) end() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = s.cmd.Wait()
}
