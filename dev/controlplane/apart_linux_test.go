package controlplane

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAProcessIsKeptToItsCores(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "sleep", "60")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Wait() })
	var before, one, after unix.CPUSet
	if err := unix.SchedGetaffinity(command.Process.Pid, &before); err != nil {
		t.Fatal(err)
	}
	for core := range 1024 {
		if before.IsSet(core) {
			one.Set(core)
			break
		}
	}
	if err := keepTo(command.Process.Pid, &one); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedGetaffinity(command.Process.Pid, &after); err != nil {
		t.Fatal(err)
	}
	if after != one || before.Count() > 1 && after == before {
		t.Errorf("the process may run on %v, before on %v, want %v", after, before, one)
	}
}
