package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Every linked library costs memory on every node (docs/adr/0001-small-agent.md).
func TestSmallAgentLinksNoLargeLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := string(out)
	if !strings.Contains(deps, "github.com/slipway-dev/slipway/internal/agent") {
		t.Fatalf("go list does not list the program's packages:\n%s", deps)
	}
	for _, large := range []string{
		"github.com/Azure/", "k8s.io/client-go", "k8s.io/api/", "github.com/prometheus/client_golang", "github.com/spf13/cobra",
		"github.com/slipway-dev/slipway/internal/compat",
	} {
		for line := range strings.Lines(deps) {
			if strings.HasPrefix(line, large) {
				t.Errorf("links %s", strings.TrimSpace(line))
			}
		}
	}
}
