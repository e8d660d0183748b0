package testbed

import (
	"context"
	"path/filepath"
)

// InstallSurgePermissions applies the manifests that let the agents start successors of pods.
func (t *Testbed) InstallSurgePermissions(ctx context.Context) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "deploy", "agent", "surge", "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		if err := t.ApplyFile(ctx, file); err != nil {
			return err
		}
	}
	return nil
}
