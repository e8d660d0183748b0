//go:build unix

// Package machines is a small hypervisor for experiments. Its machines are files: a machine exists while its file
// exists. The file says how long it boots and shuts down, and can be edited.
//
//	ROOT/host.json             how many machines the host can run
//	ROOT/GROUP/group.json      the group: its limits and templates
//	ROOT/GROUP/NAME.json       the machine NAME
//
// Several processes can use one directory. Each process locks the directory while it reads or writes.
package machines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The names of files that are not machines.
const (
	hostFile  = "host.json"
	groupFile = "group.json"
	lockFile  = ".lock"
	suffix    = ".json"
)

// Machine is the content of a machine's file.
type Machine struct {
	Template string    `json:"template"`
	Created  time.Time `json:"created"`
	// Boot and Shutdown are the durations in seconds.
	Boot     float64 `json:"boot,omitempty"`
	Shutdown float64 `json:"shutdown,omitempty"`
	// Deleting is when the deletion started.
	Deleting time.Time `json:"deleting,omitzero"`
	// Stuck is why a deletion will fail; for experiments.
	Stuck string `json:"stuck,omitempty"`
	// Failed is why the deletion failed.
	Failed string `json:"failed,omitempty"`
}

// IsBooted reports whether the machine has booted and runs.
func (m Machine) IsBooted(now time.Time) bool { return now.Sub(m.Created).Seconds() >= m.Boot }

// isShutDown reports whether a machine that is being deleted has shut down.
func (m Machine) isShutDown(now time.Time) bool {
	return !m.Deleting.IsZero() && now.Sub(m.Deleting).Seconds() >= m.Shutdown
}

// Template is a kind of machine that a group can create.
type Template struct {
	Name     string            `json:"name"`
	Capacity map[string]string `json:"capacity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Cost     float64           `json:"cost,omitempty"`
}

// Group is the content of a group's file. The file does not store the group's size, which is the number of machines.
type Group struct {
	Min       int        `json:"min"`
	Max       int        `json:"max"`
	Templates []Template `json:"templates"`
}

// Host is the content of the host's file.
type Host struct {
	// Quota is the maximum number of machines.
	Quota int `json:"quota"`
}

// ErrNoGroup and ErrNoMachine mean that the host is readable, but the requested group or machine does not exist.
var (
	ErrNoGroup   = errors.New("group not found")
	ErrNoMachine = errors.New("machine not found")
)

// Hypervisor manages the machines in the directory Root.
type Hypervisor struct{ Root string }

// View gives access to the directory while the directory is locked.
type View struct {
	root string
	Host Host
}

// lockPause is the delay between two attempts to lock the directory.
const lockPause = 2 * time.Millisecond

// WithLock calls do while it holds the lock of the directory. A directory without a host file is an error, for example
// an unmounted disk. It does not count as an empty host.
func (h Hypervisor) WithLock(ctx context.Context, do func(View) error) (err error) {
	v := View{root: h.Root}
	if err := readJSON(filepath.Join(h.Root, hostFile), &v.Host); err != nil {
		return fmt.Errorf("reading the host: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(h.Root, lockFile), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("locking the host: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // this unlocks
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return do(v)
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("locking the host: %w", err)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return fmt.Errorf("waiting for the lock of the host: %w", ctx.Err())
		}
	}
}

// Groups lists the names of the groups.
func (v View) Groups() ([]string, error) {
	entries, err := os.ReadDir(v.root)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Group reads one group. If the group does not exist, or its name is invalid, the error wraps ErrNoGroup.
func (v View) Group(name string) (g Group, err error) {
	if !ValidName(name) {
		return g, fmt.Errorf("group %q: %w", name, ErrNoGroup)
	}
	if _, err := os.Stat(filepath.Join(v.root, name)); errors.Is(err, fs.ErrNotExist) {
		return g, fmt.Errorf("group %q: %w", name, ErrNoGroup)
	}
	return g, readJSON(filepath.Join(v.root, name, groupFile), &g)
}

// Machines returns all machines of a group by name. First it removes machines that have shut down.
func (v View) Machines(group string) (map[string]Machine, error) {
	if _, err := v.Group(group); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(v.root, group))
	if err != nil {
		return nil, err
	}
	all := map[string]Machine{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || e.Name() == groupFile || strings.HasPrefix(name, ".") {
			continue
		}
		switch m, err := v.Machine(group, name); {
		case errors.Is(err, ErrNoMachine): // it has shut down
		case err != nil:
			return nil, err // a list without it would mean that it is gone
		default:
			all[name] = m
		}
	}
	return all, nil
}

// Size returns the target size of the group, which is the number of machines that are not being deleted.
func (v View) Size(group string) (n int, err error) {
	all, err := v.Machines(group)
	for _, m := range all {
		if m.Deleting.IsZero() {
			n++
		}
	}
	return n, err
}

// Machine reads one machine. If the machine has shut down, Machine removes its file. If the machine is Stuck, its
// deletion fails instead.
func (v View) Machine(group, name string) (m Machine, err error) {
	none := fmt.Errorf("machine %s/%s: %w", group, name, ErrNoMachine)
	if !ValidName(group) || !ValidName(name) {
		return m, none
	}
	path := filepath.Join(v.root, group, name+suffix)
	switch err := readJSON(path, &m); {
	case errors.Is(err, fs.ErrNotExist):
		return m, none
	case err != nil || !m.isShutDown(time.Now()):
		return m, err
	case m.Stuck != "":
		m.Deleting, m.Failed = time.Time{}, m.Stuck
		return m, v.SetMachine(group, name, m)
	}
	if err := os.Remove(path); err != nil {
		return m, err
	}
	return m, none
}

// SetMachine creates or replaces the file of a machine. It does not check the names.
func (v View) SetMachine(group, name string, m Machine) error {
	return writeJSON(filepath.Join(v.root, group, name+suffix), m)
}

// ValidName reports whether a name is valid for a group or a machine. The name becomes a file name.
func ValidName(name string) bool {
	return name != "" && len(name) <= 63 && name != "host" && name != "group" && !strings.ContainsFunc(name, func(r rune) bool {
		return !slices.Contains([]rune("abcdefghijklmnopqrstuvwxyz0123456789-"), r)
	})
}

func readJSON(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file atomically. So a reader never sees a partly written file, even after a crash.
func writeJSON(path string, content any) error {
	raw, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(path), ".next-"+filepath.Base(path))
	if err := os.WriteFile(next, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
