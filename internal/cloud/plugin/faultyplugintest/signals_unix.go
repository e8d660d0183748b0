//go:build unix

package faultyplugintest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// killSelf ends this process with SIGKILL, as the kernel does when memory runs out.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// Freeze stops a child process and returns when it has stopped.
func Freeze(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for runtime.GOOS == "linux" {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		if _, after, _ := strings.Cut(string(raw), ") "); strings.HasPrefix(after, "T") {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// startOrphanedChild starts a child that outlives this process and inherits its output.
func startOrphanedChild() {
	child := exec.Command("sleep", "30") //nolint:noctx // it is to outlive this process
	child.Stdout, child.Stderr = os.NewFile(1, "stdout"), os.NewFile(2, "stderr")
	if err := child.Start(); err != nil {
		panic(err)
	}
}
