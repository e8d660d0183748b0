package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/workload"
)

// The ServiceAccount of the agent in the shipped manifests.
const (
	AgentNamespace = "slipway"
	AgentAccount   = "slipway-agent"
)

// installAgentManifests applies the agent's manifests without the DaemonSet. Nothing runs containers here, so the testbed starts the
// agent processes.
func (t *Testbed) installAgentManifests(ctx context.Context) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	for _, file := range []string{"namespace.yaml", "rbac.yaml", "admission.yaml", "flowcontrol.yaml"} {
		if err := t.ApplyFile(ctx, filepath.Join(root, "deploy", "agent", file)); err != nil {
			return err
		}
	}
	return nil
}

// CreateAgentPod creates the pod of the agent on a node, without running it, and returns its name. The pod's token stays bound
// to the node, also after the Node object was recreated.
func (t *Testbed) CreateAgentPod(ctx context.Context, node string) (string, error) {
	pod := workload.App{Namespace: AgentNamespace, Name: AgentAccount + "-" + node}.Pod()
	pod.Spec.ServiceAccountName, pod.Spec.NodeName = AgentAccount, node
	if err := workload.CreateAndAwait(ctx, t.Client(), pod); err != nil {
		return "", fmt.Errorf("create the pod of the agent on %s: %w", node, err)
	}
	return pod.Name, nil
}

// ApplyFile applies every object of a YAML file, server-side, as kubectl apply would.
func (t *Testbed) ApplyFile(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	client, err := dynamic.NewForConfig(t.RESTConfig())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(t.Client().Discovery()))
	docs := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(f), 4096)
	for {
		var o unstructured.Unstructured
		if err := docs.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(o.Object) == 0 {
			continue
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, kind.Kind, o.GetName(), err)
		}
		resource := client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		if _, err := resource.Apply(ctx, o.GetName(), &o, metav1.ApplyOptions{FieldManager: "slipway-dev"}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, kind.Kind, o.GetName(), err)
		}
	}
}
