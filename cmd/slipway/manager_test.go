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
	"github.com/slipway-dev/slipway/internal/testing/check"
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

func TestI10QueueFlagWithoutQueueIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		"":                 "",
		"--aws-queue-url=": "",
		"--aws-queue-url=https://sqs.eu-west-1.amazonaws.com/1/q --aws-queue-workers=2": "",
		"--aws-queue-url= --aws-queue-agent-config=agent.yaml":                          `--aws-queue-url: "": want the URL of the queue, because --aws-queue-agent-config is set`,
		"--aws-queue-workers=2": `--aws-queue-url: "": want the URL of the queue, because --aws-queue-workers is set`,
	} {
		var q queue.Config
		fs := newManagerCommand().Flags()
		must.NoError(t, fs.Parse(strings.Fields(line)))
		q.URL = fs.Lookup("aws-queue-url").Value.String()
		got := ""
		if err := checkQueueFlags(fs, q); err != nil {
			got = err.Error()
		}
		check.Is(t, want, got, line)
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
