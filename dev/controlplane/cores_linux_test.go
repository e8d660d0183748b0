package controlplane

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestPinToCoresRestrictsProcess(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "sleep", "60")
	must.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Wait() })
	var before, oneCore, after unix.CPUSet
	must.NoError(t, unix.SchedGetaffinity(command.Process.Pid, &before))
	for core := range 1024 {
		if before.IsSet(core) {
			oneCore.Set(core)
			break
		}
	}
	must.NoError(t, pinToCores(command.Process.Pid, &oneCore))
	must.NoError(t, unix.SchedGetaffinity(command.Process.Pid, &after))
	if after != oneCore || before.Count() > 1 && after == before {
		t.Errorf("the process runs on cores %v, before on %v, want %v", after, before, oneCore)
	}
}
