package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestCompletionDoesNotWaitForCredentialPlugin(t *testing.T) {
	dir := t.TempDir()
	running := filepath.Join(dir, "running")
	must.NoError(t, os.WriteFile(running, nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(running) }) // ends the plugin
	path := filepath.Join(dir, "kubeconfig")
	must.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{kind: Config, apiVersion: v1, current-context: c,
		contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}],
		users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: IfAvailable, command: sh,
		args: ["-c", "while [ -e %s ]; do sleep 0.1; done"]}}}]}`, running), 0o600))
	check.Is(t, "", complete(t, "drain", "--kubeconfig", path, ""))
}
