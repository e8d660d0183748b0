package testbed

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/controlplane"
)

// The namespace and name of the manager's ServiceAccount in the shipped manifests.
const (
	ManagerNamespace = "slipway"
	ManagerAccount   = "slipway-manager"
)

// Manager is a process that runs `slipway manager`.
type Manager struct {
	*controlplane.Process
	// URL is the address that serves /readyz and /metrics.
	URL string
}

// IsLeader reports whether the manager holds the leader election Lease. If the manager does not respond, it returns
// false.
func (m *Manager) IsLeader(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/metrics", nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer func() { _ = answer.Body.Close() }() // read only
	text, err := io.ReadAll(answer.Body)
	return err == nil && strings.Contains(string(text), `leader_election_master_status{name="slipway-manager"} 1`)
}

// StartManager starts a manager. The map clouds holds the configuration of each cloud by its provider's name.
func (t *Testbed) StartManager(ctx context.Context, name string, clouds map[string]any, flags ...string) (*Manager, error) {
	raw, err := yaml.Marshal(clouds)
	if err != nil {
		return nil, fmt.Errorf("cloud configuration of %s: %w", name, err)
	}
	file := filepath.Join(t.Dir(), name+"-clouds.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	return t.StartManagerWithFile(ctx, name, file, flags...)
}

// StartManagerWithFile starts a manager with a file for --cloud-config, and waits until the manager is ready. The
// manager has the permissions of the shipped manifests, which ApplyManifests installs. Leader election is off unless
// the flags enable it.
func (t *Testbed) StartManagerWithFile(ctx context.Context, name, clouds string, flags ...string) (*Manager, error) {
	path, err := EnsureBinary("slipway")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := t.ServiceAccountKubeconfig(ctx, ManagerNamespace, ManagerAccount, controlplane.TokenOptions{})
	if err != nil {
		return nil, err
	}
	listen, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	m := &Manager{URL: "http://" + listen}
	args := []string{"manager", "--kubeconfig", kubeconfig, "--cloud-config", clouds, "--listen", listen, "--leader-elect=false"}
	m.Process, err = t.StartProcess(ctx, controlplane.Command{Name: name, Path: path, ReadyURL: m.URL + "/readyz", Args: append(args, flags...)})
	return m, err
}

// CreateNodeGroup creates a NodeGroup. The spec is written in YAML.
func (t *Testbed) CreateNodeGroup(ctx context.Context, name string, labels map[string]string, spec string) error {
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		return fmt.Errorf("spec of NodeGroup %s: %w", name, err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": parsed}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeGroup"))
	o.SetName(name)
	o.SetLabels(labels)
	client, err := dynamic.NewForConfig(t.RESTConfig())
	if err != nil {
		return err
	}
	_, err = client.Resource(v1alpha1.GroupVersion.WithResource("nodegroups")).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// ScaleSetNodeGroupSpec returns the first YAML lines of a NodeGroup spec. They select the nodes of an AKS pool, and
// name its scale set.
func ScaleSetNodeGroupSpec(pool, scaleSet string) string {
	return fmt.Sprintf("nodeSelector: {matchLabels: {kubernetes.azure.com/agentpool: %s}}\ncloud: {provider: azure, group: %s}\n", pool, scaleSet)
}
