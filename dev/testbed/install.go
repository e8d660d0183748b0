package testbed

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// ManagerManifests are the manifests of a manager that may install its own CRDs, for Deploy.
var ManagerManifests = []string{"manager/rbac.yaml", "manager/admission.yaml", "manager/install-crds.yaml"}

// ApplyManifests applies files of deploy/, given by slash-separated paths, as kubectl apply does.
func (t *Testbed) ApplyManifests(ctx context.Context, files ...string) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := t.ApplyFile(ctx, filepath.Join(root, "deploy", filepath.FromSlash(file))); err != nil {
			return err
		}
	}
	return nil
}

// InstallManagerOnce applies ManagerManifests and installs Slipway's CRDs once per testbed.
func (t *Testbed) InstallManagerOnce(ctx context.Context) error {
	t.manager.Lock()
	defer t.manager.Unlock()
	if t.manager.installed {
		return nil
	}
	err := errors.Join(t.ApplyManifests(ctx, ManagerManifests...), t.InstallCRDs(ctx))
	t.manager.installed = err == nil
	return err
}

// InstallCRDs installs Slipway's CRDs and waits until the API server serves them.
func (t *Testbed) InstallCRDs(ctx context.Context) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	return t.ApplyCRDs(ctx, filepath.Join(root, "api", "crds"), v1alpha1.GroupVersion, "nodegroups", "noderetirements", "poolupdates")
}
