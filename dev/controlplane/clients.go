package controlplane

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
)

// The programs by which people reach a cluster.
const (
	Kubectl = "kubectl"
	Helm    = "helm"
)

// Clients are the paths of the programs by which people reach a cluster.
type Clients struct{ Kubectl, Helm string }

// BuildClients makes sure that kubectl, of the newest Kubernetes version, and helm are in the cache, as Build does, and
// returns where. They have a module of their own, since they need much that nothing else here does.
func BuildClients(ctx context.Context, progress io.Writer) (Clients, error) {
	plan, err := clientsPlan()
	if err != nil {
		return Clients{}, err
	}
	dir, err := plan.ensure(ctx, progress)
	return clientsIn(dir), err
}

func clientsIn(dir string) Clients {
	return Clients{Kubectl: filepath.Join(dir, Kubectl), Helm: filepath.Join(dir, Helm)}
}

func clientsPlan() (buildPlan, error) {
	module, err := devModule()
	if err != nil {
		return buildPlan{}, fmt.Errorf("finding the module of kubectl and helm: %w", err)
	}
	return buildPlan{module: filepath.Join(module, "clients"), packages: map[string]string{
		Kubectl: "k8s.io/kubernetes/cmd/kubectl",
		Helm:    "helm.sh/helm/v3/cmd/helm",
	}}, nil
}
