package controlplane

import (
	"errors"
	"fmt"
	"syscall"
)

// lowest is the lowest priority that there is, see setpriority(2).
const lowest = 19

// Yield has the processes that run now give way to all others on this machine, for as long as they run: what is measured
// next to them then waits little for them, as if they were on machines of their own, where they are in a cluster.
func (c *Cluster) Yield() error {
	var errs []error
	for _, p := range c.started() {
		// Each has a process group of its own, which is all of its threads; by its number alone it would be the first of them.
		if err := syscall.Setpriority(syscall.PRIO_PGRP, p.PID(), lowest); err != nil {
			errs = append(errs, fmt.Errorf("lowering the priority of %s: %w", p.Name(), err))
		}
	}
	return errors.Join(errs...)
}
