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

// Apart divides this machine's cores: the processes that run now are kept to the first half, but for those that are named,
// which get the other half, together with this process. What is measured in those does not wait then for what is only the
// scene of it, as it would not in a cluster, where they are on machines of their own. It returns how many cores each side
// has; where there is only one, nothing is divided and both are zero. It lasts until the processes end.
func (c *Cluster) Apart(names ...string) (scene, measured int, err error) {
	scene = runtime.NumCPU() / 2
	measured = runtime.NumCPU() - scene
	if scene == 0 {
		return 0, 0, nil
	}
	var here, there unix.CPUSet
	for core := range scene {
		there.Set(core)
	}
	for core := range measured {
		here.Set(scene + core)
	}
	named := map[string]bool{}
	for _, name := range names {
		named[name] = true
	}
	var errs []error
	for _, p := range c.started() {
		cores := &there
		if named[p.Name()] {
			cores = &here
		}
		errs = append(errs, keepTo(p.PID(), cores))
	}
	return scene, measured, errors.Join(append(errs, keepTo(os.Getpid(), &here))...)
}

// keepTo keeps all threads of a process to some cores. Threads that come later are where the one is that made them, so
// that it is over when a look finds none that is not known.
func keepTo(pid int, cores *unix.CPUSet) error {
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
				return fmt.Errorf("keeping thread %d of process %d to its cores: %w", thread, pid, err)
			}
		}
		if len(kept) == found {
			return nil
		}
	}
}
