package testbed

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// ManagerFiles are the manifests of a manager that may install its own CRDs, for Deploy.
var ManagerFiles = []string{"manager/rbac.yaml", "manager/admission.yaml", "manager/install-crds.yaml"}

// Deploy applies files of deploy/, given by slash-separated paths, as kubectl apply does.
func (t *Testbed) Deploy(ctx context.Context, files ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := t.Apply(ctx, filepath.Join(root, "deploy", filepath.FromSlash(file))); err != nil {
			return err
		}
	}
	return nil
}

// InstallManager applies ManagerFiles and installs Slipway's CRDs once per testbed.
func (t *Testbed) InstallManager(ctx context.Context) error {
	t.manager.Lock()
	defer t.manager.Unlock()
	if t.manager.installed {
		return nil
	}
	err := errors.Join(t.Deploy(ctx, ManagerFiles...), t.InstallTypes(ctx))
	t.manager.installed = err == nil
	return err
}

// InstallTypes installs Slipway's CRDs and waits until the API server serves them.
func (t *Testbed) InstallTypes(ctx context.Context) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return t.ApplyTypes(ctx, filepath.Join(root, "api", "crds"), v1alpha1.GroupVersion, "nodegroups", "noderetirements", "poolupdates")
}
