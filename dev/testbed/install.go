package testbed

import (
	"context"
	"path/filepath"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// ManagerFiles are the rights of a manager that may install its types itself, for Deploy.
var ManagerFiles = []string{"manager/rbac.yaml", "manager/install-crds.yaml"}

// Deploy applies files of deploy/, named from there with slashes, as kubectl apply would.
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

// InstallTypes installs Slipway's own types and waits until the API server serves them.
func (t *Testbed) InstallTypes(ctx context.Context) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return t.ApplyTypes(ctx, filepath.Join(root, "api", "crds"), v1alpha1.GroupVersion, "nodegroups", "noderetirements")
}
