package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
	"github.com/slipway-dev/slipway/internal/compat/vmsspodwatcher"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/notice/aws/queue"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestI6ManagerIgnoresRetirementsOfCompatibilityModes(t *testing.T) {
	selector, err := labels.Parse(newManagerCommand().Flags().Lookup("selector").Value.String())
	must.NoError(t, err)
	for _, theirs := range []labels.Set{{kubeaware.BackendLabel: "bba455bd"}, {vmsspodwatcher.GroupLabel: "ci"}} {
		if selector.Matches(theirs) {
			t.Errorf("%s selects %v of a compatibility mode", selector, theirs)
		}
	}
	if !selector.Matches(labels.Set{}) || !selector.Matches(labels.Set{"team": "a"}) {
		t.Errorf("%s does not select other objects", selector)
	}
}

func TestQueueRefusesSurgesOfItsAgents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(path, []byte("surge: annotated\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := newManagerQueue(t.Context(), &manager.Config{}, queue.Config{}, path, io.Discard)
	if want := "--aws-queue-agent-config: surge: annotated"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want an error that begins with %q", err, want)
	}
}
