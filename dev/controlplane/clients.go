package controlplane

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
)

// The names of the command line clients of a cluster.
const (
	Kubectl = "kubectl"
	Helm    = "helm"
)

// ClientBinaries holds the paths of the command line clients.
type ClientBinaries struct{ Kubectl, Helm string }

// BuildClientBinaries compiles helm and the newest kubectl into the cache, unless the cache has them, and returns
// their paths. The two have their own Go module, because nothing else in the dev module needs their many
// dependencies.
func BuildClientBinaries(ctx context.Context, progress io.Writer) (ClientBinaries, error) {
	plan, err := newClientsPlan()
	if err != nil {
		return ClientBinaries{}, err
	}
	dir, err := plan.ensureBuilt(ctx, progress)
	return clientBinariesIn(dir), err
}

func clientBinariesIn(dir string) ClientBinaries {
	return ClientBinaries{Kubectl: filepath.Join(dir, Kubectl), Helm: filepath.Join(dir, Helm)}
}

func newClientsPlan() (buildPlan, error) {
	module, err := findDevModule()
	if err != nil {
		return buildPlan{}, fmt.Errorf("finding the module of kubectl and helm: %w", err)
	}
	return buildPlan{module: filepath.Join(module, "clients"), packages: map[string]string{
		Kubectl: "k8s.io/kubernetes/cmd/kubectl",
		Helm:    "helm.sh/helm/v3/cmd/helm",
	}}, nil
}
