package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// stateFile is the name of the file that holds the record of a control plane. Open reads this file.
const stateFile = "state.json"

type clusterState struct {
	Version   string            `json:"version"`
	Detached  bool              `json:"detached"`
	Host      string            `json:"host"`
	Processes []recordedProcess `json:"processes"`
}

// recordedProcess identifies a process, and holds the command that restarts it.
type recordedProcess struct {
	processIdentity
	Command Command `json:"command"`
}

// recordProcess adds a started process to the Cluster, and to the record on disk.
func (c *Cluster) recordProcess(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[p.Name()] = p
	recorded := recordedProcess{p.identity(), p.command}
	at := slices.IndexFunc(c.state.Processes, func(r recordedProcess) bool { return r.Command.Name == p.Name() })
	if at < 0 {
		c.state.Processes = append(c.state.Processes, recorded)
	} else {
		c.state.Processes[at] = recorded
	}
	content, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return fmt.Errorf("recording %s: %w", p.Name(), err)
	}
	if err := replaceFile(filepath.Join(c.dir, stateFile), append(content, '\n')); err != nil {
		return fmt.Errorf("recording %s: %w", p.Name(), err)
	}
	return nil
}

// replaceFile replaces the content of a file atomically, so that a reader sees either the old or the new content.
func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ErrNotFound is the error of Open if the directory has no record of a control plane.
var ErrNotFound = errors.New("no control plane here")

// Open returns the control plane that was started in a directory, usually by another process with Options.Detached.
// It succeeds even if processes of the control plane have ended. Process.IsAlive reports whether a process runs, and
// Stop ends the remaining processes.
func Open(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the control plane: %w", err)
	}
	content, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("directory %s: %w", dir, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the control plane: %w", err)
	}
	c := &Cluster{dir: dir, processes: map[string]*Process{}}
	if err := json.Unmarshal(content, &c.state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, stateFile), err)
	}
	for _, r := range c.state.Processes {
		c.processes[r.Command.Name] = &Process{
			command: r.Command, detached: c.state.Detached, cluster: c, id: r.processIdentity,
		}
	}
	return c, c.createClients()
}
