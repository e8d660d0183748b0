package testbed

import (
	"context"
	"fmt"
	"path/filepath"
)

// InstallSurgePermissions applies the manifests that let the agents start successors of pods.
func (t *Testbed) InstallSurgePermissions(ctx context.Context) error {
	return t.applyComponent(ctx, "agent", "surge")
}

// InstallQueuePermissions applies the manifests that let the manager drain nodes in the AWS queue mode.
func (t *Testbed) InstallQueuePermissions(ctx context.Context) error {
	return t.applyComponent(ctx, "manager", "queue")
}

// applyComponent applies the manifests in a folder of deploy/.
func (t *Testbed) applyComponent(ctx context.Context, path ...string) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(append(append([]string{root, "deploy"}, path...), "*.yaml")...))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("deploy/%s has no manifests", filepath.Join(path...))
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
