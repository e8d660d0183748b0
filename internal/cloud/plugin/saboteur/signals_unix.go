//go:build unix

package saboteur

import (
	"os"
	"os/exec"
	"syscall"
)

// kill ends this process as the kernel would for want of memory.
func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// stop stops this process.
func stop() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// fork leaves a child that outlives this process for a while, with its output.
func fork() {
	child := exec.Command("sleep", "30") //nolint:noctx // it is to outlive this process
	child.Stdout, child.Stderr = os.NewFile(1, "stdout"), os.NewFile(2, "stderr")
	if err := child.Start(); err != nil {
		panic(err)
	}
}
