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

// kill ends this process as the kernel would for want of memory.
func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// stop stops this process.
func stop() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// Freeze stops a process of ours, and returns when it has stopped.
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

// fork leaves a child that outlives this process for a while, with its output.
func fork() {
	child := exec.Command("sleep", "30") //nolint:noctx // it is to outlive this process
	child.Stdout, child.Stderr = os.NewFile(1, "stdout"), os.NewFile(2, "stderr")
	if err := child.Start(); err != nil {
		panic(err)
	}
}
