package controlplane

import (
	"os"
	"path/filepath"
	"testing"
)

func TestExitErrorIsTheStatusOfTheProgram(t *testing.T) {
	c := &Cluster{dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(c.dir, logDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{"exit 0": "", "exit 3": "exit status 3"} {
		p := &Process{command: Command{Name: "sh", Path: "/bin/sh", Args: []string{"-c", script}}, cluster: c}
		if err := p.startProcess(); err != nil {
			t.Fatal(err)
		}
		<-p.Exited()
		got := ""
		if err := p.ExitError(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
}
