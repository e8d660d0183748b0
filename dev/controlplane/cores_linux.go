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

// SplitCores splits this machine's cores in two halves. The named processes and this one get the second half, all other
// running processes the first. So what is measured does not wait for the rest, as on separate machines. Apart returns
// the number of cores of each half, or zeros if there is only one core. The split lasts until the processes end.
func (c *Cluster) SplitCores(names ...string) (others, measured int, err error) {
	others = runtime.NumCPU() / 2
	measured = runtime.NumCPU() - others
	if others == 0 {
		return 0, 0, nil
	}
	var othersCores, measuredCores unix.CPUSet
	for core := range others {
		measuredCores.Set(core)
	}
	for core := range measured {
		othersCores.Set(others + core)
	}
	named := map[string]bool{}
	for _, name := range names {
		named[name] = true
	}
	var errs []error
	for _, p := range c.startedProcesses() {
		cores := &measuredCores
		if named[p.Name()] {
			cores = &othersCores
		}
		errs = append(errs, pinToCores(p.PID(), cores))
	}
	return others, measured, errors.Join(append(errs, pinToCores(os.Getpid(), &othersCores))...)
}

// pinToCores pins all threads of a process to cores. New threads inherit the cores of their creator. So it repeats until it
// finds no new thread.
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
