package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// PinToCoreHalves divides this machine's cores into two halves. The named processes and the calling process get the
// second half. All other running processes of the control plane get the first half. So the named processes do not
// compete with the others, as if they ran on separate machines. PinToCoreHalves returns the number of cores of each half,
// or zeros if there is only one core. The division lasts until the processes end.
func (c *Cluster) PinToCoreHalves(names ...string) (others, measured int, err error) {
	others = runtime.NumCPU() / 2
	measured = runtime.NumCPU() - others
	if others == 0 {
		return 0, 0, nil
	}
	var otherCores, measuredCores unix.CPUSet
	for core := range others {
		otherCores.Set(core)
	}
	for core := range measured {
		measuredCores.Set(others + core)
	}
	named := map[string]bool{}
	for _, name := range names {
		named[name] = true
	}
	var errs []error
	for _, p := range c.startedProcesses() {
		cores := &otherCores
		if named[p.Name()] {
			cores = &measuredCores
		}
		errs = append(errs, pinToCores(p.PID(), cores))
	}
	return others, measured, errors.Join(append(errs, pinToCores(os.Getpid(), &measuredCores))...)
}

// pinToCores restricts all threads of a process to the given cores. A new thread inherits the cores of the thread
// that created it. So pinToCores repeats until it finds no new thread.
func pinToCores(pid int, cores *unix.CPUSet) error {
	kept := map[int]bool{}
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		found := len(kept)
		for _, path := range threads {
			thread, err := strconv.Atoi(filepath.Base(path))
			if err != nil || kept[thread] {
				continue
			}
			kept[thread] = true
			if err := unix.SchedSetaffinity(thread, cores); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("pinning thread %d of process %d to its cores: %w", thread, pid, err)
			}
		}
		if len(kept) == found {
			return nil
		}
	}
}
